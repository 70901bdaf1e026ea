"""check: will this bundle run on that site? Said on the laptop, from captured facts, before anything is shipped.

The image, the chosen variant's wheels and the site's libraries are linked dry, as the loader would do it in the
container, and the rules look at what would be mapped. Nothing is unpacked and nothing is run.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from deployer.connected.check import rehearsed
from deployer.connected.check.rules import (
    command,
    cpu,
    fabric,
    gpu,
    inside,
    layout,
    linking,
    mpi,
    places,
    pmi,
    programs,
    proof,
    python,
    runtimes,
    site,
    space,
    wheels,
)
from deployer.connected.check.rules.case import Case
from deployer.connected.linker import index, jobs
from deployer.connected.linker.index import Bundle
from deployer.connected.linker.job_filesystem import Captured, Files
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.site_profile.plan import make_plan, make_plans
from deployer.connected.site_profile.profile import Profile
from deployer.contract import hostfiles, json_records, memory_copies
from deployer.contract import plan as plans
from deployer.contract.errors import Refused, Unknown, UsageError
from deployer.contract.findings import Finding
from deployer.contract.manifest import PLANS_PREFIX, VARIANTS_PREFIX, WHEELS_PREFIX
from deployer.contract.plan import APP, VARIANT, WHEELS, Plan
from deployer.contract.verdict import Checked, judged
from deployer.system.verify import begin, opened

_T = TypeVar("_T")

#: Of one program and what it loads.
PROCESS_RULES: tuple[Callable[[Process], Iterator[Finding]], ...] = (
    linking.program, linking.missing, linking.versions, linking.broken, linking.plugins,
    mpi.family, mpi.library, mpi.linked, mpi.cxx, mpi.symbols, mpi.tree, mpi.gtl, mpi.doubled, mpi.serial,
    fabric.library, fabric.provider, python.syntax, python.modules,
)  # fmt: skip
#: Of the bundle and the site as a whole.
RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    command.startable, site.captured, site.age, cpu.architecture, cpu.instructions, gpu.usable, gpu.kernels,
    gpu.toolkit, runtimes.allowed, runtimes.startable, runtimes.entering, space.room, wheels.tags, pmi.offered,
    pmi.spoken, pmi.truncated, fabric.slow, fabric.nccl, places.bound, places.working, proof.outside, layout.memory,
    inside.startable,
)  # fmt: skip

#: Every code that a finding can have; each has a section in docs/rules.md.
CODES = (
    "bind.place",
    "command.missing", "command.unclear",
    "cpu.instructions",
    "fabric.library", "fabric.missing", "fabric.nccl", "fabric.provider", "fabric.tcp",
    "facts.cpu", "facts.fabric", "facts.gpu", "facts.mpi", "facts.plan", "facts.pmi", "facts.runtime",
    "gpu.capability", "gpu.driver", "gpu.kernels", "gpu.none",
    "import.missing",
    "job.memory",
    "launch.inside", "launcher.missing",
    "link.broken", "link.missing", "link.plugin", "link.program", "link.version",
    "mpi.cxx", "mpi.escape", "mpi.family", "mpi.gtl", "mpi.mixed",
    "mpi.rpath", "mpi.serial", "mpi.symbols", "mpi.unused",
    "node.architecture",
    "plan.refused", "pmi.not-offered", "pmi.truncated", "pmi.unmet", "profile.age", "proof.outside",
    "python.syntax",
    "rehearse.none",
    "runtime.bind-path", "runtime.fuse", "runtime.namespaces", "runtime.none", "runtime.old", "runtime.start",
    "runtime.unsupported",
    "space.files", "space.purge", "space.size",
    "wheel.tags",
    "workdir.missing", "workdir.read-only",
)  # fmt: skip


class Verdict(NamedTuple):
    """What ``check`` says of a bundle at a site, and why.

    Attributes:
        bundle: NAME:VERSION.
        site: the site profile's name.
        partition: the partition; empty without a plan.
        checked: the verdict and its reasons.
        plan: the plan; None if there can be none.
    """

    bundle: str
    site: str
    partition: str
    checked: Checked
    plan: Plan | None = None

    @property
    def way(self) -> str:
        """Return what ranks would run with; empty without a plan."""
        return self.plan.way if self.plan else ""

    def record(self) -> json_records.Record:
        where = {"bundle": self.bundle, "site": self.site, "partition": self.partition, "way": self.way}
        order = [{"name": name, "against": against} for name, against in self.plan.order] if self.plan else []
        copies = memory_copies.reasons(self.plan) if self.plan else []
        return {**where, "runtimes": order, "memory_copies": copies, **self.checked.record()}


def check(
    path: str,
    profile: Profile,
    partition: str | None = None,
    accept: Sequence[str] = (),
    cache: Path | None = None,
    today: dt.date | None = None,
) -> Verdict:
    """Return the verdict on the bundle ``path`` at a site. Facts of files are kept in the folder ``cache``. With
    ``today`` the age of the site's facts is looked at: plans have none of it, since the same input makes the same plan.

    That there can be no plan for the site is a finding. Raises IntegrityError, and UsageError for a partition or a code
    that there is not.
    """
    known_codes(accept)
    with opened(path) as stream:
        return _verdict(begin(stream, path), profile, partition, accept, cache, today)


def check_all(
    path: str,
    profile: Profile,
    accept: Sequence[str] = (),
    cache: Path | None = None,
    today: dt.date | None = None,
) -> list[Verdict]:
    """Return the verdicts on the bundle ``path`` on each partition of a site, as ``check`` does."""
    known_codes(accept)
    with opened(path) as stream:
        bundle = begin(stream, path)
        return [_verdict(bundle, profile, name, accept, cache, today) for name in profile.partitions or [None]]


def plan(
    path: str,
    profile: Profile,
    partition: str | None = None,
    accept: Sequence[str] = (),
    cache: Path | None = None,
    today: dt.date | None = None,
) -> tuple[Plan, Checked]:
    """Return the plan for the bundle ``path`` at a site, with the verdict in it, and the verdict.

    Raises as ``make_plan`` does, IntegrityError, and UsageError for a code that there is not.
    """
    known_codes(accept)
    with opened(path) as stream:
        bundle = begin(stream, path)
        manifest = bundle.manifest
        made = make_plan(profile, f"{manifest.name}:{manifest.version}", manifest.mpi, partition)
        checked = check_plan(bundle, profile, made, accept, cache, today)
    return made._replace(checked=checked), checked


def all_plans(path: str, profile: Profile, accept: Sequence[str] = (), cache: Path | None = None) -> list[Plan]:
    """Return the plans for the bundle ``path`` on all partitions of a site that can have one, each with its verdict.

    Raises as ``make_plans`` does, IntegrityError, and UsageError for a code that there is not.
    """
    known_codes(accept)
    with opened(path) as stream:
        bundle = begin(stream, path)
        manifest = bundle.manifest
        made = make_plans(profile, f"{manifest.name}:{manifest.version}", manifest.mpi)
        return [plan._replace(checked=check_plan(bundle, profile, plan, accept, cache)) for plan in made]


def check_carried(bundle: Bundle, profile: Profile, cache: Path | None = None) -> list[Verdict]:
    """Return the verdicts on the plans that a bundle carries for a site, with what was accepted when it was packed.

    The first plan's verdict is the first; empty if the bundle carries no plan for this site. Other plans are skipped if
    the profile lacks their partition. Raises IntegrityError, and UsageError if it lacks that of the first plan.
    """
    first, others = f"{PLANS_PREFIX}{profile.name}.json", f"{PLANS_PREFIX}{profile.name}/"
    names = [member.name for member in bundle.manifest.members]
    found = []
    for name in [each for each in names if each == first] + [each for each in names if each.startswith(others)]:
        carried = plans.read(b"".join(map(bundle.read, bundle.member_segments(name))), name)
        if name != first and carried.partition not in profile.partitions:
            continue
        accepted = carried.checked.accepted if carried.checked else []
        checked = check_plan(bundle, profile, carried, accepted, cache)
        checked = judged([*checked.findings, *rehearsed.required(bundle, profile)], accepted)
        found.append(Verdict(carried.bundle, carried.site, carried.partition, checked, carried))
    return found


def verdict_of(plan: Plan) -> Verdict | None:
    """Return the verdict that is in a plan; None: it was not checked."""
    return Verdict(plan.bundle, plan.site, plan.partition, plan.checked, plan) if plan.checked else None


def accepted(bundle: Bundle, site: str) -> set[str]:
    """Return the codes that the first plan which a bundle carries for a site accepts; empty if there is none."""
    name = f"{PLANS_PREFIX}{site}.json"
    if all(member.name != name for member in bundle.manifest.members):
        return set()
    checked = plans.read(b"".join(map(bundle.read, bundle.member_segments(name))), name).checked
    return set(checked.accepted) if checked else set()


def _verdict(
    bundle: Bundle,
    profile: Profile,
    partition: str | None,
    accept: Sequence[str],
    cache: Path | None,
    today: dt.date | None,
) -> Verdict:
    label = f"{bundle.manifest.name}:{bundle.manifest.version}"
    try:
        made = make_plan(profile, label, bundle.manifest.mpi, partition)
        checked = check_plan(bundle, profile, made, accept, cache, today)
        checked = judged([*checked.findings, *rehearsed.required(bundle, profile)], accept)
    except (Refused, Unknown) as error:
        found = [site.no_plan(profile, error)]
        found += inside.suggested(found, profile.name, bundle.manifest, index.of_image(bundle, cache))
        return Verdict(label, profile.name, partition or "", judged(found, accept))
    return Verdict(label, made.site, made.partition, checked, made._replace(checked=checked))


def check_plan(
    bundle: Bundle,
    profile: Profile,
    plan: Plan,
    accept: Sequence[str] = (),
    cache: Path | None = None,
    today: dt.date | None = None,
) -> Checked:
    """Return the verdict on a bundle under a plan that was made for it from ``profile``. Raises IntegrityError."""
    manifest = bundle.manifest
    if manifest.is_data:
        return judged([], accept)
    files = index.of_image(bundle, cache)
    overlays = _overlays(bundle, plan, cache)
    host = host_files(profile, plan)
    place = profile.partition(plan.partition)[1]
    image_for, node_is = cpu.machines(place, manifest)
    known = (bool(host) or not plan.mpi) and image_for == node_is  # else there is nothing to link
    linked = jobs.link(manifest, plan, files, overlays, host) if known else []
    processes = {id(each): each for job in linked for each in job.processes}
    case = Case(profile, place, plan, manifest, files, overlays, list(processes.values()), today)
    findings = [finding for rule in RULES for finding in rule(case)]
    findings += [finding for job in linked for finding in programs.of_job(job, case, PROCESS_RULES)]
    if any(finding.code == command.CODE for finding in findings):  # it says more of the same
        findings = [finding for finding in findings if finding.code != "link.program"]
    if plan.launch != plans.INSIDE:
        findings += inside.suggested(findings, plan.site, manifest, files)
    return judged(list(dict.fromkeys(findings)), accept)


def known_codes(codes: Sequence[str]) -> None:
    """Raise UsageError unless there is a rule for each of the codes."""
    unknown = set(codes) - set(CODES)
    if unknown:
        raise UsageError(f"no rule has the code {', '.join(sorted(unknown))}", f"codes: {', '.join(CODES)}")


def _overlays(bundle: Bundle, plan: Plan, cache: Path | None) -> list[Overlay]:
    """Return the bundle's Python packages as the job will see them, the variant first; and its app folder."""
    found = []
    variant = f"{VARIANTS_PREFIX}{plan.abi}/" if plan.abi else None
    for prefix, target in ((variant, VARIANT), (WHEELS_PREFIX, WHEELS)):
        names = [m.name for m in bundle.manifest.members if prefix and m.name.startswith(prefix)]
        if names:
            found.append(Overlay(f"{target}/lib", index.of_wheels(bundle, names, cache)))
    return [*found, Overlay(APP, index.of_app(bundle))]


def host_files(profile: Profile, plan: Plan) -> Mapping[str, Files]:
    """Return the site's files that the plan binds, by their folder in the container; empty if the MPI was not captured.

    The folder of single host files maps to all files of the site, by their paths there.
    """
    captured = profile.files_of(plan)
    if plan.mpi and plan.mpi.library not in captured.files.keys() | captured.links.keys():
        return {}
    found = {
        bind.target: Captured(_below(captured.files, bind.source), _below(captured.links, bind.source))
        for bind in plan.binds
    }
    if plan.host:
        found[hostfiles.FOLDER] = Captured(captured.files, captured.links)
    return found


def _below(found: Mapping[str, _T], folder: str) -> dict[str, _T]:
    """Return what stands below a folder, by its path there."""
    return {path[len(folder) :]: value for path, value in found.items() if path.startswith(folder + "/")}
