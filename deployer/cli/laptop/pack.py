"""deployer pack: write a bundle."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployer.cli.laptop import settings
from deployer.cli.site import common
from deployer.cli.site.common import show
from deployer.connected.bundle import pack as packing
from deployer.connected.bundle import sources
from deployer.connected.bundle.contents import Contents
from deployer.connected.check.checking import Checking
from deployer.connected.ground import caches
from deployer.connected.image.lint import is_own
from deployer.connected.linker import commands
from deployer.connected.rootfs.flatten import CHANGES
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import limits
from deployer.contract.rules.verdict import REFUSE
from deployer.site.storage.space import human
from deployer.system import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deployer.connected.image.definition.definition import Definition
    from deployer.connected.site_profile.profile import Profile


#: The parts in ``deployer.connected.bundle.kit``. Importing that module only for the names would be slow.
_PARTS = ("charliecloud", "udocker", "squashfs-tools", "age")


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "pack", run)
    common.add(command, "definition", "DEF", "a definition: a folder with a bundle.yaml", nargs="?")
    text = (
        "pack this image of the Docker engine, or this file as --archive does, without jobs; init --from-image writes "
    )
    text += "a definition with one"
    common.add(command, "--image", "REF", text)
    archive = "pack a docker save or OCI archive, an OCI layout folder, a SIF or SquashFS file, or a root filesystem's "
    archive += "tar; plain, gzip or zstd"
    common.add(command, "--archive", "FILE", archive, type=Path)
    common.add(command, "--rootfs", "DIR", "pack this folder, a root filesystem", type=Path)
    command.add_argument("--name", help="the bundle's name, if there is no definition")
    command.add_argument("--version", help="the bundle's version, if there is no definition")
    text = "add a plan for each partition of this site, or for those named (SITE:A,B); may be repeated; "
    text += "SITE is a profile's name or path, or ssh:HOST for what that site publishes"
    command.add_argument("--site", action="append", default=[], help=text)
    settings.add_architecture(command, "with DEF: pack")
    common.add_plan_choice(command)
    text = "treat this rule of check as a warning, with --site; the plan records it. With DEF, and "
    text += "for secrets.*: ignore this rule of lint, or one finding of it (CODE:FILE)"
    common.repeated(command, "--accept", "CODE", text)
    text = "include this part of the kit even if no --site needs it; may be repeated"
    command.add_argument("--kit", action="append", default=[], choices=_PARTS, help=text)
    text = "make this folder in the image, for --bind at the site; may be repeated (with --site, those of the site's "
    text += "profile are made)"
    common.repeated(command, "--mount-point", "DIR", text)
    command.add_argument("--codec", choices=("zstd", "gzip"), default="zstd", help="gzip: for sites without libzstd")
    common.flag(command, "--lean", "leave out what few jobs use, like the key lean of a definition")
    common.add(command, "--changes", "FILE", "list each path that flatten changed, and how", type=Path)
    common.flag(command, "--no-cache", "do not read or write the caches of compressed frames and facts")
    common.add(command, "-o", "--output", "B.tar", "write the bundle to this file", required=True)


def run(args: argparse.Namespace) -> None:
    """Pack, and print the result. Raises UsageError unless exactly one source is given."""
    given = [args.definition, args.image, args.archive, args.rootfs]
    if sum(source is not None for source in given) != 1:
        hint = "see: deployer pack --help"
        raise UsageError("pack requires exactly one of DEF, --image, --archive and --rootfs", hint)
    if args.definition and (args.name or args.version):
        hint = "leave out --name and --version"
        raise UsageError("--name and --version cannot be used with DEF: the definition has them", hint)
    if not args.definition and not (args.name and args.version):
        raise UsageError("--image, --archive and --rootfs need --name and --version")
    sites = _profiles(args.site, args.mpi, args.launch)
    if args.architecture and not args.definition:
        raise UsageError("--architecture requires DEF", "an image, an archive and a folder have their own")
    if not args.definition:
        _print(args, [_pack(args, None, sites, Path(args.output))])
        return
    from deployer.connected.bundle import architectures
    from deployer.connected.image.definition.definition import load

    definitions = architectures.definitions(load(args.definition), args.architecture, sites)
    output, packed = Path(args.output), []
    for definition in definitions:
        fitting, path = sites, output
        if len(definitions) > 1:  # a bundle for each processor, with its name in the name of the file
            terminal.tell(f"for {definition.machine}:")
            fitting = [own for site in sites if (own := architectures.fitting(site, str(definition.machine)))]
            path = output.with_name(f"{output.stem}-{definition.machine}{output.suffix}")
        packed.append(_pack(args, definition, fitting, path))
    _print(args, packed)


def _pack(
    args: argparse.Namespace, definition: "Definition | None", sites: "list[Profile]", output: Path
) -> packing.Packed:
    """Pack one bundle."""
    cache = None if args.no_cache else caches.FRAMES.folder
    with caches.in_use():
        contents = _contents(args, definition, sites)
        lean = args.lean or contents.lean
        contents = contents._replace(kit=args.kit, mount_points=args.mount_point, accept=args.accept, lean=lean)
        checking = _checking(args)
        return packing.pack(contents, sites, output, args.codec, cache, args.changes, checking, terminal.tell)


def _print(args: argparse.Namespace, results: "Sequence[packing.Packed]") -> None:
    """Print what was packed."""
    parts = [packed.record() for packed in results]
    if common.as_json(args, {**parts[0], "others": parts[1:]}):
        return
    for packed in results:
        _show(packed)
    _suggest(args, results[0])


def _show(packed: packing.Packed) -> None:
    image, frames = packed.manifest.image, packed.frames
    what = f"{image.entries} entries, {human(image.raw_size)} unpacked"
    what = f"{what}; {packed.reused} of {frames} frames from the cache" if image.entries else "only data"
    label = f"{packed.manifest.name}:{packed.manifest.version}"
    terminal.show(f"packed {label}: {human(packed.size)} ({what}): {packed.path}", f"digest {packed.digest}")
    if packed.manifest.changes:
        terminal.show("changes: " + in_words(packed.manifest.changes))
    for name, plan in packed.named_plans():
        if plan.checked:
            terminal.show(f"check {name}: {plan.checked.said}")
            show(plan.checked, [plan.way])


def in_words(changes: "Mapping[str, int]") -> str:
    """Return an image's counted changes in words."""
    return ", ".join(f"{count} {CHANGES.get(kind, kind).partition(':')[0]}" for kind, count in changes.items())


def _suggest(args: argparse.Namespace, packed: packing.Packed) -> None:
    """Print the next command: `push` for a plan that may run or a data-only bundle."""
    sites = [site for site, _ in map(_site, args.site)]
    site = settings.site_for_hint(sites[0] if sites else None)
    verdicts = [plan.checked.without(limits.CODES).verdict for plan in packed.plans if plan.checked]
    if packed.manifest.is_data or (verdicts and set(verdicts) != {REFUSE}):
        common.suggest(args, "push", str(packed.path), site)
    elif not sites:
        common.suggest(args, "check", str(packed.path), "--site", site)


def _checking(args: argparse.Namespace) -> Checking:
    """Return the settings for checking the plans."""
    own = {word for word in args.accept if is_own(word) and (args.definition or word.startswith("secrets."))}
    of_check = [word for word in args.accept if word not in own - {commands.CODE}]
    if not args.site:
        if set(of_check) - {commands.CODE}:
            hint = f"without --site, only {commands.CODE}, secrets.* and, with DEF, codes of lint can be accepted"
            raise UsageError("--accept requires --site", hint)
        return Checking(of_check)
    from deployer.connected.check.check import known_codes

    known_codes(of_check)
    return Checking(of_check, None if args.no_cache else caches.LINK.folder)


def _contents(args: argparse.Namespace, definition: "Definition | None", sites: "list[Profile]") -> Contents:
    """Return the contents of the bundle."""
    if definition:
        from deployer.connected.image.lint import lint

        lint.refuse(definition, args.accept)
        return sources.from_definition(definition, sources.families_for(definition, sites), args.accept)
    if args.image and not Path(args.image).is_file():
        return sources.from_image(args.image, args.name, args.version)
    if file := args.archive or args.image:
        return sources.from_archive(Path(file), args.name, args.version)
    return sources.from_folder(args.rootfs, args.name, args.version)


def _profiles(names: list[str], mpi: str | None, launch: str | None) -> "list[Profile]":
    if not names and (mpi or launch):
        option = "--mpi" if mpi else "--launch"
        raise UsageError(f"{option} requires --site", "without a site, the bundle uses its own MPI")
    if not names:
        return []
    from deployer.connected.transfer.published import profile_of

    return [profile_of(site).selected(partitions, mpi, launch) for site, partitions in map(_site, names)]


def _site(text: str) -> tuple[str, list[str]]:
    """Return the site, and the partition names after the last colon. A file name may also contain a colon."""
    site, colon, partitions = text.rpartition(":")
    if site == "ssh" or not colon or "/" in partitions or Path(text).exists():  # ssh:HOST
        return text, []
    return site, [name for name in partitions.split(",") if name]
