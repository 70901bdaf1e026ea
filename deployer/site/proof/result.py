"""result.json: the request, the proof of each rank, the findings, and the payload's own result.

Pure: records in, record out. ``site.jobs.result`` reads the records from the job's folder.
"""

import signal as signals
import time
from collections import Counter
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import Refused, SpaceError
from deployer.contract.base.grouping import grouped
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import counted
from deployer.contract.bundle.job import seconds
from deployer.contract.proof import measurements
from deployer.contract.proof.evidence import (
    OPTION_KEY,
    HostRecord,
    Launch,
    NetworkRecord,
    ProbeRecord,
    ReceivedImage,
    parse_cpus,
)
from deployer.contract.proof.payload import MappedLibrary, PayloadRecord
from deployer.contract.rules.findings import ERROR, WARNING, Finding, drifted, errors, finding
from deployer.contract.site import speed
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


#: Task and CPUs of each rank of a node.
_Ranks = List[Tuple[int, FrozenSet[int]]]


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
        absent: the nodes without a record, if the batch system can list them.
        received: how each node got the staged image, by host, if the nodes send it on to each other.
    """

    hosts: Sequence[HostRecord]
    probes: Sequence[ProbeRecord] = ()
    payloads: Sequence[PayloadRecord] = ()
    logs: Mapping[int, str] = {}
    payload: Any = None
    payload_error: Optional[str] = None
    roots: Mapping[str, str] = {}
    image: Sequence[Finding] = ()
    told: Told = Told()
    networks: Sequence[NetworkRecord] = ()
    absent: Sequence[str] = ()
    received: Mapping[str, ReceivedImage] = {}


def assemble(launch: Launch, evidence: Evidence, outcome: StepOutcome, steps: Sequence[Record] = ()) -> Record:
    """Return the result record of a job after ``outcome.step``; ``steps`` has the ends of its steps, in seconds.

    After the payload, the exit code is that of the rank that failed first; it is 3 if the payload ended well but the
    evidence has an error. After an earlier step that found no error, the exit code is None, with the finding
    ``job.unfinished``: this record remains if the job is killed before it can write its end.
    """
    job = _Job(launch, evidence, outcome)
    found = job.findings()
    findings = [item._replace(severity=WARNING) if item.code in launch.accept else item for item in found]
    exit_code = job.exit_code(bool(errors(findings)))
    if any(item.outside for item in evidence.payloads):
        findings.append(finding("proof.outside", WHOLE_JOB))
    findings += _decided(launch)
    if launch.straddling:
        findings.append(finding("layout.numa", WHOLE_JOB, reason=launch.straddling))
    if launch.runtime == NATIVE:
        findings.append(finding("runtime.native", WHOLE_JOB))
    if exit_code is None:
        findings.append(finding("job.unfinished", WHOLE_JOB, why=""))
    # A payload with unset variables has another world than the probe.
    sizes = [] if any(item.unset for item in evidence.payloads) else job.sizes
    return json_records.stamped(
        SCHEMA,
        {
            "bundle": launch.bundle,
            "version": launch.version,
            "digest": launch.digest if launch.runtime != NATIVE else None,  # the image did not run
            "site": launch.site,
            "job": launch.job,
            "job_id": outcome.job_id,
            "task": launch.task,
            "parameters": launch.parameters,
            "runtime": launch.runtime,
            OPTION_KEY: launch.start_option,
            "nodes": launch.nodes,
            "ranks_per_node": launch.ranks_per_node,
            "world_size": sizes[0] if sizes else None,
            "workers": launch.workers,
            "exit_code": exit_code,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(outcome.started)),
            "seconds": max(0, int(outcome.ended - outcome.started)),
            "waited": max(0, outcome.started - launch.created),
            "steps": steps,
            "check": _check(launch),
            "findings": [item.record() for item in findings],
            "ranks": job.ranks(),
            "image": _arrival(evidence.received),
            "network": speed.shown(job.connections, launch.network),
            "payload": evidence.payload,
        },
    )


def _arrival(received: Mapping[str, ReceivedImage]) -> Optional[Record]:
    """Return the totals of all nodes; None: no node sends the image on."""
    if not received:
        return None
    return {
        "from_node": sum(came.from_node for came in received.values()),
        "from_file": sum(came.from_file for came in received.values()),
        "readers": sum(came.from_file > 0 for came in received.values()),
    }


def already_wrong(launch: Launch, known: Evidence) -> List[Finding]:
    """Return the errors of single nodes that are certain while other nodes have not answered."""
    job = _Job(launch, known, StepOutcome(HOSTS, 0, None, "", 0, 0))
    found = [*job.of_nodes(), *job.roots()]
    if 2 * len(known.hosts) <= launch.nodes:  # the others may show that these are the right ones
        found = [item for item in found if item.code != "mpi.host-differs"]
    return errors(nodes.grouped(found, job.identities))


def _decided(launch: Launch) -> Iterator[Finding]:
    """Yield, as notes, the users' decisions against ``check``: accepted codes, and a forced run.

    The rest of the result shows the consequences.
    """
    for item in launch.checked.findings if launch.checked else ():
        accepted = launch.checked is not None and item.code in launch.checked.accepted
        if accepted or (launch.forced and item.severity == ERROR):
            code = "check.accepted" if accepted else "check.forced"
            yield finding(code, item.subject, rule=item.code, message=item.message, remedy=item.remedy)


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


class _Job:
    """A job after a step: the request, the evidence, and how the step ended."""

    def __init__(self, launch: Launch, evidence: Evidence, outcome: StepOutcome) -> None:
        if outcome.step == HOSTS and outcome.reason and outcome.reason.split()[0] in {n.host for n in evidence.hosts}:
            outcome = outcome._replace(step=STAGED)  # the node has its facts, and failed to prepare the image
        self.launch, self.evidence, self.outcome = launch, evidence, outcome
        #: The ranks before the payload. Ranks of an image without Python were observed from outside instead.
        self.probes = [*evidence.probes, *filter(None, map(_from_outside, evidence.payloads))]
        #: The sizes of MPI worlds, and of jobs without MPI.
        self.sizes = sorted({probe.size for probe in self.probes if probe.size is not None})
        #: libfabric's provider. The library reports it on one rank only; all ranks have the same.
        self.provider = next((probe.provider for probe in self.probes if probe.provider), None)
        #: Whether the payload is expected to load an MPI library.
        self.expects_mpi = launch.mpi is not None or any(probe.library for probe in self.probes)
        #: The measured connections between nodes.
        self.connections = list(_connections(self.probes, evidence.networks))
        #: The identity of the MPI library, by host.
        self.identities = {node.host: node.identity for node in evidence.hosts}
        failed = [item for item in evidence.payloads if item.exit_code or item.signal]
        failed.sort(key=lambda item: (item.signal is not None, item.ended or 0, item.task))
        #: The rank that failed first, or None; one that exited by itself precedes any that a signal ended.
        self.first_failed = failed[0] if failed else None

    def exit_code(self, wrong: bool) -> Optional[int]:
        """Return the job's exit code, or None if it continues; ``wrong``: there are findings of errors."""
        outcome = self.outcome
        full = SpaceError.exit_code if outcome.full else 0
        if outcome.step == PAYLOAD:
            return self._payload_exit() or full or (REFUSED if wrong else SAVED if self._has_saved() else 0)
        if outcome.signal and wrong:
            return 128 + signals.SIGTERM
        return full or (outcome.exit_code if outcome.step == STAGED else 0) or (REFUSED if wrong else None)

    def _payload_exit(self) -> int:
        """Return the exit code of the rank that failed first, as a shell reports it.

        srun's own code is the highest of all tasks. If srun ends ranks with a signal, that code hides the rank that
        failed.
        """
        first, outcome = self.first_failed, self.outcome
        if first is not None and outcome.exit_code != 0:
            return first.exit_code or 128 + (first.signal or 0)
        if outcome.exit_code == 0 and outcome.signal is not None:
            return 128 + signals.SIGTERM  # it was stopped, even if it ended in good order
        return outcome.exit_code

    def _has_saved(self) -> bool:
        """Return whether ranks saved their state to be continued, and none failed."""
        codes = {item.exit_code for item in self.evidence.payloads}
        return self.launch.warn is not None and SAVED in codes and codes <= {0, SAVED}

    def findings(self) -> List[Finding]:
        """Return the findings, the first cause first; later steps are checked only if the job reached them."""
        outcome = self.outcome
        if outcome.module is not None:
            return [self._finding("job.module", module=outcome.module)]
        if outcome.setup is not None:
            return [self._finding("job.setup", command=outcome.setup)]
        if outcome.launcher is not None:
            return [self._finding("job.launcher", launcher=outcome.launcher)]
        full = [] if outcome.full is None else [self._finding("job.space", reason=outcome.full)]
        stopped = self._stopped()
        findings = [*full, *self.evidence.image, *stopped]
        if stopped and outcome.signal is None and outcome.step != PAYLOAD:
            return findings  # a node was lost: what the others report is a consequence
        findings += self._hosts()
        roots = self.roots()
        if outcome.step == STAGED and outcome.exit_code != 0 and not outcome.signal and not roots:
            findings.append(self._finding("stage.failed", reason=self._why() or "exit %d" % outcome.exit_code))
        for host, came in sorted(self.evidence.received.items(), key=lambda pair: nodes.order(pair[0])):
            if came.reason:
                findings.append(self._finding("stage.read", host, reason=came.reason))
        findings += self._network() + roots
        if outcome.step in (PROBED, PAYLOAD):
            probed = list(self._probed())
            if outcome.step == PROBED and outcome.exit_code != 0 and not errors(probed):
                probed.append(self._finding("probe.failed", exit=outcome.exit_code, why=self._why(": ")))
            findings += probed
        if outcome.step == PAYLOAD:
            findings += self._payload()
        return nodes.grouped(findings, self.identities)

    def _finding(self, code: str, subject: str = WHOLE_JOB, **values: Any) -> Finding:
        return finding(code, subject, self.launch.scheduler, **values)

    def _why(self, before: str = "") -> str:
        """Return why a step failed, in its own words and those of its log, after ``before`` unless it is empty."""
        own, log = self.outcome.reason or "", self.evidence.told.reason or ""
        why = own if log in own else ": ".join(filter(None, (own, log)))
        return why and before + why

    def _stopped(self) -> List[Finding]:
        launch, told, outcome = self.launch, self.evidence.told, self.outcome
        if outcome.signal is None:  # srun ends a step whose node is lost, and with it the ranks of the other nodes
            lost = outcome.exit_code != 0 and causes.NODE_FAIL in told.ends
            return [causes.ended(WHOLE_JOB, causes.NODE_FAIL, told)] if lost else []
        state = next((state for state in causes.ENDS if state in told.ends), "")
        if state not in ("", "CANCELLED", "TIMEOUT"):
            return [causes.ended(WHOLE_JOB, state, told)]
        passed = int(outcome.ended - outcome.started)
        # The job's clock starts slightly before the script's.
        if state == "TIMEOUT" or (not state and passed >= seconds(launch.time) - 5):
            why = "; an error before that: " + told.error if told.error else ""
            return [self._finding("job.time-limit", limit=launch.time, why=why)]
        sure = "" if state else ", or something else did: its log has no reason"
        return [self._finding("job.stopped", signal=outcome.signal, seconds=passed, sure=sure)]

    def _hosts(self) -> Iterator[Finding]:
        launch, outcome = self.launch, self.outcome
        names = [node.host for node in self.evidence.hosts]
        absent = nodes.shown(self.evidence.absent)
        counts: Dict[str, Any] = {"asked": launch.nodes, "seen": len(names), "absent": absent and f", not {absent}"}
        if outcome.step == HOSTS and outcome.exit_code != 0:
            yield self._finding("hosts.failed", exit=outcome.exit_code, why=self._why(": "), **counts)
            return
        if len(names) != launch.nodes and not (outcome.step == STAGED and outcome.exit_code):
            yield self._finding("hosts.count", hosts=nodes.shown(names) or "none", **counts)
        for name, count in sorted(Counter(names).items(), key=lambda pair: nodes.order(pair[0])):
            if count > 1:
                yield self._finding("hosts.name", name, count=count)
        yield from self.of_nodes()

    def of_nodes(self) -> Iterator[Finding]:
        """Yield the findings about what is missing or different on the nodes."""
        launch, in_order = self.launch, sorted(self.evidence.hosts, key=lambda node: nodes.order(node.host))
        for node in in_order:
            if node.identity is not None or not launch.mpi:  # otherwise its MPI is missing, which is reported below
                for path in node.missing:
                    yield self._finding("hosts.missing", node.host, path=path)
        yield from self._host_mpi(in_order)

    def _host_mpi(self, hosts: Sequence[HostRecord]) -> Iterator[Finding]:
        """Yield the findings about the files of the site's MPI on the nodes."""
        mpi = self.launch.mpi
        if mpi is None:
            return
        counts = Counter(node.identity for node in hosts if node.identity)
        usual = max(counts, key=lambda each: counts[each], default=None)  # of several, the first node's
        first = next((node.host for node in hosts if node.identity == usual), "")
        for node in hosts:
            here: Dict[str, Any] = {"library": mpi.library, "identity": node.identity}
            if node.identity is None:
                yield self._finding("mpi.host-missing", node.host, library=mpi.library)
            elif mpi.identity and node.identity != mpi.identity:
                yield self._finding("mpi.host-drift", node.host, expected=mpi.identity, **here)
            elif node.identity != usual and not mpi.identity:
                yield self._finding("mpi.host-differs", node.host, other=first, expected=usual, **here)
            for path, identity in sorted(node.changed.items()):
                yield drifted(node.host, path, identity, mpi.libraries.get(path, "another"))

    def _network(self) -> List[Finding]:
        """Return the findings about the network between the nodes of a job without MPI."""
        launch, outcome = self.launch, self.outcome
        hosts, networks = self.evidence.hosts, self.evidence.networks
        if not launch.without_mpi or launch.nodes == 1 or len(hosts) != launch.nodes:
            return []
        first = hosts[0].host if hosts else ""
        if common(first, {node.host: node.addresses for node in hosts}, launch.interface or "") is None:
            wanted = f"no network over {launch.interface}" if launch.interface else "no network"
            return [self._finding("net.none", wanted=wanted)]
        if not networks and outcome.step != NETWORK:
            return []
        findings = [
            self._finding("net.unreachable" if item.peers is None else "net.port", item.host, reason=item.reason)
            for item in sorted(networks, key=lambda item: (item.peers is None, nodes.order(item.host)))
            if item.reason is not None
        ]
        silent = {node.host for node in hosts} - {item.host for item in networks}
        findings += [self._finding("net.silent", host) for host in sorted(silent, key=nodes.order)]
        met = {name for item in networks for name in item.peers or ()}
        if not findings and len(met) != launch.nodes - 1:
            findings.append(self._finding("net.count", met=len(met) + 1, asked=launch.nodes))
        if outcome.step == NETWORK and outcome.exit_code != 0 and not findings:
            findings.append(self._finding("net.failed", exit=outcome.exit_code))
        return [*findings, *self._speed()]

    def _speed(self) -> Iterator[Finding]:
        """Yield the finding about a network between the nodes that is too slow."""
        launch, network = self.launch, self.launch.network
        expected = network and (network.tcp if launch.without_mpi else network.mpi)
        if network is None or expected is None:
            return
        way = "TCP"
        if not launch.without_mpi:
            name = launch.mpi.family if launch.mpi else "the image's MPI"
            way = f"{name} with libfabric's provider {self.provider}" if self.provider else name
        values = speed.judge(self.connections, expected, network.limit, way, network.fast or launch.fast)
        if values:
            yield self._finding("network.slow", **values)

    def roots(self) -> List[Finding]:
        """Return the findings about what containers showed on the nodes when they read the canary."""
        launch, outcome, roots = self.launch, self.outcome, self.evidence.roots
        findings = []
        for host, text in sorted(roots.items(), key=lambda pair: nodes.order(pair[0])):
            if text != CANARY_TEXT:
                end = " / ".join(text.strip().splitlines()[-2:]) or "it ended without a message"
                # With the canary, the container started, but the file was missing or different.
                code = "runtime.root" if CANARY in text else causes.of_runtime(end)
                findings.append(self._finding(code, host, runtime=launch.runtime, said=end))
        # In the first steps, a node reads it only if everything else is right.
        missing = launch.nodes - len(roots) if roots and outcome.step not in (HOSTS, STAGED) else 0
        if not findings and missing:
            left = "the step failed with exit code %d, and %s left no record"
            end = left % (outcome.exit_code, counted(missing, "node"))
            findings.append(self._finding("runtime.start", runtime=launch.runtime, said=end))
        return findings

    def _probed(self) -> Iterator[Finding]:
        launch, count, sizes = self.launch, len(self.probes), self.sizes
        if not count and self.outcome.step == PAYLOAD:
            yield self._finding("probe.skipped")
            return
        if count != launch.ranks:
            yield self._finding("probe.silent", count=launch.ranks - count, asked=launch.ranks)
        for probe in self.probes:
            yield from self._probed_rank(probe)
        if sizes and sizes != [launch.ranks]:
            code = "net.world" if launch.without_mpi else "mpi.singletons" if sizes == [1] else "mpi.world-size"
            size = " or ".join([*map(str, sizes[:-1]), counted(sizes[-1], "rank")])
            yield self._finding(code, size=size, asked=launch.ranks, count=count)
        if not launch.without_mpi:
            yield from self._speed()
        by_host = grouped((probe.host, (probe.task, parse_cpus(probe.cpus))) for probe in self.probes)
        for host, ranks in sorted(by_host.items()):
            yield from self._overlap(host, ranks)
        if launch.straddling is None:
            for node in self.evidence.hosts:
                yield from self._crossing(node, by_host.get(node.host, []))

    def _probed_rank(self, probe: ProbeRecord) -> Iterator[Finding]:
        """Yield the findings about a rank in the container."""
        launch, library, measures = self.launch, probe.library, probe.measures
        rank = nodes.rank(probe.task)
        if probe.stage != rank_record.DONE:
            if measures:
                yield from _noted(rank, measurements.explain(measures.shm, launch.ranks_per_node))
                yield from _noted(rank, measurements.low(measures.limits))
            last = self.evidence.logs.get(probe.task, "no output")
            yield self._finding("probe.unfinished", rank, stage=probe.stage, last=last)
        others = self._not_the_hosts(rank, probe.host, [library] if library else [])
        yield from others
        if launch.mpi and library is None and probe.reason is not None:
            yield self._finding("mpi.unmapped", rank, reason=probe.reason)
        says = library.says if library and not others else None
        if launch.mpi and says is not None and not says.startswith(launch.mpi.says):
            yield self._finding("mpi.version", rank, says=says, expected=launch.mpi.says)
        # "tcp;ofi_rxm" is tcp with a layer over it.
        if launch.provider and probe.provider and probe.provider.split(";")[0] != launch.provider.split(";")[0]:
            yield self._finding("mpi.provider", rank, provider=probe.provider, expected=launch.provider)
        if measures:
            provider = self.provider or launch.provider
            yield from _noted(rank, measurements.judge(measures, launch.expects, provider))
        cpus = len(parse_cpus(probe.cpus))
        if cpus < launch.threads:
            yield self._finding("layout.pinning", rank, threads=launch.threads, cpus=cpus)

    def _not_the_hosts(self, rank: str, host: str, libraries: Sequence[MappedLibrary]) -> List[Finding]:
        """Return a finding for each of a rank's MPI libraries that is not its host's."""
        mpi, expected = self.launch.mpi, self.identities.get(host)
        if mpi is None or expected is None:
            return []
        known = {"library": mpi.library, "expected": expected}
        return [
            self._finding("mpi.not-host-library", rank, path=library.path, identity=library.identity, **known)
            for library in libraries
            if library.identity != expected
        ]

    def _overlap(self, host: str, ranks: _Ranks) -> Iterator[Finding]:
        """Yield the finding about a node whose ranks share a CPU."""
        users: Dict[int, Set[int]] = {}
        for task, cpus in ranks:
            for cpu in cpus:
                users.setdefault(cpu, set()).add(task)
        shared = {cpu: tasks for cpu, tasks in users.items() if len(tasks) > 1}
        if shared:
            tasks = rank_record.render_numbers(set().union(*shared.values()))
            yield self._finding("layout.overlap", host, ranks=tasks, cpus=rank_record.render_numbers(set(shared)))

    def _crossing(self, node: HostRecord, ranks: _Ranks) -> Iterator[Finding]:
        """Yield the finding about a node on which the kernel runs ranks across NUMA domains without need."""
        domains = [parse_cpus(cpus) for cpus in node.numa]
        tasks = {
            task
            for task, cpus in ranks
            if any(len(cpus) <= len(domain) for domain in domains) and not any(cpus <= domain for domain in domains)
        }
        if tasks:
            yield self._finding("layout.crossing", node.host, ranks=rank_record.render_numbers(tasks))

    def _payload(self) -> Iterator[Finding]:
        outcome, told, first = self.outcome, self.evidence.told, self.first_failed
        limits = {probe.task: probe.measures.limits for probe in self.probes if probe.measures}
        for item in self.evidence.payloads:
            yield from self._payload_rank(item, limits.get(item.task, {}))
        yield from self._communication()
        stopped = first is not None and first.refusal is not None
        failed = outcome.exit_code != 0 and outcome.signal is None and not stopped
        if failed:
            yield from memory.explain(self.evidence.payloads, first, told.ends.get("OUT_OF_MEMORY"), WHOLE_JOB)
        for code, line in told.causes:
            cause = self._finding(code, line=line)
            # A payload that ended well may have caught the error and lost what it tried to write.
            yield cause if failed else cause._replace(severity=WARNING)
        if failed:
            yield self._finding("payload.failed", how=self._how())
        if self.evidence.payload_error is not None:
            yield self._finding("payload.result", reason=self.evidence.payload_error)

    def _payload_rank(self, item: PayloadRecord, limits: Mapping[str, int]) -> Iterator[Finding]:
        """Yield the findings about a rank's payload; ``limits`` are those of its processes."""
        launch, outside, rank = self.launch, item.outside, nodes.rank(item.task)
        yield from self._not_the_hosts(rank, item.host, item.libraries)
        if item.together:
            yield self._finding("mpi.twice", rank, paths=" and ".join(item.together))
        if launch.ranks > 1 and outside and outside.alone:
            yield self._finding("mpi.alone", rank, reason=outside.alone)
        elif launch.ranks > 1 and item.unset:
            yield self._finding("mpi.unset", rank, names=", ".join(item.unset))
        if launch.mpi and outside and outside.static and not item.libraries:
            yield self._finding("mpi.static", rank, path=outside.static, library=launch.mpi.library)
        elif self.expects_mpi and not item.libraries and self.outcome.exit_code == 0:
            yield self._finding("payload.mpi-unseen", rank)
        if item.refusal:
            yield self._finding("itex.inactive", rank, reason=item.refusal)
        if item.exit_code or item.signal:
            sure = item.signal == signals.SIGBUS
            yield from _noted(rank, measurements.explain(item.shm, launch.ranks_per_node, sure))
            # A rank that a signal ended has printed no line.
            line = (self.evidence.told.error or "") if item.exit_code else ""
            yield from _noted(rank, measurements.reached(limits, item.signal, line))

    def _communication(self) -> Iterator[Finding]:
        """Yield the findings about ranks without MPI that were not connected, and about NCCL without the fast network.

        Unconnected ranks are an error if they formed separate worlds; otherwise they may be independent on purpose. A
        mapped MPI proves nothing if the job does not use MPI, because Debian's PyTorch is linked with MPI.
        """
        launch, payloads = self.launch, self.evidence.payloads
        seen = [item.communication for item in payloads if item.communication is not None]
        mpi = not launch.without_mpi and any(item.libraries for item in payloads)
        separate = len(seen) > 1 and all(item.connected is False for item in seen)
        if separate and not mpi and launch.ranks > 1 and self.outcome.exit_code == 0:
            alone = self._finding("net.alone", count=len(seen))
            yield alone if any(item.itself for item in seen) else alone._replace(severity=WARNING)
        sockets = any(item.nccl and item.nccl.network == "Socket" for item in seen)
        if launch.fast and sockets and launch.nodes > 1:
            yield self._finding("net.sockets", fast=launch.fast)

    def _how(self) -> str:
        """Return how the payload failed."""
        first, outcome, told = self.first_failed, self.outcome, self.evidence.told
        line = told.last if first else told.reason or told.last
        last = "" if line is None else "; last line: " + line
        if first is None:
            code = "exit code %d" % outcome.exit_code
            if outcome.exit_code > 128:
                code += f" ({_signal_name(outcome.exit_code - 128)})"
            if line is not None:
                return f"the launcher failed with {code} before a rank recorded why{last}"
            return f"the launcher failed with {code}, and no rank recorded a reason"
        rank = "rank %d on %s " % (first.task, first.host)
        if first.signal is None:
            return rank + "failed first, with exit code %d%s" % (first.exit_code or 0, last)
        return rank + f"was ended by {_signal_name(first.signal)}{last}"

    def ranks(self) -> List[Record]:
        """Return the known facts about each rank; the payload's records take precedence over the probe's."""
        probes = {item.task: item for item in self.probes}
        payloads = {item.task: item for item in self.evidence.payloads}
        hosts = {task: item.host for task, item in payloads.items()}
        hosts.update((task, item.host) for task, item in probes.items())
        return [self._rank(task, host, probes.get(task), payloads.get(task)) for task, host in sorted(hosts.items())]

    def _rank(self, task: int, host: str, probe: Optional[ProbeRecord], payload: Optional[PayloadRecord]) -> Record:
        expected = self.identities.get(host)
        mapped = payload.libraries if payload else []
        others = [library for library in mapped if expected is not None and library.identity != expected]
        probed = probe.library if probe else None
        library = next(iter([*others, *mapped]), probed)
        says = library.says if library else None
        if library and says is None and probed and probed.identity == library.identity:
            says = probed.says
        return {
            "rank": probe.rank if probe and probe.rank is not None else task,
            "task": task,
            "host": host,
            "mpi_library": says,
            "mpi_identity": library.identity if library else None,
            "mpi_path": library.path if library else None,
            "mpi_seen_in": ("payload" if mapped else "probe") if library else None,
            "host_mpi_identity": expected,
            "provider": self.provider,
            "shared_memory": probe.shared_memory if probe else None,
            "thread_level": probe.thread_level if probe else None,
            "threads": probe.threads if probe else self.launch.threads,
            "cpus": probe.cpus if probe else None,
            **measurements.shown(probe.measures if probe else None),
            "itex": records.plain(payload.itex) if payload else None,
            "communication": payload.communication.shown() if payload and payload.communication else None,
            "exit_code": payload.exit_code if payload else None,
            "signal": payload.signal if payload else None,
        }


def _connections(probes: Sequence[ProbeRecord], networks: Sequence[NetworkRecord]) -> Iterator[speed.Connection]:
    """Yield the connections that ranks measured through MPI, and those that nodes measured without."""
    hosts = {probe.rank: probe.host for probe in probes}
    for probe in probes:
        link = probe.measures and probe.measures.link
        if link and link.peer in hosts:
            there, back = link.bytes_per_second, link.bytes_per_second_back
            yield from speed.of_link(probe.host, hosts[link.peer], link.nanoseconds, there, back)
    first = next((item.host for item in networks if item.peers is not None), "the first node")
    for item in networks:
        if item.bytes_per_second is not None:
            back = item.bytes_per_second if item.bytes_per_second_back is None else item.bytes_per_second_back
            yield from speed.of_link(item.host, first, item.nanoseconds or 0, item.bytes_per_second, back)


def _from_outside(payload: PayloadRecord) -> Optional[ProbeRecord]:
    """Return what was observed of a rank from outside the container, as the record of a probe; None if nothing was."""
    seen = payload.outside
    return seen and ProbeRecord(
        task=payload.task,
        host=payload.host,
        stage=rank_record.DONE,
        library=None,
        reason=None,
        rank=seen.rank,
        size=None if seen.alone else seen.size,
        provider=None,
        thread_level=None,
        threads=seen.threads,
        cpus=seen.cpus,
    )


def _noted(rank: str, notes: Iterable[Tuple[str, Record]]) -> Iterator[Finding]:
    """Yield a finding about a rank for each code with its values."""
    return (finding(code, rank, **values) for code, values in notes)


def _signal_name(number: int) -> str:
    """Return SIGTERM for 15 and so on."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return "signal %d" % number
