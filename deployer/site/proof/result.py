"""result.json: the request, the proof of each rank, the findings, and the payload's own result.

Pure: records in, record out. ``site.jobs.result`` reads the records from the job's folder.
"""

import functools
import signal as signals
import time
from collections import Counter, OrderedDict
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import Refused, SpaceError
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import counted
from deployer.contract.bundle.job import seconds
from deployer.contract.proof import evidence, measurements
from deployer.contract.proof.evidence import START_OPTION_KEY, HostRecord, Launch, NetworkRecord, ProbeRecord
from deployer.contract.proof.payload import MappedLibrary, PayloadRecord
from deployer.contract.rules.findings import ERROR, WARNING, Finding, drifted, errors, finding
from deployer.contract.site.network import common
from deployer.contract.site.plan import CANARY, CANARY_TEXT, NATIVE
from deployer.site.proof import causes, memory, nodes, rank_record
from deployer.site.proof.causes import Told

SCHEMA = "result"

#: The subject of findings about the job as a whole.
WHOLE_JOB = "job"

#: The steps of a job, in the order of the script.
HOSTS = "hosts"
NETWORK = "network"
STAGED = "stage"
PROBED = "probe"
PAYLOAD = "payload"

REFUSED = Refused.exit_code
#: The exit code of a job that another one can continue.
SAVED = rank_record.SAVED

#: Task and CPUs of each rank, by host.
_ByHost = Dict[str, List[Tuple[int, FrozenSet[int]]]]


class StepOutcome(NamedTuple):
    """How a step ended.

    Attributes:
        step: the step's name.
        exit_code: srun's exit code.
        signal: the signal that the script received meanwhile (a name such as TERM), or None.
        job_id: the scheduler's number of the job.
        started: when the job, not the step, started; seconds since the epoch.
        ended: when the step ended; seconds since the epoch, with fractions.
        module: the environment module that could not be loaded, or None.
        reason: the step's own message about its failure, or None.
        launcher: the launcher that is missing, or None.
        full: the error message about a full disk of the job's folder, or None.
        setup: the command of the site's setup that failed, or None.
    """

    step: str
    exit_code: int
    signal: Optional[str]
    job_id: str
    started: int
    ended: float
    module: Optional[str] = None
    reason: Optional[str] = None
    launcher: Optional[str] = None
    full: Optional[str] = None
    setup: Optional[str] = None


class Evidence(NamedTuple):
    """All records in a job's folder.

    Attributes:
        hosts: records of the nodes.
        probes: records of the ranks before the payload.
        payloads: records of the ranks' payloads.
        logs: the last lines of a rank's probe, by task.
        payload: the JSON that the job wrote, or None.
        payload_error: why that JSON could not be read, or None.
        roots: the containers' output when they read the canary, by host.
        image: what is wrong with the image, if a step failed.
        told: what the end of the step's output shows, if it failed.
        networks: the nodes' records of the network between them.
    """

    hosts: List[HostRecord]
    probes: List[ProbeRecord]
    payloads: List[PayloadRecord]
    logs: Mapping[int, str]
    payload: Any
    payload_error: Optional[str]
    roots: Mapping[str, str] = {}
    image: Sequence[Finding] = ()
    told: Told = Told()
    networks: Sequence[NetworkRecord] = ()


class Judgement(NamedTuple):
    """The result of a step.

    Attributes:
        record: the result record.
        exit_code: 0: the script continues; otherwise it ends with this code.
    """

    record: Record
    exit_code: int


def assemble(launch: Launch, found: Evidence, outcome: StepOutcome, steps: Sequence[Record] = ()) -> Judgement:
    """Evaluate a job after ``outcome.step``; ``steps`` has the ends of its steps, in seconds after its start.

    After the payload, the exit code is that of the rank that failed first; it is 3 if the payload ended well but the
    evidence has an error. After an earlier step that found no error, the record's exit code is None, with the finding
    ``job.unfinished``: this record remains if the job is killed before it can write its end.
    """
    found = _from_outside(found)
    findings = nodes.grouped(judge(launch, found, outcome), {item.host for item in found.hosts})
    wrong = errors(findings)
    if any(item.outside for item in found.payloads):
        findings.append(finding("proof.outside", WHOLE_JOB))
    findings += decided(launch)
    if launch.straddling:
        findings.append(finding("layout.numa", WHOLE_JOB, reason=launch.straddling))
    if launch.runtime == NATIVE:
        findings.append(finding("runtime.native", WHOLE_JOB))
    exit_code: Optional[int] = None
    if outcome.step == PAYLOAD:
        exit_code = payload_exit(found.payloads, outcome) or (SpaceError.exit_code if outcome.full else 0)
        exit_code = exit_code or (REFUSED if wrong else SAVED if _has_saved(launch, found.payloads) else 0)
    elif outcome.signal and wrong:
        exit_code = 128 + signals.SIGTERM
    elif outcome.full:
        exit_code = SpaceError.exit_code
    elif outcome.step == STAGED and outcome.exit_code:
        exit_code = outcome.exit_code
    elif wrong:
        exit_code = REFUSED
    else:
        findings.append(finding("job.unfinished", WHOLE_JOB, why=""))
    sizes = sorted({probe.size for probe in found.probes if probe.size is not None})
    if any(item.unset for item in found.payloads):  # the payload's world differs from the probe's
        sizes = []
    record = json_records.stamped(
        SCHEMA,
        {
            "bundle": launch.bundle,
            "version": launch.version,
            "digest": launch.digest if launch.runtime != NATIVE else None,  # the image did not run
            "site": launch.site,
            "job": launch.job,
            "job_id": outcome.job_id,
            "runtime": launch.runtime,
            START_OPTION_KEY: launch.start_option,
            "nodes": launch.nodes,
            "ranks_per_node": launch.ranks_per_node,
            "world_size": sizes[0] if sizes else None,
            "workers": launch.workers,
            "exit_code": exit_code,
            "started": _utc(outcome.started),
            "seconds": max(0, int(outcome.ended - outcome.started)),
            "waited": max(0, outcome.started - launch.created),
            "steps": steps,
            "check": _check(launch),
            "findings": [item.record() for item in findings],
            "ranks": _ranks(launch, found),
            "network": _shown_network(found),
            "payload": found.payload,
        },
    )
    return Judgement(record, exit_code or 0)


def _from_outside(found: Evidence) -> Evidence:
    """Return the evidence, with facts observed from outside in place of those that ranks could not prove."""
    probes = list(found.probes)
    for item in found.payloads:
        seen = item.outside
        if seen is not None:
            size = None if seen.alone else seen.size
            place = (item.task, item.host, rank_record.DONE, None, None, seen.rank, size, None, None)
            probes.append(ProbeRecord(*place, seen.threads, seen.cpus))
    return found._replace(probes=probes)


def decided(launch: Launch) -> List[Finding]:
    """Return, as notes, the users' decisions against ``check``: accepted codes, and a forced run.

    The rest of the result shows the consequences.
    """
    notes = []
    for item in launch.checked.findings if launch.checked else ():
        accepted = launch.checked is not None and item.code in launch.checked.accepted
        if accepted or (launch.forced and item.severity == ERROR):
            code = "check.accepted" if accepted else "check.forced"
            notes.append(finding(code, item.subject, rule=item.code, message=item.message, remedy=item.remedy))
    return notes


def _check(launch: Launch) -> Optional[Record]:
    """Return the verdict and codes of ``check``, or None if the plan has none."""
    if launch.checked is None:
        return None
    return {
        "verdict": launch.checked.verdict,
        "codes": sorted({item.code for item in launch.checked.findings}),
        "accepted": launch.checked.accepted,
        "forced": launch.forced,
    }


def payload_exit(payloads: Sequence[PayloadRecord], outcome: StepOutcome) -> int:
    """Return the exit code of the rank that failed first, as a shell reports it.

    srun's own code is the highest of all tasks. If srun ends ranks with a signal, that code hides the rank that failed.
    """
    first = first_failed(payloads)
    if first is not None and outcome.exit_code != 0:
        return first.exit_code or 128 + (first.signal or 0)
    if outcome.exit_code == 0 and outcome.signal is not None:
        return 128 + signals.SIGTERM  # it was stopped, even if it ended in good order
    return outcome.exit_code


def _has_saved(launch: Launch, payloads: Sequence[PayloadRecord]) -> bool:
    """Return whether ranks saved their state to be continued, and none failed."""
    codes = {item.exit_code for item in payloads}
    return launch.warn is not None and SAVED in codes and codes <= {0, SAVED}


def first_failed(payloads: Sequence[PayloadRecord]) -> Optional[PayloadRecord]:
    """Return the record of the rank that failed first; one that exited by itself precedes any that a signal ended."""
    failed = [item for item in payloads if item.exit_code or item.signal]
    return min(failed, key=lambda item: (item.signal is not None, item.ended or 0, item.task)) if failed else None


def judge(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    """Return the findings, the first cause first; later steps are checked only if the job reached them."""
    findings: List[Finding] = []
    if outcome.module is not None:
        return [finding("job.module", WHOLE_JOB, module=outcome.module)]
    if outcome.setup is not None:
        return [finding("job.setup", WHOLE_JOB, command=outcome.setup)]
    if outcome.launcher is not None:
        return [finding("job.launcher", WHOLE_JOB, launcher=outcome.launcher)]
    if outcome.full is not None:
        findings.append(finding("job.space", WHOLE_JOB, reason=outcome.full))
    findings += found.image
    findings += _stopped(launch, found.told, outcome)
    findings += _hosts(launch, found, outcome)
    roots = _roots(launch, found, outcome)
    if outcome.step == STAGED and outcome.exit_code != 0 and not outcome.signal and not roots:
        findings.append(
            finding("stage.failed", WHOLE_JOB, reason=_why(found, outcome) or "exit %d" % outcome.exit_code)
        )
    findings += _network(launch, found, outcome)
    findings += roots
    if outcome.step in (PROBED, PAYLOAD):
        findings += _probe(launch, found, outcome)
    if outcome.step == PAYLOAD:
        findings += _payload(launch, found, outcome)
    return findings


def _why(found: Evidence, outcome: StepOutcome) -> str:
    """Return why a step failed, in its own words and those of its log."""
    own, log = outcome.reason or "", found.told.reason or ""
    return own if log in own else ": ".join(filter(None, (own, log)))


def _stopped(launch: Launch, told: Told, outcome: StepOutcome) -> List[Finding]:
    if outcome.signal is None:
        return []
    state = next((state for state in causes.ENDS if state in told.ends), "")
    if state not in ("", "CANCELLED", "TIMEOUT"):
        return [causes.ended(WHOLE_JOB, state, told)]
    passed = int(outcome.ended - outcome.started)
    limit = seconds(launch.time)
    # The job's clock starts slightly before the script's.
    if state == "TIMEOUT" or (not state and passed >= limit - 5):
        why = "; an error before that: " + told.error if told.error else ""
        return [finding("job.time-limit", WHOLE_JOB, limit=launch.time, why=why)]
    sure = "" if state else ", or something else did: its log has no reason"
    return [finding("job.stopped", WHOLE_JOB, signal=outcome.signal, seconds=passed, sure=sure)]


def _host(item: HostRecord) -> List[Tuple[int, str]]:
    """Return the sort key of records, without other fields, which may not be comparable."""
    return nodes.order(item.host)


def _hosts(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    names = [item.host for item in found.hosts]
    if outcome.step == HOSTS and outcome.exit_code != 0:
        why = _why(found, outcome)
        counts: Dict[str, Any] = {"exit": outcome.exit_code, "seen": len(names), "asked": launch.nodes}
        return [finding("hosts.failed", WHOLE_JOB, why=": " + why if why else "", **counts)]
    findings = []
    if len(names) != launch.nodes:
        counts = {"asked": launch.nodes, "seen": len(names), "hosts": nodes.shown(names) or "none"}
        findings.append(finding("hosts.count", WHOLE_JOB, launch.scheduler, **counts))
    counted_names = sorted(Counter(names).items(), key=lambda each: nodes.order(each[0]))
    twice = [pair for pair in counted_names if pair[1] > 1]
    findings += [finding("hosts.name", name, launch.scheduler, count=count) for name, count in twice]
    for item in sorted(found.hosts, key=_host):
        if item.identity is not None or not launch.mpi:  # otherwise its MPI is missing, which is reported below
            findings += [finding("hosts.missing", item.host, path=path) for path in item.missing]
    if launch.mpi:
        first: Optional[HostRecord] = None
        for item in sorted(found.hosts, key=_host):
            here: Dict[str, Any] = {"library": launch.mpi.library, "identity": item.identity}
            if item.identity is None:
                findings.append(finding("mpi.host-missing", item.host, library=launch.mpi.library))
            elif launch.mpi.identity and item.identity != launch.mpi.identity:
                findings.append(finding("mpi.host-drift", item.host, expected=launch.mpi.identity, **here))
            elif first is None:
                first = item
            elif item.identity != first.identity:
                other: Dict[str, Any] = {"other": first.host, "expected": first.identity}
                findings.append(finding("mpi.host-differs", item.host, **here, **other))
            for path, identity in sorted(item.changed.items()):
                findings.append(drifted(item.host, path, identity, launch.mpi.libraries.get(path, "another")))
    return findings


def _network(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    """Return the findings about the network between the nodes of a job without MPI."""
    if not launch.without_mpi or launch.nodes == 1 or len(found.hosts) != launch.nodes:
        return []
    first = found.hosts[0].host if found.hosts else ""
    if common(first, {item.host: item.addresses for item in found.hosts}, launch.interface or "") is None:
        wanted = f"no network over {launch.interface}" if launch.interface else "no network"
        return [finding("net.none", WHOLE_JOB, wanted=wanted)]
    if not found.networks and outcome.step != NETWORK:
        return []
    findings = [
        finding("net.unreachable" if item.peers is None else "net.port", item.host, reason=item.reason)
        for item in sorted(found.networks, key=lambda each: (each.peers is None, nodes.order(each.host)))
        if item.reason is not None
    ]
    here = {item.host for item in found.networks}
    findings += [finding("net.silent", item.host) for item in sorted(found.hosts, key=_host) if item.host not in here]
    met = {name for item in found.networks for name in item.peers or ()}
    if not findings and len(met) != launch.nodes - 1:
        findings.append(finding("net.count", WHOLE_JOB, met=len(met) + 1, asked=launch.nodes))
    if outcome.step == NETWORK and outcome.exit_code != 0 and not findings:
        findings.append(finding("net.failed", WHOLE_JOB, exit=outcome.exit_code))
    return findings


def _shown_network(found: Evidence) -> Optional[Record]:
    """Return the measurements of the nodes of a job without MPI; None if there are none."""
    measured = [item for item in found.networks if item.bytes_per_second is not None]
    if not measured:
        return None
    slowest = min(measured, key=lambda item: item.bytes_per_second or 0)
    return {
        "nodes": len(measured) + 1,
        "latency_us": round(max(item.nanoseconds or 0 for item in measured) / 1e3, 1),
        "bandwidth_mb_s": round((slowest.bytes_per_second or 0) / 1e6, 1),
        "slowest": slowest.host,
    }


def _roots(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    findings = []
    for host, text in sorted(found.roots.items(), key=lambda each: nodes.order(each[0])):
        if text != CANARY_TEXT:
            said = " / ".join(text.strip().splitlines()[-2:]) or "it ended without a message"
            # With the canary, the container started, but the file was missing or different.
            code = "runtime.root" if CANARY in text else causes.of_runtime(said)
            findings.append(finding(code, host, launch.scheduler, runtime=launch.runtime, said=said))
    begun = found.roots and outcome.step not in (HOSTS, STAGED)  # in these, a node reads it only if all else is right
    missing = launch.nodes - len(found.roots) if begun else 0
    if not findings and missing:
        left = "the step failed with exit code %d, and %s left no record"
        said = left % (outcome.exit_code, counted(missing, "node"))
        findings.append(finding("runtime.start", WHOLE_JOB, runtime=launch.runtime, said=said))
    return findings


def _probe(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    if not found.probes and outcome.step == PAYLOAD:
        return [finding("probe.skipped", WHOLE_JOB)]
    by_rank, seen = _ByRank(launch.scheduler), _Seen.of(found)
    if len(found.probes) != launch.ranks:
        by_rank.alone("probe.silent", WHOLE_JOB, count=launch.ranks - len(found.probes), asked=launch.ranks)
    for probe in found.probes:
        _judge_probe(launch, seen, probe, by_rank)
    sizes = {probe.size for probe in found.probes if probe.size is not None}
    if launch.without_mpi and sizes - {launch.ranks}:
        by_rank.alone("net.world", WHOLE_JOB, size=_worlds(sizes), asked=launch.ranks)
    elif sizes == {1} and launch.ranks > 1:
        by_rank.alone("mpi.singletons", WHOLE_JOB, count=len(found.probes))
    elif sizes and sizes != {launch.ranks}:
        by_rank.alone("mpi.world-size", WHOLE_JOB, size=_worlds(sizes), asked=launch.ranks)
    by_host = _by_host(found.probes)
    findings = by_rank.findings() + _overlaps(launch.scheduler, by_host)
    if launch.straddling is None:
        findings += _crossings(found.hosts, by_host)
    if outcome.step == PROBED and outcome.exit_code != 0 and not errors(findings):
        why = _why(found, outcome)
        findings.append(finding("probe.failed", WHOLE_JOB, exit=outcome.exit_code, why=": " + why if why else ""))
    return findings


class _Seen(NamedTuple):
    """Lookup tables for ranks, because a job may have a hundred thousand ranks.

    Attributes:
        identities: the identity of the MPI library, by host.
        provider: libfabric's provider.
        logs: the last line of the probe's log, by task.
    """

    identities: Dict[str, Optional[str]]
    provider: Optional[str]
    logs: Mapping[int, str]

    @staticmethod
    def of(found: Evidence) -> "_Seen":
        # The library reports its provider on one rank only; all ranks have the same.
        provider = next((item.provider for item in found.probes if item.provider), None)
        return _Seen({item.host: item.identity for item in found.hosts}, provider, found.logs)


def _worlds(sizes: Set[int]) -> str:
    """Return the sizes of worlds in words: ``1 rank``, ``1 or 3 ranks``."""
    *others, last = sorted(sizes)
    return " or ".join([*map(str, others), counted(last, "rank")])


def _judge_probe(launch: Launch, seen: _Seen, probe: ProbeRecord, by_rank: "_ByRank") -> None:
    """Add the findings about one rank in the container."""
    if probe.stage != rank_record.DONE:
        if probe.measures:
            note = functools.partial(by_rank.add, probe.task)
            measurements.explain(probe.measures.shm, launch.ranks_per_node, note)
            measurements.low(probe.measures.limits, note)
        by_rank.add(probe.task, "probe.unfinished", stage=probe.stage, last=seen.logs.get(probe.task, "no output"))
    if probe.library is None:
        if launch.mpi and probe.reason is not None:
            by_rank.add(probe.task, "mpi.unmapped", reason=probe.reason)
    elif not _judge_library(launch, seen, probe.task, probe.host, probe.library, by_rank):
        says = probe.library.says
        if launch.mpi and says is not None and not says.startswith(launch.mpi.says):
            by_rank.add(probe.task, "mpi.version", says=says, expected=launch.mpi.says)
    # "tcp;ofi_rxm" is tcp with a layer over it.
    if launch.provider and probe.provider and probe.provider.split(";")[0] != launch.provider.split(";")[0]:
        by_rank.add(probe.task, "mpi.provider", provider=probe.provider, expected=launch.provider)
    if probe.measures:
        note = functools.partial(by_rank.add, probe.task)
        measurements.judge(probe.measures, launch.expects, seen.provider or launch.provider, note)
    cpus = len(evidence.parse_cpus(probe.cpus))
    if cpus < launch.threads:
        by_rank.add(probe.task, "layout.pinning", threads=launch.threads, cpus=cpus)


def _by_host(probes: Sequence[ProbeRecord]) -> _ByHost:
    """Sort the ranks by host, in order."""
    found: _ByHost = {}
    for probe in probes:
        found.setdefault(probe.host, []).append((probe.task, evidence.parse_cpus(probe.cpus)))
    return OrderedDict(sorted(found.items()))


def _overlaps(scheduler: str, by_host: _ByHost) -> List[Finding]:
    """Return a finding per node whose ranks share a CPU."""
    findings = []
    for host, ranks in by_host.items():
        users: Dict[int, Set[int]] = {}
        for task, cpus in ranks:
            for cpu in cpus:
                users.setdefault(cpu, set()).add(task)
        shared = {cpu for cpu, tasks in users.items() if len(tasks) > 1}
        if shared:
            tasks = set().union(*(users[cpu] for cpu in shared))
            who, where = rank_record.render_numbers(tasks), rank_record.render_numbers(shared)
            findings.append(finding("layout.overlap", host, scheduler, ranks=who, cpus=where))
    return findings


def _crossings(hosts: Sequence[HostRecord], by_host: _ByHost) -> List[Finding]:
    """Return a finding per node on which the kernel runs ranks across NUMA domains without need."""
    findings = []
    for item in hosts:
        domains = [evidence.parse_cpus(cpus) for cpus in item.numa]
        tasks = set()
        for task, cpus in by_host.get(item.host, ()):
            fits = any(len(cpus) <= len(domain) for domain in domains)
            if fits and not any(cpus <= domain for domain in domains):
                tasks.add(task)
        if tasks:
            findings.append(finding("layout.crossing", item.host, ranks=rank_record.render_numbers(tasks)))
    return findings


def _payload(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    by_rank, seen = _ByRank(launch.scheduler), _Seen.of(found)
    expected = launch.mpi is not None or any(probe.library for probe in found.probes)
    limits = {probe.task: probe.measures.limits for probe in found.probes if probe.measures}
    for item in found.payloads:
        for library in item.libraries:
            _judge_library(launch, seen, item.task, item.host, library, by_rank)
        _judge_world(launch, item, by_rank)
        if launch.mpi and item.outside and item.outside.static and not item.libraries:
            by_rank.add(item.task, "mpi.static", path=item.outside.static, library=launch.mpi.library)
        elif expected and not item.libraries and outcome.exit_code == 0:
            by_rank.add(item.task, "payload.mpi-unseen")
        if item.refusal:
            by_rank.add(item.task, "itex.inactive", reason=item.refusal)
        if item.exit_code or item.signal:
            note = functools.partial(by_rank.add, item.task)
            measurements.explain(item.shm, launch.ranks_per_node, note, item.signal == signals.SIGBUS)
            line = found.told.error if item.exit_code else None  # a rank that a signal ended has printed no line
            measurements.reached(limits.get(item.task, {}), item.signal, line or "", note)
    findings = by_rank.findings() + _apart(launch, found, outcome) + _sockets(launch, found)
    first = first_failed(found.payloads)
    stopped = first is not None and first.refusal is not None
    failed = outcome.exit_code != 0 and outcome.signal is None and not stopped
    if failed:
        findings += memory.explain(found.payloads, first, found.told.ends.get("OUT_OF_MEMORY"), WHOLE_JOB)
    for code, line in found.told.causes:
        cause = finding(code, WHOLE_JOB, line=line)
        # A payload that ended well may have caught the error and lost what it tried to write.
        findings.append(cause if failed else cause._replace(severity=WARNING))
    if failed:
        findings.append(finding("payload.failed", WHOLE_JOB, how=_how(first, outcome, found.told)))
    if found.payload_error is not None:
        findings.append(finding("payload.result", WHOLE_JOB, reason=found.payload_error))
    return findings


def _judge_world(launch: Launch, item: PayloadRecord, by_rank: "_ByRank") -> None:
    """Add findings about a second MPI in a process, and about a rank that forms its own MPI world."""
    if item.together:
        by_rank.add(item.task, "mpi.twice", paths=" and ".join(item.together))
    if launch.ranks == 1:
        return
    if item.outside and item.outside.alone:
        by_rank.add(item.task, "mpi.alone", reason=item.outside.alone)
    elif item.unset:
        by_rank.add(item.task, "mpi.unset", names=", ".join(item.unset))


def _how(first: Optional[PayloadRecord], outcome: StepOutcome, told: Told) -> str:
    """Return how the payload failed."""
    said = told.last if first else told.reason or told.last
    last = "" if said is None else "; last line: " + said
    if first is None:
        code = "exit code %d" % outcome.exit_code
        if outcome.exit_code > 128:
            code += f" ({signal_name(outcome.exit_code - 128)})"
        if said is not None:
            return f"the launcher failed with {code} before a rank recorded why{last}"
        return f"the launcher failed with {code}, and no rank recorded a reason"
    who = "rank %d on %s " % (first.task, first.host)
    if first.signal is None:
        return who + "failed first, with exit code %d%s" % (first.exit_code or 0, last)
    return who + f"was ended by {signal_name(first.signal)}{last}"


def signal_name(number: int) -> str:
    """Return SIGTERM for 15 and so on."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return "signal %d" % number


def _apart(launch: Launch, found: Evidence, outcome: StepOutcome) -> List[Finding]:
    """Return the finding about ranks without MPI that were not connected to each other.

    It is an error if they formed separate worlds; otherwise they may be independent on purpose. A mapped MPI proves
    nothing if the job does not use MPI, because Debian's PyTorch is linked with MPI.
    """
    seen = [item.communication for item in found.payloads if item.communication is not None]
    alone = [item for item in seen if item.connected is False]
    mpi = not launch.without_mpi and any(item.libraries for item in found.payloads)
    if mpi or launch.ranks == 1 or outcome.exit_code != 0 or len(alone) != len(seen) or len(seen) < 2:
        return []
    made = finding("net.alone", WHOLE_JOB, count=len(alone))
    return [made if any(item.itself for item in alone) else made._replace(severity=WARNING)]


def _sockets(launch: Launch, found: Evidence) -> List[Finding]:
    """Return the finding about NCCL that does not use the fast network between nodes."""
    reports = [item.communication.nccl for item in found.payloads if item.communication]
    slow = [item for item in reports if item and item.network == "Socket"]
    return [finding("net.sockets", WHOLE_JOB, fast=launch.fast)] if launch.fast and slow and launch.nodes > 1 else []


def _judge_library(
    launch: Launch, seen: _Seen, task: int, host: str, library: MappedLibrary, by_rank: "_ByRank"
) -> bool:
    """Add a finding if ``library`` is not the host's; return whether one was added."""
    expected = seen.identities.get(host)
    if launch.mpi is None or expected is None or library.identity == expected:
        return False
    found = {"path": library.path, "identity": library.identity, "expected": expected}
    by_rank.add(task, "mpi.not-host-library", library=launch.mpi.library, **found)
    return True


def _ranks(launch: Launch, found: Evidence) -> List[Record]:
    """Return the known facts about each rank; the payload's records take precedence over the probe's."""
    probes = {item.task: item for item in found.probes}
    payloads = {item.task: item for item in found.payloads}
    seen = _Seen.of(found)
    ranks: List[Record] = []
    for task in sorted(set(probes) | set(payloads)):
        probe, payload = probes.get(task), payloads.get(task)
        host = probe.host if probe else payloads[task].host
        expected = seen.identities.get(host)
        library = _telling(payload.libraries, expected) if payload and payload.libraries else None
        seen_in = "payload" if library else "probe"
        if library is None and probe:
            library = probe.library
        says = library.says if library else None
        if library and says is None and probe and probe.library and probe.library.identity == library.identity:
            says = probe.library.says
        ranks.append(
            {
                "rank": probe.rank if probe and probe.rank is not None else task,
                "task": task,
                "host": host,
                "mpi_library": says,
                "mpi_identity": library.identity if library else None,
                "mpi_path": library.path if library else None,
                "mpi_seen_in": seen_in if library else None,
                "host_mpi_identity": expected,
                "provider": seen.provider,
                "shared_memory": probe.shared_memory if probe else None,
                "thread_level": probe.thread_level if probe else None,
                "threads": probe.threads if probe else launch.threads,
                "cpus": probe.cpus if probe else None,
                **measurements.shown(probe.measures if probe else None),
                "itex": records.plain(payload.itex) if payload else None,
                "communication": payload.communication.shown() if payload and payload.communication else None,
                "exit_code": payload.exit_code if payload else None,
                "signal": payload.signal if payload else None,
            }
        )
    return ranks


def _telling(libraries: Sequence[MappedLibrary], expected: Optional[str]) -> MappedLibrary:
    """Return the library to show: one that is not the host's if there is one, else the first."""
    return next((item for item in libraries if expected is not None and item.identity != expected), libraries[0])


def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class _ByRank:
    """Findings about ranks. Equal findings become one, so that a thousand ranks do not make a thousand lines."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._found: Dict[Tuple[str, str], Tuple[Finding, Set[int]]] = OrderedDict()

    def add(self, task: int, code: str, **values: Any) -> None:
        made = finding(code, "", self._scheduler, **values)
        self._found.setdefault((code, made.message), (made, set()))[1].add(task)

    def alone(self, code: str, subject: str, **values: Any) -> None:
        made = finding(code, subject, self._scheduler, **values)
        self._found[(code, made.message)] = (made, set())

    def findings(self) -> List[Finding]:
        found = []
        for made, tasks in self._found.values():
            if tasks:
                made = made._replace(
                    subject="rank{} {}".format("s" if len(tasks) > 1 else "", rank_record.render_numbers(tasks))
                )
            found.append(made)
        return found
