"""check: will this bundle run on that site? Said on the laptop, from captured facts, before anything is shipped.

The image, the chosen variant's wheels and the site's libraries are linked dry, as the loader would do it in the
container, and the rules look at what would be mapped. Nothing is unpacked and nothing is run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from deployer.connected.linker import index, process
from deployer.connected.linker.index import Bundle, Index
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.linker.view import Captured, Files
from deployer.connected.plan import make_plan
from deployer.connected.profile import Profile
from deployer.connected.rules import linking, mpi, pmi, site
from deployer.connected.rules.case import Case
from deployer.contract import hostfiles, records
from deployer.contract.errors import Refused, Unknown, UsageError
from deployer.contract.findings import Finding
from deployer.contract.manifest import VARIANTS_PREFIX, WHEELS_PREFIX, Manifest
from deployer.contract.plan import APP, VARIANT, WHEELS, Plan
from deployer.contract.verdict import Checked, judged
from deployer.system.verify import begin, opened

T = TypeVar("T")

#: Of one program and what it loads.
PROCESS_RULES: tuple[Callable[[Process], Iterator[Finding]], ...] = (
    linking.program, linking.missing, linking.versions, linking.broken,
    mpi.family, mpi.library, mpi.symbols, mpi.tree,
)  # fmt: skip
#: Of the bundle and the site as a whole.
RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (site.captured, pmi.offered, pmi.spoken)

#: Every code that a finding can have; each has a section in docs/rules.md.
CODES = (
    "facts.mpi", "facts.plan", "facts.pmi",
    "link.broken", "link.missing", "link.program", "link.version",
    "mpi.escape", "mpi.family", "mpi.mixed", "mpi.symbols",
    "plan.refused", "pmi.not-offered", "pmi.unmet",
)  # fmt: skip


class Verdict(NamedTuple):
    """What ``check`` says of a bundle at a site, and why."""

    bundle: str
    site: str
    partition: str
    checked: Checked

    def record(self) -> records.Record:
        where = {"bundle": self.bundle, "site": self.site, "partition": self.partition}
        return {**where, **self.checked.record()}


def check(
    path: str,
    profile: Profile,
    partition: str | None = None,
    accept: Sequence[str] = (),
    cache: Path | None = None,
) -> Verdict:
    """Return the verdict on the bundle ``path`` at a site. Facts of files are kept in the folder ``cache``.

    That there can be no plan for the site is a finding. Raises IntegrityError, and UsageError for a partition or a code
    that there is not.
    """
    try:
        made, checked = plan(path, profile, partition, accept, cache)
    except (Refused, Unknown) as error:
        return Verdict(_label(path), profile.name, partition or "", judged([site.no_plan(profile, error)], accept))
    return Verdict(made.bundle, made.site, made.partition, checked)


def plan(
    path: str,
    profile: Profile,
    partition: str | None = None,
    accept: Sequence[str] = (),
    cache: Path | None = None,
) -> tuple[Plan, Checked]:
    """Return the plan for the bundle ``path`` at a site, with the verdict in it, and the verdict.

    Raises as ``make_plan`` does, IntegrityError, and UsageError for a code that there is not.
    """
    known_codes(accept)
    with opened(path) as stream:
        bundle = begin(stream, path)
        manifest = bundle.manifest
        made = make_plan(profile, f"{manifest.name}:{manifest.version}", manifest.mpi, partition)
        checked = check_plan(bundle, profile, made, accept, cache)
    return made._replace(checked=checked), checked


def _label(path: str) -> str:
    with opened(path) as stream:
        manifest = begin(stream, path).manifest
    return f"{manifest.name}:{manifest.version}"


def check_plan(
    bundle: Bundle,
    profile: Profile,
    plan: Plan,
    accept: Sequence[str] = (),
    cache: Path | None = None,
) -> Checked:
    """Return the verdict on a bundle under a plan that was made for it from ``profile``. Raises IntegrityError."""
    manifest = bundle.manifest
    if manifest.is_data:
        return judged([], accept)
    files = index.of_image(bundle, cache)
    overlays = _overlays(bundle, plan, cache)
    host = host_files(profile, plan)
    commands = _commands(manifest, files) if host or not plan.mpi else []
    processes = [process.start(plan, manifest.image, files, overlays, host, command) for command in commands]
    case = Case(profile, profile.partition(plan.partition)[1], plan, manifest, files, overlays, processes)
    findings = [finding for rule in RULES for finding in rule(case)]
    findings += [finding for each in processes for rule in PROCESS_RULES for finding in rule(each)]
    return judged(list(dict.fromkeys(findings)), accept)


def known_codes(codes: Sequence[str]) -> None:
    """Raise UsageError unless there is a rule for each of the codes."""
    unknown = set(codes) - set(CODES)
    if unknown:
        raise UsageError(f"no rule has the code {', '.join(sorted(unknown))}", f"codes: {', '.join(CODES)}")


def _commands(manifest: Manifest, files: Index) -> list[str]:
    """Return what jobs start, each once: their programs. Where there is no job, the image's Python, and all that call
    MPI."""
    found = dict.fromkeys(job.command[0] for job in manifest.jobs)
    if found:
        return list(found)
    programs = (path for path, entry in files.entries.items() if entry.facts and process.is_program(entry.facts))
    return [manifest.image.python or "/bin/sh", *sorted(programs)]


def _overlays(bundle: Bundle, plan: Plan, cache: Path | None) -> list[Overlay]:
    """Return the bundle's Python packages as the job will see them, the variant first; and its training code."""
    found = []
    variant = f"{VARIANTS_PREFIX}{plan.abi}/" if plan.abi else None
    for prefix, target in ((variant, VARIANT), (WHEELS_PREFIX, WHEELS)):
        names = [m.name for m in bundle.manifest.members if prefix and m.name.startswith(prefix)]
        if names:
            found.append(Overlay(f"{target}/lib", index.of_wheels(bundle, names, cache)))
    return [*found, Overlay(APP, index.of_app(bundle))]


def host_files(profile: Profile, plan: Plan) -> Mapping[str, Files]:
    """Return the site's files that the plan binds, by where they are seen; nothing where the MPI was not captured.

    Where single host files are seen stand all files of the site, by their paths there.
    """
    captured = profile.site_files(plan.partition)
    if plan.mpi and plan.mpi.library not in captured.files.keys() | captured.links.keys():
        return {}
    found = {
        bind.target: Captured(_below(captured.files, bind.source), _below(captured.links, bind.source))
        for bind in plan.binds
    }
    if plan.host:
        found[hostfiles.FOLDER] = Captured(captured.files, captured.links)
    return found


def _below(found: Mapping[str, T], folder: str) -> dict[str, T]:
    """Return what stands below a folder, by its path there."""
    return {path[len(folder) :]: value for path, value in found.items() if path.startswith(folder + "/")}
