"""check: predict on the laptop, from captured facts, whether a bundle will run on a site before it is sent.

The image, the chosen variant's wheels and the site's libraries are linked dry, as the loader would do in the container.
The rules then examine the files that would be mapped. Nothing is unpacked or run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from deployer.connected.check.checking import USUAL, Checking
from deployer.connected.check.rules import (
    command,
    cpu,
    fabric,
    gpu,
    inside,
    linking,
    mpi,
    places,
    pmi,
    programs,
    python,
    runtimes,
    site,
    spawn,
    uncaptured,
    variables,
)
from deployer.connected.check.rules.case import Case
from deployer.connected.linker import commands, index, jobs
from deployer.connected.linker.index import Bundle, Index
from deployer.connected.linker.job_filesystem import Files
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.site_profile.plan import make_plan, make_plans
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base import json_records, records
from deployer.contract.base.errors import Refused, Unknown, UsageError
from deployer.contract.bundle import limits
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle.job import find
from deployer.contract.bundle.manifest import PLANS_PREFIX
from deployer.contract.bundle.sealed_file import member_segments
from deployer.contract.rules import hostfiles
from deployer.contract.rules.findings import WARNING, Finding
from deployer.contract.rules.verdict import Checked, judged
from deployer.contract.site import memory_copies
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import APP, VARIANT, WHEELS, Plan
from deployer.system.trust.verify import begin, opened

_T = TypeVar("_T")

#: Rules for one program and the files that it loads.
PROCESS_RULES: tuple[Callable[[Process], Iterator[Finding]], ...] = (
    linking.machine, linking.program, linking.missing, linking.versions, linking.broken, linking.plugins,
    mpi.family, mpi.library, mpi.linked, mpi.cxx, mpi.symbols, mpi.tree, mpi.gtl, mpi.doubled, mpi.serial,
    fabric.library, fabric.provider, python.syntax, python.modules,
)  # fmt: skip
#: Rules for a bundle with one of its jobs, and for the site.
RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    command.startable, command.readable, site.captured, site.age, cpu.architecture, cpu.instructions, gpu.requested,
    gpu.vendor, gpu.usable, gpu.kernels, gpu.toolkit, runtimes.allowed, runtimes.startable, runtimes.entering,
    places.room, python.tags, pmi.offered, pmi.spoken, pmi.truncated, fabric.slow, fabric.nccl, places.bound,
    places.working, runtimes.proving, site.numbers, inside.startable,
)  # fmt: skip
#: Rules for one program on a partition's nodes.
NODE_RULES: tuple[Callable[[Case, Process], Iterator[Finding]], ...] = (cpu.code, cpu.page_size)
#: Rules for the programs that a job starts, with the job's layout.
JOB_RULES: tuple[Callable[[LinkedJob, Case], Iterator[Finding]], ...] = (
    pmi.kept, runtimes.private, spawn.of_job, variables.of_job,
)  # fmt: skip

#: Every code that a finding can have; docs/rules.md has a section for each.
CODES = (
    "bind.place", "command.missing", "command.unclear", "cpu.instructions", "cpu.page-size", "data.missing",
    "fabric.library", "fabric.missing", "fabric.nccl", "fabric.provider", "fabric.tcp", "facts.cpu", "facts.fabric",
    "facts.gpu", "facts.mpi", "facts.plan", "facts.pmi", "facts.runtime", "gpu.capability", "gpu.count", "gpu.driver",
    "gpu.kernels", "gpu.none", "gpu.vendor", "import.missing", "job.layout", "job.memory", "launch.inside",
    "launcher.missing", "link.broken", "link.machine", "link.missing", "link.plugin", "link.program", "link.version",
    "mpi.cxx", "mpi.escape", "mpi.family", "mpi.gtl", "mpi.mixed", "mpi.rpath", "mpi.serial", "mpi.spawn",
    "mpi.symbols", "mpi.unused", "mpi.variable", "node.architecture", "plan.refused", "pmi.not-offered",
    "pmi.truncated", "pmi.unmet", "profile.age", "proof.outside", "python.syntax", "queue.nodes", "queue.time",
    "runtime.bind-path", "runtime.fuse", "runtime.namespaces", "runtime.none", "runtime.old",
    "runtime.private", "runtime.start", "runtime.unsupported", "space.files", "space.purge", "space.size", "wheel.tags",
    "workdir.missing", "workdir.read-only",
)  # fmt: skip


class Verdict(NamedTuple):
    """The verdict of ``check`` on a bundle at a site, with its reasons.

    Attributes:
        bundle: NAME:VERSION.
        site: the site profile's name.
        partition: the partition; empty without a plan.
        checked: the verdict and its reasons.
        plan: the plan; None if no plan is possible.
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

    def of_job(self, name: str) -> "Verdict":
        """Return the verdict on one job, also within the plan."""
        plan = self.plan
        if plan and plan.checked:
            plan = plan._replace(checked=plan.checked.of_job(name))
        return self._replace(checked=self.checked.of_job(name), plan=plan)

    def record(self) -> json_records.Record:
        where = {"bundle": self.bundle, "site": self.site, "partition": self.partition, "way": self.way}
        order = [{"name": name, "against": against} for name, against in self.plan.order] if self.plan else []
        copies = memory_copies.reasons(self.plan) if self.plan else []
        return {**where, "runtimes": order, "memory_copies": copies, **records.plain(self.checked)}


def check_all(path: str, profile: Profile, how: Checking = USUAL, job: str | None = None) -> list[Verdict]:
    """Return the verdicts on the bundle ``path`` on each partition of a site; with ``job``, only on this job.

    Plans do not depend on the age of the site's facts, because the same input must produce the same plan. If no plan is
    possible for a partition, that is a finding. Raises IntegrityError, and UsageError for an unknown code or job.
    """
    known_codes(how.accept)
    with opened(path) as stream:
        bundle = begin(stream, path)
        if job is not None:
            find(bundle.manifest.name, bundle.manifest.jobs, job)
        verdicts = [_verdict(bundle, profile, name, how) for name in profile.partitions or [None]]
    return [verdict.of_job(job) for verdict in verdicts] if job is not None else verdicts


def all_plans(path: str, profile: Profile, how: Checking = USUAL) -> list[Plan]:
    """Return the plans for the bundle ``path`` on all partitions of a site that allow one, each with its verdict.

    Raises the errors of ``make_plans``, IntegrityError, and UsageError for an unknown code.
    """
    known_codes(how.accept)
    with opened(path) as stream:
        bundle = begin(stream, path)
        manifest = bundle.manifest
        possible = make_plans(profile, f"{manifest.name}:{manifest.version}", manifest.mpi)
        return [plan._replace(checked=check_plan(bundle, profile, plan, how)) for plan in possible]


def check_carried(bundle: Bundle, profile: Profile, cache: Path | None = None) -> list[Verdict]:
    """Return the verdicts on the plans that a bundle carries for a site, with the codes accepted at packing.

    The first plan's verdict is the first; the result is empty if the bundle carries no plan for this site. Other plans
    are skipped if the profile lacks their partition. Raises IntegrityError, and UsageError if the profile lacks the
    first plan's partition.
    """
    first, others = f"{PLANS_PREFIX}{profile.name}.json", f"{PLANS_PREFIX}{profile.name}/"
    names = [member.name for member in bundle.manifest.members]
    verdicts = []
    for name in [name for name in names if name == first] + [name for name in names if name.startswith(others)]:
        carried = _carried(bundle, name)
        if name != first and carried.partition not in profile.partitions:
            continue
        accepted = carried.checked.accepted if carried.checked else []
        checked = check_plan(bundle, profile, carried, Checking(accepted, cache))
        to_send = carried._replace(checked=carried.checked and _to_send(carried.checked))
        verdicts.append(Verdict(carried.bundle, carried.site, carried.partition, _to_send(checked), to_send))
    return verdicts


def _carried(bundle: Bundle, name: str) -> Plan:
    return plans.read(b"".join(map(bundle.read, member_segments(bundle.manifest, name))), name)


def _to_send(checked: Checked) -> Checked:
    """Return a verdict in which findings on limits are warnings, because jobs may be sent with different numbers."""
    own = [finding._replace(severity=WARNING) for finding in checked.findings if finding.code in limits.CODES]
    return judged([*checked.without(limits.CODES).findings, *own], checked.accepted)._replace(deployer=checked.deployer)


def verdict_of(plan: Plan) -> Verdict | None:
    """Return the part of a plan's verdict that no option of a job can change; None if the plan was not checked."""
    checked = plan.checked and plan.checked.without(limits.CODES)
    return Verdict(plan.bundle, plan.site, plan.partition, checked, plan._replace(checked=checked)) if checked else None


def accepted(bundle: Bundle, site: str) -> set[str]:
    """Return the codes accepted by the first plan that a bundle carries for a site; empty if it carries none."""
    name = f"{PLANS_PREFIX}{site}.json"
    if all(member.name != name for member in bundle.manifest.members):
        return set()
    checked = _carried(bundle, name).checked
    return set(checked.accepted) if checked else set()


def _verdict(bundle: Bundle, profile: Profile, partition: str | None, how: Checking) -> Verdict:
    label = f"{bundle.manifest.name}:{bundle.manifest.version}"
    try:
        plan = make_plan(profile, label, bundle.manifest.mpi, partition)
        checked = check_plan(bundle, profile, plan, how)
    except (Refused, Unknown) as error:
        findings = [site.no_plan(profile, error)]
        findings += inside.suggested(findings, profile.name, bundle.manifest, index.of_image(bundle, how.cache))
        return Verdict(label, profile.name, partition or "", judged(findings, how.accept))
    return Verdict(label, plan.site, plan.partition, checked, plan._replace(checked=checked))


def check_plan(
    bundle: Bundle, profile: Profile, plan: Plan, how: Checking = USUAL, image: Index | None = None
) -> Checked:
    """Return the verdict on a bundle under a plan that was made for it from ``profile``. Raises IntegrityError.

    Args:
        image: the index of its image, if it was read before.
    """
    manifest = bundle.manifest
    if manifest.is_data:
        return judged([], how.accept)
    files = image or index.of_image(bundle, how.cache)
    overlays = _overlays(bundle, plan, how.cache)
    host = host_files(profile, plan)
    place = profile.partition(plan.partition)[1]
    image_for, node_is = cpu.machines(place, manifest)
    captured = bool(host) or not plan.mpi
    linked_jobs = jobs.link(manifest, plan, files, overlays, host) if image_for == node_is else jobs.unlinked(manifest)
    of_kit = list(cpu.kit(bundle, plan.partition, node_is))
    findings = {}
    for linked in linked_jobs:
        own = manifest._replace(jobs=[linked.job] if linked.job else [])
        case = Case(profile, place, plan, own, files, overlays, list(linked.processes) if captured else [], how.today)
        rules: programs.Rules = uncaptured.RULES
        if captured:
            rules = [*PROCESS_RULES, *(partial(rule, case) for rule in NODE_RULES)]
        findings[linked.job.name if linked.job else ""] = [*of_kit, *_of_job(linked, case, rules)]
    of_all = set.intersection(*map(set, findings.values()))  # those on every job appear once, without a job
    of_each = [
        finding._replace(job="" if finding in of_all else job) for job, own in findings.items() for finding in own
    ]
    return judged(list(dict.fromkeys(of_each)), how.accept)


def _of_job(linked: LinkedJob, case: Case, rules: programs.Rules) -> Iterator[Finding]:
    """Yield the findings that apply if this job runs."""
    findings = [finding for rule in RULES for finding in rule(case)]
    findings += programs.of_job(linked, case, rules)
    findings += [finding for rule in JOB_RULES for finding in rule(linked, case)]
    if any(finding.code == commands.CODE for finding in findings):  # more detailed than link.program
        findings = [finding for finding in findings if finding.code != "link.program"]
    yield from findings
    if case.plan.inside:
        yield from inside.suggested(findings, case.plan.site, case.manifest, case.image)


def known_codes(codes: Sequence[str]) -> None:
    """Raise UsageError unless every code has a rule."""
    unknown = set(codes) - set(CODES)
    if unknown:
        raise UsageError(f"no rule has the code {', '.join(sorted(unknown))}", f"codes: {', '.join(CODES)}")


def _overlays(bundle: Bundle, plan: Plan, cache: Path | None) -> list[Overlay]:
    """Return the bundle's Python packages as the job will see them, variant first, and the app folder."""
    members = {overlay.name: overlay.member for overlay in bundle.manifest.overlays}
    places = [(f"{manifests.VARIANTS}/{plan.abi}", VARIANT), (manifests.WHEELS, WHEELS)]
    overlays = [
        Overlay(f"{target}/{manifests.LIB}", index.of_overlay(bundle, members[name], cache))
        for name, target in places
        if name in members
    ]
    return [*overlays, Overlay(APP, index.of_app(bundle))]


def host_files(profile: Profile, plan: Plan) -> Mapping[str, Files]:
    """Return the site's files that the plan binds, by container folder; empty if the MPI was not captured.

    The folder of single host files maps to all files of the site, by their paths on the site.
    """
    captured = profile.files_of(plan)
    if plan.mpi and plan.mpi.library not in captured.files.keys() | captured.links.keys():
        return {}
    sources = {bind.target: bind.source for bind in plan.binds}
    sources |= {hostfiles.FOLDER: ""} if plan.host else {}
    return {
        target: index.of_site(_below(captured.files, source), _below(captured.links, source))
        for target, source in sources.items()
    }


def _below(entries: Mapping[str, _T], folder: str) -> dict[str, _T]:
    """Return the entries below a folder, by relative path with its leading slash."""
    return {path[len(folder) :]: value for path, value in entries.items() if path.startswith(folder + "/")}
