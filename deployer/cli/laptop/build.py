"""deployer build: make a definition's image."""

import argparse
import os
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.site import common
from deployer.connected.bundle import architectures, sources
from deployer.connected.ground import caches, progress
from deployer.connected.image.build import BuildOptions, BuildResult, build
from deployer.connected.image.builders import choice
from deployer.connected.image.definition.definition import load
from deployer.connected.image.wheelhouse.wheelhouse import Mode
from deployer.connected.transfer.published import profile_of
from deployer.contract.base.errors import Refused, UsageError
from deployer.system import terminal
from deployer.system.files import read_bytes


def add_parsers(subparsers: Any) -> None:
    """Register ``build``."""
    command = common.add_command(subparsers, "build", run)
    common.add(command, "definition", "DEF", "a folder with a bundle.yaml, or that file")
    add_settings(command)
    common.flag(command, "--no-cache", "run every step again")
    common.repeated(command, "--accept", "CODE", "build despite this finding of lint; may be repeated")
    common.flag(command, "--locked", "fail (exit 3) if python.lock does not match the requirements and the image")
    text = "use the newest releases that the requirements allow, not those in the old python.lock"
    common.flag(command, "--upgrade", text)
    text = "download nothing: use cached bases, layers and wheels, and run the steps without network"
    common.flag(command, "--offline", text)
    text = "a folder with your own wheels for the wheelhouse; may be repeated"
    command.add_argument("--find-links", metavar="DIR", type=Path, action="append", default=[], help=text)
    text = "build for the processor of this site's nodes, and compile Horovod only for its MPI; a profile's name or "
    text += "path; may be repeated (default: for each MPI family of the definition)"
    common.repeated(command, "--site", "SITE", text)
    settings.add_architecture(command, "build")
    text = "a secret for RUN --mount=type=secret: id=NAME,src=FILE or id=NAME,env=VARIABLE; may be repeated"
    common.repeated(command, "--secret", "SECRET", text)
    text = "an ssh agent or key for RUN --mount=type=ssh: default, or ID=PATH; may be repeated"
    common.repeated(command, "--ssh", "KEY", text)

    command = common.add_command(subparsers, "reproduce", _reproduce)
    common.add(command, "bundle", "B.tar", "a bundle that `pack` wrote of a definition; its Dockerfile will be run")
    text = "the bundle's definition, for files that the bundle does not carry"
    common.add(command, "definition", "DEF", text, nargs="?", type=Path)
    add_settings(command)


def run(args: argparse.Namespace) -> None:
    """Build, and print the result."""
    for path in (args.ca_bundle, args.pip_conf, args.apt_sources):
        if path is not None and not path.is_file():
            raise UsageError(f"there is no file {path}")
    if args.no_cache and args.offline:
        raise UsageError("--no-cache and --offline exclude each other: most steps cannot run again without network")
    if args.upgrade and (args.locked or args.offline):
        raise UsageError("--upgrade writes a new python.lock, which --locked and --offline do not allow")
    files = settings.build_files(args)
    definition = load(args.definition)
    sites = [profile_of(site) for site in args.site]
    given: dict[str, Any] = {"accept": tuple(args.accept), "secrets": dict(map(_secret, args.secret))}
    given.update(families=sources.families_for(definition, sites), mode=Mode(args.locked, args.offline, args.upgrade))
    options = common.from_options(BuildOptions, args, **files, **given)
    results = []
    with caches.in_use():
        for each in architectures.definitions(definition, args.architecture, sites):
            built = build(each, options, say)
            results.append(built)
            if not args.json:
                _show(built)
    if args.json:
        first, *others = (built.record() for built in results)
        terminal.show_json({**first, "others": others})
    site = settings.site_for_hint(args.site[0] if args.site else None)
    common.suggest(args, "pack", args.definition, "--site", site, "-o", f"{definition.name}.tar")


def say(line: str) -> None:
    """Print a line of a build's log beside its progress."""
    if not terminal.is_quiet():
        progress.show_beside(line)


def add_settings(command: argparse.ArgumentParser) -> None:
    """Add the options with the settings of this machine."""
    text = "CA certificates for the build's downloads (default: $DEPLOYER_CA_BUNDLE, else the file in PIP_CERT, "
    text += "SSL_CERT_FILE or REQUESTS_CA_BUNDLE); not copied into the image"
    common.add(command, "--ca-bundle", "FILE", text, type=Path)
    text = "pip's settings for the build (default: this host's indexes); not copied into the image"
    common.add(command, "--pip-conf", "FILE", text, type=Path)
    text = "deb lines of a Debian mirror for the base and the build (default: $DEPLOYER_APT_SOURCES, else "
    text += "Debian's); not copied into the image"
    common.add(command, "--apt-sources", "FILE", text, type=Path)
    text = f"what builds the image: {', '.join(choice.BUILDERS)} (default: the first of them that is at hand)"
    common.add(command, "--builder", "BUILDER", text, choices=choice.BUILDERS)


def _show(built: BuildResult) -> None:
    if not built.tag:
        size = f"{built.size / 1e6:.1f} MB, {built.seconds:.1f} s"
        terminal.show(f"built {built.name}:{built.version} without Docker: {size}")
        terminal.show(f"image {built.base}, {built.image}")
    else:
        cached = f"{built.cached} of {built.steps} steps from the cache"
        terminal.show(f"built {built.tag}: {built.size / 1e6:.1f} MB, {cached}, {built.seconds:.1f} s, {built.builder}")
        terminal.show(f"image {built.image}")
        if built.wheels:
            lock = "python.lock was written: commit it" if built.relocked else "as listed in python.lock"
            terminal.show(f"wheels {built.wheels}, {lock}")
        for variant in built.variants:
            how = "from the cache" if variant.cached else f"{variant.seconds:.0f} s"
            proofs = ", ".join(variant.proofs)
            terminal.show(f"Horovod for {variant.abi}: {variant.wheel.name}, tested on {proofs} ({how})")
        terminal.show(f"log {built.log}")


def _secret(text: str) -> tuple[str, bytes]:
    """Return the id and the content of a secret. Raises UsageError."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    source = fields.get("src") or fields.get("source")
    if not fields.get("id") or (source is None) == ("env" not in fields):
        raise UsageError(f"invalid secret: {text!r}", "write id=NAME,src=FILE, or id=NAME,env=VARIABLE")
    if source is not None:
        return fields["id"], read_bytes(source)
    if fields["env"] not in os.environ:
        raise UsageError(f"the secret {fields['id']} is in the variable {fields['env']}, which is not set")
    return fields["id"], os.environb[os.fsencode(fields["env"])]


def _reproduce(args: argparse.Namespace) -> int:
    from deployer.connected.deploy.reproduce import reproduce

    with caches.in_use():
        options = BuildOptions(**settings.build_files(args), builder=args.builder)
        made = reproduce(args.bundle, args.definition, options, say)
    code = 0 if made["reproduced"] else Refused.exit_code
    if common.as_json(args, made):
        return code
    same = f"the same layer sha256:{made['layer']}, settings and wheels"
    again = f"not reproduced: layer sha256:{made['layer']}, again sha256:{made['layer_again']}"
    terminal.show(
        again if code else f"reproduced: {same}", *(f"the image's {name} differs" for name in made["settings"])
    )
    terminal.show(*("{kind} {name}: {old} -> {new}".format(**each) for each in made["packages"]))
    terminal.show(*("{change} {path}: {reason}".format(**each) for each in made["files"]))
    return code
