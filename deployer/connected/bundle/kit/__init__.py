"""The kit: tools that a site may lack to run a bundle, shipped in the bundle as parts.

``charliecloud`` is ch-run; ``udocker`` is a runtime and its engine; ``squashfs-tools`` makes SquashFS images; ``age``
decrypts media, so it is on the media, not in bundles, unless somebody asks. Each part is made on this machine, for the
processor of the site, from files that its recipe pins by SHA-256, and then tested. It is published by rename as
``kit/KEY/`` in the cache. KEY covers everything that the part depends on. Each part includes its licences and, if they
require it, its sources.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from deployer.connected.bundle.about.packages import DEB, GENERIC, Package
from deployer.connected.bundle.kit import age, charliecloud, squashfs, udocker
from deployer.connected.bundle.kit.recipe import Recipe, Say
from deployer.connected.ground import caches, this_machine
from deployer.connected.image.definition import settings
from deployer.connected.image.definition.settings import BuildSettings
from deployer.connected.rootfs.entries import FileContent
from deployer.connected.site_profile.model import Profile
from deployer.connected.site_profile.plan import runs_kit
from deployer.contract.base.errors import IntegrityError, JobFailed, MissingTool, TransferError
from deployer.contract.bundle.manifest import KIT_PREFIX
from deployer.contract.elf.machines import HEADER_SIZE, SUPPORTED, X86_64, of_elf
from deployer.contract.site.plan import CHARLIECLOUD_KIT, SIF, SQUASHFS, Plan
from deployer.system import terminal


class KitPart(NamedTuple):
    """A part of the kit.

    Attributes:
        recipe: its pins and files.
        make: makes the part in its first folder, with temporary files in the second, for a processor, by the kernel's
            name. Raises as ``members``.
        programs: the files that it compiles or takes from packages, each with the pin of its source or package.
        serves: returns whether a site can use it.
        optional: returns whether a site can do without it. Such a part is skipped with a warning if it cannot be made.
    """

    recipe: Recipe
    make: Callable[[Path, Path, BuildSettings, str, Say], None]
    programs: Mapping[str, str]
    serves: Callable[[Profile, Plan], bool]
    optional: Callable[[Plan], bool]


def _needs_charliecloud(_: Profile, plan: Plan) -> bool:
    starts = any(option.runtime == CHARLIECLOUD_KIT for option in plan.start_options)
    return starts and not plan.against.get(CHARLIECLOUD_KIT)


def _has_another_runtime(plan: Plan) -> bool:
    return any(option.runtime not in {CHARLIECLOUD_KIT, *plan.against} for option in plan.containers)


def _needs_udocker(_: Profile, plan: Plan) -> bool:
    return any(option.runtime == "udocker" for option in plan.start_options)


def _may_lack_mksquashfs(profile: Profile, plan: Plan) -> bool:
    return not profile.login.mksquashfs and any(option.form in (SIF, SQUASHFS) for option in plan.start_options)


PARTS: Mapping[str, KitPart] = {
    "charliecloud": KitPart(
        charliecloud.RECIPE, charliecloud.make, charliecloud.PROGRAMS, _needs_charliecloud, _has_another_runtime
    ),
    "udocker": KitPart(
        udocker.RECIPE, udocker.make, {udocker.PROGRAM: udocker.PROGRAM}, _needs_udocker, lambda _: False
    ),
    "squashfs-tools": KitPart(
        squashfs.RECIPE, squashfs.make, {squashfs.PROGRAM: "squashfs-tools"}, _may_lack_mksquashfs, lambda _: True
    ),
    "age": KitPart(age.RECIPE, age.make, {age.PROGRAM: age.SOURCE}, lambda *_: False, lambda _: True),
}


def carried(
    asked: Collection[str], sites: Iterable[tuple[Profile, Plan]], image: str | None, say: Say
) -> dict[str, Path]:
    """Return the kit of a bundle as members, with their files in the cache.

    Args:
        asked: parts to include always.
        image: the processor of the bundle's image, by the kernel's name; None if it is unknown. Sites with other
            nodes get nothing.
        sites: parts that one of these sites can use are also included. If no site strictly needs such a part and it
            cannot be made, it is left out with a warning.

    Raises:
        DeployerError: a part cannot be made; see ``members``.
    """
    parts: dict[str, Path] = {}
    nodes = [(profile, plan, profile.partition(plan.partition)[1]) for profile, plan in sites]
    machine = image or next((node.architecture for _, _, node in nodes if node.architecture), X86_64.kernel)
    nodes = [each for each in nodes if runs_kit(each[2]) and each[2].architecture in (None, machine)]
    for name, part in PARTS.items():
        served = [plan for profile, plan, _ in nodes if part.serves(profile, plan)]
        if name not in asked and not served:
            continue
        try:
            parts.update(members(name, machine, say))
        except (MissingTool, TransferError, JobFailed) as error:
            if name in asked or not all(map(part.optional, served)):
                raise
            terminal.warn(f"{error.message}: the bundle is packed without {name} ({error.hint})")
    return parts


def members(name: str, machine: str, say: Say) -> dict[str, Path]:
    """Return the members of one part and their files in the cache. Make the part if the cache lacks it.

    Args:
        machine: the processor of the site, by the kernel's name.

    Raises:
        MissingTool: a tool to make it is missing, or it does not exist for this processor.
        TransferError: a download failed.
        IntegrityError: a download does not match its pin, or a program is for another processor.
        JobFailed: the compilation or the test failed.
    """
    if not this_machine.is_linux():
        raise MissingTool(
            f"the kit's {name} can only be made on Linux", f"pack on Linux, {PARTS[name].recipe.leave_out}"
        )
    part = PARTS[name]
    if machine not in SUPPORTED:
        raise MissingTool(f"the kit's {name} does not exist for {machine}", part.recipe.leave_out)
    folder = caches.KIT.folder / part.recipe.key(machine)
    if not folder.is_dir():
        host = settings.from_host(None, None, os.environ)
        with caches.KIT.new_entry(folder.name) as new:
            part.make(new, new.parent, host, machine, say)
            _check_machine(new, machine, part.recipe.leave_out)
    os.utime(folder)  # the last use, for `cache prune`
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {KIT_PREFIX + path.relative_to(folder).as_posix(): path for path in paths}


def _check_machine(folder: Path, machine: str, hint: str) -> None:
    """Raise IntegrityError if a program of a part is for another processor."""
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as stream:
            own = of_elf(stream.read(HEADER_SIZE))
        if own and own.kernel != machine:
            raise IntegrityError(f"the kit's {path.name} is for {own.kernel}, not for {machine}", hint)


def packages(contents: Mapping[str, FileContent]) -> Iterator[Package]:
    """Yield the packages of compiled programs among a bundle's members. They have no package metadata."""
    for part in PARTS.values():
        for program, name in part.programs.items():
            content = contents.get(KIT_PREFIX + program)
            if content is None:
                continue
            data, pin = content.read(0, content.size), part.recipe.pins()[name]
            kind, own, digest = DEB, of_elf(data), hashlib.sha256(data).hexdigest()
            if part.recipe.compiled:
                kind, own = GENERIC, None
            licences = (pin["licence"],)
            yield Package(kind, name, pin["version"], KIT_PREFIX + program, own.oci if own else "", licences, digest)
