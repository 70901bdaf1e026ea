"""result.json from records: each fault has its finding, and the exit code is the payload's own."""

import pytest

from deployer.contract.base.json_records import dumps
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import HostRecord, Launch, NetworkRecord, ProbeRecord, ReceivedImage
from deployer.contract.proof.measurements import Allreduce, GpuMeasurement, Measures, NodeLink
from deployer.contract.proof.payload import Communication, Itex, MappedLibrary, NcclReport, Outside, PayloadRecord
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, WARNING, Finding
from deployer.contract.site.network import NodeAddress
from deployer.contract.site.plan import CANARY_TEXT, HostMpi
from deployer.contract.site.speed import ExpectedNetwork, Speed
from deployer.site.proof import rank_record, result
from deployer.site.proof.causes import told
from deployer.site.proof.result import Evidence, StepOutcome

MPI = HostMpi("intel", "2021.15", "/opt/mpi", "/opt/mpi/lib/libmpi.so.12", "Intel(R) MPI Library 2021.15")
LAUNCH = Launch(
    "hello-1",
    "hello",
    "1",
    "sha256:0",
    "lab",
    "charliecloud-folder",
    "first",
    "charliecloud",
    2,
    1,
    1,
    "00:02:00",
    ["true"],
    MPI,
    "tcp",
    1000,
)
INTEL = MappedLibrary("/opt/mpi/lib/libmpi.so.12", "build-id:aa", "Intel(R) MPI Library 2021.15 for Linux* OS")
MPICH = MappedLibrary("/usr/lib/libmpich.so.12", "sha256:bb", "MPICH Version: 4.2.3")
HOSTS = [HostRecord("cn1", "build-id:aa"), HostRecord("cn2", "build-id:aa")]


def probe(task, **values):
    return ProbeRecord(
        task,
        "cn%d" % (task + 1),
        rank_record.DONE,
        INTEL,
        None,
        task,
        2,
        "tcp" if task == 0 else None,
        "multiple",
        1,
        "0",
    )._replace(**values)


def payload(task, **values):
    return PayloadRecord(task, "cn%d" % (task + 1), [INTEL], 0, None, 5000)._replace(**values)


def good(**values):
    return Evidence(HOSTS, [probe(0), probe(1)], [payload(0), payload(1)], {}, {"val_accuracy": 0.97}, None)._replace(
        **values
    )


def after(step="payload", exit_code=0, **values):
    return StepOutcome(step, exit_code, None, "7", 1000, 1010)._replace(**values)


def codes(verdict):
    return [(item["code"], item["subject"]) for item in verdict["findings"]]


def test_a_good_job():
    record = result.assemble(LAUNCH, good(), after())
    assert (record["exit_code"], record["findings"]) == (0, [])
    assert (record["world_size"], record["seconds"], record["started"]) == (2, 10, "1970-01-01T00:16:40Z")
    assert record["payload"] == {"val_accuracy": 0.97}
    assert [
        (r["rank"], r["host"], r["mpi_identity"], r["host_mpi_identity"], r["provider"], r["threads"], r["cpus"])
        for r in record["ranks"]
    ] == [
        (0, "cn1", "build-id:aa", "build-id:aa", "tcp", 1, "0"),
        (1, "cn2", "build-id:aa", "build-id:aa", "tcp", 1, "0"),
    ]
    assert record["ranks"][0]["mpi_library"] == INTEL.says


def test_a_good_probe_leaves_a_result_that_is_true_if_the_job_is_killed():
    verdict = result.assemble(LAUNCH, good(payloads=[], payload=None), after("probe"))
    assert verdict["exit_code"] is None
    assert codes(verdict) == [("job.unfinished", "job")]


@pytest.mark.parametrize(
    ("found", "code", "subject"),
    [
        (good(probes=[probe(0, rank=0, size=1), probe(1, rank=0, size=1)]), "mpi.singletons", "job"),
        (good(probes=[probe(0, size=3), probe(1, size=3)]), "mpi.world-size", "job"),
        (good(probes=[probe(0)]), "probe.silent", "job"),
        (
            good(probes=[probe(0), probe(1, stage=rank_record.STARTING, size=None)], logs={1: "no provider"}),
            "probe.unfinished",
            "rank 1",
        ),
        (good(probes=[probe(0, library=MPICH), probe(1, library=MPICH)]), "mpi.not-host-library", "ranks 0-1"),
        (
            good(probes=[probe(0), probe(1, library=INTEL._replace(says="Intel(R) MPI Library 2019"))]),
            "mpi.version",
            "rank 1",
        ),
        (good(probes=[probe(0), probe(1, library=None, reason="not found")]), "mpi.unmapped", "rank 1"),
        (good(probes=[probe(0, provider="sockets"), probe(1)]), "mpi.provider", "rank 0"),
        (good(hosts=HOSTS[:1]), "hosts.count", "job"),
        (good(hosts=[HOSTS[0], HOSTS[0]._replace(port=1)]), "hosts.name", "cn1"),
        (good(hosts=[HOSTS[0], HostRecord("cn2", None)]), "mpi.host-missing", "cn2"),
        (good(hosts=[HOSTS[0], HostRecord("cn2", "build-id:cc")]), "mpi.host-differs", "cn2"),
        (good(hosts=[HOSTS[0], HOSTS[1]._replace(missing=("/usr/lib64/libpsm2.so.2",))]), "hosts.missing", "cn2"),
    ],
)
def test_a_fault_stops_the_job_before_the_payload(found, code, subject):
    verdict = result.assemble(LAUNCH, found, after("probe"))
    assert verdict["exit_code"] == 3
    assert (code, subject) in codes(verdict)


def test_a_layered_provider_is_the_provider():
    found = good(probes=[probe(0, provider="tcp;ofi_rxm"), probe(1)])
    assert result.assemble(LAUNCH, found, after())["findings"] == []


def test_a_probe_step_that_fails_for_no_known_reason_still_stops_the_job():
    verdict = result.assemble(LAUNCH, good(), after("probe", 9))
    assert verdict["exit_code"] == 3
    assert codes(verdict) == [("probe.failed", "job")]


def test_pinning_is_a_warning():
    launch = LAUNCH._replace(nodes=1, ranks_per_node=2, threads=2)
    found = good(hosts=HOSTS[:1], probes=[probe(0, cpus="0-1"), probe(1, host="cn1", cpus="1")])
    verdict = result.assemble(launch, found, after("probe"))
    assert verdict["exit_code"] is None
    assert codes(verdict)[:2] == [("layout.pinning", "rank 1"), ("layout.overlap", "cn1")]


def test_a_rank_across_numa_domains_without_need_is_told():
    """Two domains of four CPUs: rank 1 has one of each; with three ranks of three it could not be helped."""
    hosts = [HOSTS[0]._replace(numa=("0-1,4-5", "2-3,6-7"))]
    launch = LAUNCH._replace(nodes=1, ranks_per_node=2)
    found = good(hosts=hosts, probes=[probe(0, cpus="0-1"), probe(1, host="cn1", cpus="3-4")])
    assert codes(result.assemble(launch, found, after("probe")))[:1] == [("layout.crossing", "cn1")]
    for cpus in ("2-3", "6", "0-7"):  # in one; in one; in both, since it is as large as both
        found = good(hosts=hosts, probes=[probe(0, cpus="0-1"), probe(1, host="cn1", cpus=cpus)])
        assert ("layout.crossing", "cn1") not in codes(result.assemble(launch, found, after("probe")))
    told = codes(result.assemble(launch._replace(straddling="it must"), found, after("probe")))
    assert ("layout.numa", "job") in told


def test_the_payload_may_use_another_library_than_the_probe():
    found = good(payloads=[payload(0), payload(1, libraries=[INTEL, MPICH])])
    verdict = result.assemble(LAUNCH, found, after())
    assert verdict["exit_code"] == 3
    assert codes(verdict) == [("mpi.not-host-library", "rank 1")]
    shown = verdict["ranks"][1]
    assert (shown["mpi_library"], shown["mpi_identity"], shown["mpi_seen_in"]) == (MPICH.says, "sha256:bb", "payload")


def test_without_a_host_mpi_the_image_s_own_is_shown_and_right():
    launch = LAUNCH._replace(mpi=None)
    hosts = [HostRecord("cn1", None), HostRecord("cn2", None)]
    found = good(
        hosts=hosts,
        probes=[probe(0, library=MPICH), probe(1, library=MPICH)],
        payloads=[payload(0, libraries=[MPICH]), payload(1, libraries=[MPICH])],
    )
    verdict = result.assemble(launch, found, after())
    assert (verdict["exit_code"], verdict["findings"]) == (0, [])
    assert {r["mpi_library"] for r in verdict["ranks"]} == {MPICH.says}


@pytest.mark.parametrize(
    ("payloads", "srun", "expected", "how"),
    [
        # srun says 143, the highest, since it ended the other rank itself
        (
            [payload(0, exit_code=None, signal=15, ended=9000), payload(1, exit_code=1, ended=9500)],
            143,
            1,
            "rank 1 on cn2 failed first, with exit code 1",
        ),
        (
            [payload(0, exit_code=7, ended=9000), payload(1, exit_code=1, ended=9500)],
            7,
            7,
            "rank 0 on cn1 failed first",
        ),
        (
            [payload(0, exit_code=None, signal=9), payload(1, exit_code=None, signal=15, ended=6000)],
            137,
            137,
            "rank 0 on cn1 was ended by SIGKILL",
        ),
        ([], 1, 1, "no rank recorded a reason"),
        ([payload(0), payload(1, exit_code=None, ended=None)], 137, 137, "no rank recorded a reason"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed_first(payloads, srun, expected, how):
    verdict = result.assemble(LAUNCH, good(payloads=payloads), after(exit_code=srun))
    assert verdict["exit_code"] == expected
    assert how in verdict["findings"][-1]["message"]


def test_the_output_tells_why_if_no_rank_does():
    """A C program that dies in MPI_Init: srun ends the others, and no rank records an exit."""
    found = good(payloads=[])._replace(told=told("*** An error occurred in MPI_Init\nsrun: error\n"))
    verdict = result.assemble(LAUNCH, found, after(exit_code=143))
    assert verdict["findings"][-1]["message"] == (
        "the launcher failed with exit code 143 (SIGTERM) before a rank recorded why; "
        "last line: *** An error occurred in MPI_Init"
    )


@pytest.mark.parametrize(
    ("ended", "srun", "code", "expected"),
    [
        (1118, 143, "job.time-limit", 143),
        (1030, 143, "job.stopped", 143),
        (1118, 0, "job.time-limit", 143),
        (1118, 5, "job.time-limit", 5),
    ],
)
def test_a_job_that_was_asked_to_stop(ended, srun, code, expected):
    verdict = result.assemble(LAUNCH, good(), after(exit_code=srun, signal="TERM", ended=ended))
    assert codes(verdict) == [(code, "job")]
    assert verdict["exit_code"] == expected


NODE_FAILURE = (
    "begun\nsrun: error: Node failure on cn2\nslurmstepd: error: *** JOB 4 ON cn1 CANCELLED AT 2026 DUE TO NODE"
)
CANCELLED = "slurmstepd-cn1: error: *** JOB 4 ON cn1 CANCELLED AT 2026-11-23T22:34:02%s ***"


@pytest.mark.parametrize("step", ["hosts", "stage", "probe", "payload"])
@pytest.mark.parametrize(
    ("log", "ended", "code", "words"),
    [
        (
            NODE_FAILURE,
            1030,
            "job.ended",
            "does not answer properly: srun: error: Node failure on cn2",
        ),
        (CANCELLED % " DUE TO PREEMPTION", 1030, "job.ended", "another job took its nodes: slurmstepd"),
        (CANCELLED % " DUE TO TIME LIMIT", 1030, "job.time-limit", "reached its time limit of 00:02:00"),
        (
            "KeyError: 1\n" + CANCELLED % " DUE TO TIME LIMIT" + "\nValueError: late",
            1030,
            "job.time-limit",
            ": KeyError: 1",
        ),
        (CANCELLED % "", 1118, "job.stopped", "its owner or the site cancelled it"),
        ("", 1030, "job.stopped", "or something else did: its log has no reason"),
    ],
)
def test_the_batch_system_s_own_words_come_before_a_guess(step, log, ended, code, words):
    found = good(told=told(log))
    said = result.assemble(LAUNCH, found, after(step, 143, signal="TERM", ended=ended))["findings"][0]
    assert (said["code"], words in said["message"]) == (code, True)


#: What srun and the ranks print if slurmd of cn2 is dead (Slurm 22.05).
LOST = (
    "srun: error: Task launch for StepId=4.0 failed on node cn2: Communication connection failure\n"
    "srun: error: Application launch failed: Communication connection failure\nKilled\n"
    "srun: error: cn1: task 0: Killed\n"
)


@pytest.mark.parametrize("step", ["hosts", "stage", "network", "probe", "payload"])
def test_a_node_without_slurmd_is_named_and_not_one_that_was_killed_for_it(step):
    found = good(hosts=HOSTS[:1], probes=[], payloads=[], told=told(LOST))
    for line in ("", CANCELLED % " DUE TO NODE FAILURE"):  # Slurm's own message has the first node
        outcome = after(step, 137, reason="cn1 ended with exit code 137")
        said = result.assemble(LAUNCH, found._replace(told=told(LOST + line)), outcome)
        assert (said["findings"][0]["code"], said["exit_code"] in (3, 137)) == ("job.ended", True)
        assert "failed on node cn2: Communication" in said["findings"][0]["message"]
        assert "--directive=--exclude=cn2)" in said["findings"][0]["remedy"]
        assert step == "payload" or len(said["findings"]) == 1
    near = found._replace(told=told("error: Task launch for StepId=4.0 failed on node cn2: no\n"))  # the program's own
    assert result.assemble(LAUNCH, near, after(step, 1))["findings"][0]["code"] != "job.ended"


@pytest.mark.parametrize(
    ("reason", "log", "why"),
    [
        (
            None,
            "slurmstepd-cn2: error: execve(): /p: No such file",
            ": slurmstepd-cn2: error: execve(): /p: No such file",
        ),
        (
            "cn2 ended with exit code 127",
            "sh: 1: /p: not found",
            ": cn2 ended with exit code 127: sh: 1: /p: not found",
        ),
        ("cn2 /x is full", "deployer: error: /x is full", ": cn2 /x is full"),
        (None, "srun: error: cn2: task 1: Exited with exit code 2", ""),
    ],
)
def test_a_step_that_failed_says_what_its_log_says(reason, log, why):
    found = good(hosts=HOSTS[:1], probes=[], payloads=[], told=told(log))
    (said,) = result.assemble(LAUNCH, found, after("hosts", 2, reason=reason))["findings"]
    assert said["message"] == "the host step failed with exit code 2: 1 of 2 nodes reported" + why


@pytest.mark.parametrize(
    ("limits", "signal", "log", "value"),
    [
        ({"v": 300_000, "n": 1024}, None, "MemoryError", 300_000),
        ({"n": 1024, "u": 90_000}, None, "OSError: [Errno 24] Too many open files: 'x'", 1024),
        ({"t": 60, "f": 8}, 24, "", 60),
        ({"t": 60, "f": 8}, 25, "", 8),
        ({"n": 1024}, None, "MemoryError", None),
        ({"n": 1024}, 15, "", None),
    ],
)
def test_a_limit_of_processes_that_a_rank_reached(limits, signal, log, value):
    probes = [item._replace(measures=Measures(None, limits=limits)) for item in good().probes]
    ended = [payload(0)._replace(exit_code=None if signal else 1, signal=signal), payload(1)]
    found = good(probes=probes, payloads=ended, told=told(log))
    said = result.assemble(LAUNCH, found, after(exit_code=1))["findings"]
    assert [item["subject"] for item in said if item["code"] == "limits.process"] == (["rank 0"] if value else [])
    assert said[-1]["code"] == "payload.failed"
    assert not value or ("limited to %d " % value in said[0]["message"])


@pytest.mark.parametrize(("limits", "low"), [({"v": 300_000}, True), ({"v": 1 << 26, "n": 1024}, False), ({}, False)])
def test_a_low_limit_explains_a_rank_that_ended_in_mpi_init(limits, low):
    probes = [item._replace(stage="in MPI_Init", measures=Measures(None, limits=limits)) for item in good().probes]
    verdict = result.assemble(LAUNCH, good(probes=probes, payloads=[]), after("probe", 137))
    assert codes(verdict)[:-1] == ([("limits.process", "ranks 0-1")] if low else [])
    assert codes(verdict)[-1] == ("probe.unfinished", "ranks 0-1")


def test_what_is_missing_is_said():
    verdict = result.assemble(LAUNCH, good(probes=[]), after())
    assert codes(verdict) == [("probe.skipped", "job")]
    verdict = result.assemble(LAUNCH, good(payloads=[payload(0, libraries=[]), payload(1)]), after())
    assert codes(verdict) == [("payload.mpi-unseen", "rank 0")]
    verdict = result.assemble(LAUNCH, good(payload=None, payload_error="line 1"), after())
    assert codes(verdict) == [("payload.result", "job")]
    verdict = result.assemble(LAUNCH, good(hosts=[], probes=[], payloads=[]), after("hosts", 1, module="mpi/1"))
    assert codes(verdict) == [("job.module", "job")]
    verdict = result.assemble(LAUNCH, good(hosts=[], probes=[], payloads=[]), after("hosts", 127, launcher="mpirun"))
    assert (codes(verdict), verdict["exit_code"]) == ([("job.launcher", "job")], 3)
    verdict = result.assemble(LAUNCH, good(hosts=HOSTS[:1], probes=[], payloads=[]), after("hosts", 1))
    assert codes(verdict) == [("hosts.failed", "job")]
    full = after("hosts", 6, reason="cn2 cannot make /dev/shm/x: it is full")
    (found,) = result.assemble(LAUNCH, good(hosts=HOSTS[:1], probes=[], payloads=[]), full)["findings"]
    assert found["message"].endswith("1 of 2 nodes reported: cn2 cannot make /dev/shm/x: it is full")


def test_a_node_that_cannot_stage_ends_the_job_with_its_own_exit_code():
    found = good(probes=[], payloads=[], payload=None)
    verdict = result.assemble(LAUNCH, found, after("stage", 6, reason="/dev/shm has 1 MB free"))
    assert codes(verdict) == [("stage.failed", "job")]
    assert verdict["exit_code"] == 6
    assert "/dev/shm has 1 MB free" in verdict["findings"][0]["message"]
    early = result.assemble(LAUNCH, good(hosts=HOSTS[:1]), after("hosts", 6, reason="cn1 /dev/shm has 1 MB free"))
    assert (codes(early), early["exit_code"]) == ([("stage.failed", "job")], 6)  # others are not waited for
    without = good(hosts=HOSTS, roots={"cn2": "cannot start ch-run: Permission denied"})
    early = result.assemble(LAUNCH, without, after("hosts", 3, reason="cn2 a container does not show the image's root"))
    assert codes(early) == [("runtime.start", "cn2")]
    facts = result.assemble(LAUNCH, good(hosts=HOSTS[:1]), after("hosts", 6, reason="cn2 has no room"))
    assert codes(facts) == [("hosts.failed", "job")]
    stopped = result.assemble(LAUNCH, found, after("stage", 1, signal="TERM", ended=1030))
    assert (codes(stopped), stopped["exit_code"]) == ([("job.stopped", "job")], 143)
    drifted = result.assemble(LAUNCH, good(hosts=HOSTS[:1]), after("stage", 0))
    assert drifted["exit_code"] == 3


def test_a_node_that_had_to_read_the_image_is_a_note():
    image = {"from_node": 30, "from_file": 150, "readers": 2}
    came = {"cn1": ReceivedImage(None, 0, 100), "cn2": ReceivedImage("cn1", 30, 50, "it is too slow")}
    verdict = result.assemble(LAUNCH, good(received=came), after("payload"))
    assert verdict["image"] == image
    (note,) = verdict["findings"]
    assert (note["code"], note["subject"], verdict["exit_code"]) == ("stage.read", "cn2", 0)
    assert note["message"].endswith(": it is too slow")
    assert result.assemble(LAUNCH, good(), after())["image"] is None


def test_of_nodes_that_differ_the_rare_one_is_named():
    hosts = [HostRecord("cn1", "build-id:cc"), *(HostRecord("cn%d" % number, "build-id:aa") for number in range(2, 9))]
    (found,) = result.assemble(LAUNCH._replace(nodes=8), good(hosts=hosts), after("hosts"))["findings"][:1]
    assert (found["code"], found["subject"]) == ("mpi.host-differs", "cn1")
    assert "but cn2 has build-id:aa" in found["message"]


def test_a_thousand_ranks_make_one_finding():
    launch = LAUNCH._replace(nodes=1000)
    probes = [probe(task, size=1000, library=MPICH) for task in range(1000)]
    hosts = [HostRecord(item.host, "build-id:aa") for item in probes]
    verdict = result.assemble(launch, good(hosts=hosts, probes=probes, payloads=[]), after("probe"))
    assert codes(verdict) == [("mpi.not-host-library", "ranks 0-999")]


def written(item):
    """Return the record of a payload as its rank writes it."""
    seen = {name: value for name, value in item._asdict().items() if name != "outside" or value}
    seen.update(unset=list(item.unset), together=list(item.together))
    seen["libraries"] = [dict(library._asdict()) for library in item.libraries]
    seen.update((name, dict(seen[name]._asdict())) for name in ("itex", "outside") if seen.get(name))
    return rank_record.dumps({**rank_record.begun(item.task, item.host), **seen}).encode()


def test_the_records_survive_writing_and_reading():
    assert evidence.read_launch(dumps(LAUNCH.record()), "l") == LAUNCH
    assert evidence.read_launch(dumps(LAUNCH._replace(mpi=None).record()), "l").mpi is None
    with_data = LAUNCH._replace(data=("sha256:1",))
    assert evidence.read_launch(dumps(with_data.record()), "l") == with_data
    assert evidence.read(HostRecord, dumps(evidence.record(HOSTS[0])), "h") == HOSTS[0]
    for item in (probe(0), probe(1, library=None, rank=None)):
        assert evidence.read(ProbeRecord, dumps(evidence.record(item)), "p") == item
    assert evidence.read(PayloadRecord, written(payload(0)), "p") == payload(0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", {0}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("", set()),
        ("x,1-,-,2", {2}),
        ("5-3", set()),
        ("\u00b2,0-\u00b9,1", {1}),
    ],
)
def test_lists_of_cpus(text, cpus):
    assert evidence.parse_cpus(text) == cpus


def test_numbers_as_the_kernel_writes_them():
    assert rank_record.render_numbers({8, 0, 1, 2, 3}) == "0-3,8"
    assert rank_record.render_numbers(set()) == ""


def test_a_library_beside_the_mpi_that_was_replaced_is_named():
    pal, system = "/opt/mpi/lib/libopen-pal.so.80", "/usr/lib64/libpsm2.so.2"
    launch = LAUNCH._replace(mpi=MPI._replace(libraries={pal: "build-id:01", system: "build-id:02"}))
    changed = {system: "build-id:0a", pal: "missing"}
    found = good(hosts=[HOSTS[0], HOSTS[1]._replace(changed=changed)])
    verdict = result.assemble(launch, found, after("hosts"))
    assert codes(verdict) == [("mpi.host-drift", "cn2")] * 2
    shown = verdict["findings"]
    assert [each["severity"] for each in shown] == ["error", "warning"]
    assert f"its {pal} is missing, but the site was captured with build-id:01" in shown[0]["message"]
    assert evidence.read_launch(dumps(launch.record()), "launch") == launch
    assert evidence.read(HostRecord, dumps(evidence.record(found.hosts[1])), "it").changed == changed
    of_system = good(hosts=[HOSTS[0], HOSTS[1]._replace(changed={system: "build-id:0a"})])
    assert result.assemble(launch, of_system, after())["exit_code"] == 0


def test_an_mpi_that_was_replaced_since_the_capture_stops_the_job():
    launch = LAUNCH._replace(mpi=MPI._replace(identity="build-id:00"))
    verdict = result.assemble(launch, good(), after("hosts"))
    assert codes(verdict) == [("mpi.host-drift", "2 nodes: cn1-cn2")]
    assert verdict["exit_code"] == 3
    same = result.assemble(LAUNCH._replace(mpi=MPI._replace(identity="build-id:aa")), good(), after())
    assert codes(same) == []
    assert evidence.read_launch(dumps(launch.record()), "launch") == launch


WHOLE = Measures(65536, Allreduce(25500, 1 << 20, 117_000_000), GpuMeasurement("550.54", "12.4", 4, None))


@pytest.mark.parametrize(
    ("measures", "provider", "expects", "code"),
    [
        (Measures(65536), "psm2", (), "limits.memlock"),
        (Measures(65536), "verbs;ofi_rxm", (), "limits.memlock"),
        (Measures(65536), "tcp", (), None),
        (Measures(None), "psm2", (), None),
        (Measures(64 << 20), "psm2", (), None),
        (Measures(None, Allreduce(1, 1, 1, "the sum over 2 ranks is 0, not 1")), "tcp", (), "mpi.allreduce"),
        (Measures(None, gpu=GpuMeasurement(None, None, None, "CUDA sees no device")), "tcp", ("gpu",), "gpu.unusable"),
        (Measures(None, gpu=GpuMeasurement(None, None, None, "CUDA sees no device")), "tcp", (), None),
        (WHOLE, "tcp", ("gpu", "itex"), None),
    ],
)
def test_what_the_probe_measured_is_judged(measures, provider, expects, code):
    launch = LAUNCH._replace(expects=expects, provider=provider)
    probes = [probe(0, measures=measures, provider=provider), probe(1, measures=measures)]
    verdict = result.assemble(launch, good(probes=probes, payloads=[]), after("probe"))
    expected = [(code, "ranks 0-1")] if code else [("job.unfinished", "job")]
    assert codes(verdict) == expected
    assert verdict["exit_code"] == (3 if code else None)
    for item in probes:
        assert evidence.read(ProbeRecord, dumps(evidence.record(item)), "p") == item
    assert evidence.read_launch(dumps(launch.record()), "l") == launch


@pytest.mark.parametrize(
    ("free", "ranks", "stage", "named"),
    [
        (100000, 2, rank_record.STARTING, True),
        (100000, 1, rank_record.STARTING, False),
        (1 << 30, 2, rank_record.STARTING, False),
        (100000, 2, rank_record.DONE, False),
    ],
)
def test_full_shared_memory_is_named_where_mpi_died_in_its_start(free, ranks, stage, named):
    launch = LAUNCH._replace(nodes=1, ranks_per_node=2 if ranks == 2 else 1)
    probes = [
        probe(task, host="cn1", stage=stage, size=ranks, measures=Measures(None, shm=free)) for task in range(ranks)
    ]
    verdict = result.assemble(launch, good(hosts=HOSTS[:1], probes=probes, payloads=[]), after("probe", 1))
    found = [code for code, _ in codes(verdict)]
    assert (found[0] == "limits.shm") is named


def test_measures_stand_with_their_rank():
    probes = [probe(0, measures=WHOLE), probe(1)]
    first, second = result.assemble(LAUNCH, good(probes=probes), after())["ranks"]
    assert first["allreduce"] == {"latency_us": 25.5, "bytes": 1048576, "bandwidth_mb_s": 117.0}
    assert (first["memlock"], first["gpu"]["devices"]) == (65536, 4)
    assert (second["memlock"], second["allreduce"], second["gpu"]) == (None, None, None)


def test_a_payload_without_intels_extension_is_refused():
    """It was ended for that, and the others with it."""
    stopped = payload(0, exit_code=3, ended=900, itex=Itex(None, "TensorFlow maps none"))
    ended = [stopped, payload(1, exit_code=None, signal=15)]
    verdict = result.assemble(LAUNCH, good(payloads=ended), after("payload", 143))
    assert codes(verdict) == [("itex.inactive", "rank 0")]
    assert (verdict["exit_code"], verdict["ranks"][0]["itex"]["reason"]) == (3, "TensorFlow maps none")
    right = payload(1, itex=Itex("l.so", None))
    verdict = result.assemble(LAUNCH, good(payloads=[payload(0), right]), after())
    assert (codes(verdict), verdict["exit_code"]) == ([], 0)
    assert [rank["itex"] for rank in verdict["ranks"]] == [None, {"library": "l.so", "reason": None}]
    assert [evidence.read(PayloadRecord, written(item), "p") for item in (stopped, right)] == [stopped, right]


@pytest.mark.parametrize(
    ("ranks", "signal", "free", "named"),
    [(2, 7, 100000, True), (2, None, 100000, True), (2, 7, 1 << 30, False), (1, 7, 100000, True), (1, None, 0, False)],
)
def test_full_shared_memory_is_named_where_the_payload_died(ranks, signal, free, named):
    launch = LAUNCH._replace(nodes=1, ranks_per_node=ranks)
    probes = [probe(task, host="cn1", size=ranks, cpus=str(task)) for task in range(ranks)]
    died = payload(0, exit_code=None if signal else 1, signal=signal, shm=free)
    verdict = result.assemble(launch, good(hosts=HOSTS[:1], probes=probes, payloads=[died]), after("payload", 135))
    expected = [("limits.shm", "rank 0")] if named else []
    assert codes(verdict) == [*expected, ("payload.failed", "job")]
    assert verdict["exit_code"] == (128 + signal if signal else 1)


@pytest.mark.parametrize(
    ("step", "exit_code", "expected"), [("hosts", 6, 6), ("probe", 6, 6), ("payload", 0, 6), ("payload", 9, 9)]
)
def test_a_full_disk_is_named_first(step, exit_code, expected):
    payloads = [payload(0), payload(1, exit_code=exit_code)] if step == "payload" else []
    outcome = after(step, exit_code, full="cannot write x: No space left on device")
    verdict = result.assemble(LAUNCH, good(payloads=payloads), outcome)
    assert codes(verdict)[0] == ("job.space", "job")
    assert verdict["exit_code"] == expected


def test_what_was_accepted_or_forced_is_in_the_result():
    found = [Finding("pmi.unmet", ERROR, "v", "m", "r"), Finding("mpi.mixed", WARNING, "f", "m", "r")]
    accepted = LAUNCH._replace(checked=verdict.judged(found, ["pmi.unmet"]))
    made = result.assemble(accepted, good(), after())
    assert codes(made) == [("check.accepted", "v")]
    assert "pmi.unmet" in made["findings"][0]["message"]
    assert made["exit_code"] == 0
    assert made["check"] == {
        "verdict": "WARN",
        "codes": ["mpi.mixed", "pmi.unmet"],
        "accepted": ["pmi.unmet"],
        "forced": False,
    }
    forced = LAUNCH._replace(checked=verdict.judged(found), forced=True)
    assert evidence.read_launch(dumps(forced.record()), "it") == forced
    made = result.assemble(forced, good(), after())
    assert codes(made) == [("check.forced", "v")]
    assert made["check"]["forced"] is True
    assert result.assemble(LAUNCH, good(), after())["check"] is None


def test_without_a_container_no_image_is_said_to_have_run():
    made = result.assemble(LAUNCH._replace(runtime="native"), good(), after())
    assert codes(made) == [("runtime.native", "job")]
    assert (made["runtime"], made["digest"], made["exit_code"]) == ("native", None, 0)
    assert result.assemble(LAUNCH, good(), after())["digest"] == "sha256:0"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("cat: /deployer/canary: No such file or directory", "runtime.root"),
        ("", "runtime.start"),
        ("ch-run[1]: error: can't init user+mount namespaces: No space left on device", "runtime.namespaces"),
        (CANARY_TEXT + CANARY_TEXT, "runtime.start"),
    ],
)
@pytest.mark.parametrize("outcome", [after("hosts"), after("stage", 3), after("root", 1)])  # root: in older scripts
def test_a_container_with_another_root_stops_the_job(text, code, outcome):
    found = good(probes=[], payloads=[], roots={"cn1": CANARY_TEXT, "cn2": text})
    verdict = result.assemble(LAUNCH, found, outcome)
    assert codes(verdict) == [(code, "cn2")]
    assert verdict["exit_code"] == 3
    assert (text.strip().splitlines() or ["without a message"])[-1] in verdict["findings"][0]["message"]


def test_a_node_that_reads_no_canary_is_no_success():
    found = good(probes=[], payloads=[])
    right = found._replace(roots={"cn1": CANARY_TEXT, "cn2": CANARY_TEXT})
    assert codes(result.assemble(LAUNCH, right, after("network"))) == [("job.unfinished", "job")]
    one = found._replace(roots={"cn1": CANARY_TEXT})  # the other node has a fault of its own, or is not done
    assert codes(result.assemble(LAUNCH, one, after("hosts"))) == [("job.unfinished", "job")]
    assert codes(result.assemble(LAUNCH, one, after("network"))) == [("runtime.start", "job")]


def test_what_the_payload_could_not_write_is_a_cause_with_a_remedy():
    line = "OSError: [Errno 30] Read-only file system: 'checkpoint-1.h5'"
    ended = [payload(0, exit_code=1, ended=1), payload(1)]
    failed = result.assemble(LAUNCH, good(payloads=ended, told=told("epoch 1\n" + line)), after(exit_code=1))
    cause, end = failed["findings"]
    assert (cause["code"], cause["severity"], end["code"]) == ("payload.read-only", ERROR, "payload.failed")
    assert "/deployer/job" in cause["remedy"]
    assert end["message"] == "rank 0 on cn1 failed first, with exit code 1; last line: " + line
    assert failed["exit_code"] == 1
    caught = result.assemble(LAUNCH, good(told=told(line)), after())
    assert (codes(caught), caught["exit_code"]) == ([("payload.read-only", "job")], 0)
    assert caught["findings"][0]["severity"] == WARNING


def outside(task, **values):
    seen = Outside(task, 2, None, None, 1, "%d" % task, True)
    return payload(task, outside=seen._replace(**values))


def test_an_image_without_python_is_proven_from_outside():
    payloads = [outside(0), outside(1)]
    found = good(probes=[], payloads=[evidence.read(PayloadRecord, written(item), "it") for item in payloads])
    assert found.payloads == payloads
    verdict = result.assemble(LAUNCH, found, after())
    assert (verdict["exit_code"], verdict["world_size"]) == (0, 2)
    assert codes(verdict) == [("proof.outside", "job")]
    shown = [
        [rank[name] for name in ("rank", "host", "mpi_identity", "host_mpi_identity", "provider", "threads", "cpus")]
        for rank in verdict["ranks"]
    ]
    assert shown == [
        [0, "cn1", "build-id:aa", "build-id:aa", None, 1, "0"],
        [1, "cn2", "build-id:aa", "build-id:aa", None, 1, "1"],
    ]


@pytest.mark.parametrize(
    ("payloads", "code", "subject"),
    [
        ([outside(0, alone="no PMI_FD"), outside(1, alone="no PMI_FD")], "mpi.alone", "ranks 0-1"),
        ([outside(0), outside(1)._replace(libraries=[MPICH])], "mpi.not-host-library", "rank 1"),
        ([outside(0, size=1, rank=0), outside(1, size=1, rank=0)], "mpi.singletons", "job"),
        ([outside(0, size=3), outside(1, size=3)], "mpi.world-size", "job"),
        ([outside(0)], "probe.silent", "job"),
        ([outside(0), outside(1, static="/osu/allreduce")._replace(libraries=[])], "mpi.static", "rank 1"),
    ],
)
def test_what_is_seen_from_outside_fails_a_job_whose_ranks_ended_well(payloads, code, subject):
    verdict = result.assemble(LAUNCH, good(probes=[], payloads=payloads), after())
    assert (code, subject) in codes(verdict)
    assert verdict["exit_code"] == 3
    if code == "mpi.alone":
        assert verdict["world_size"] is None  # nothing shows that there was one


def test_a_process_with_two_mpi_libraries_fails_a_job_even_if_both_are_of_one_build():
    twice = payload(1, libraries=[INTEL, INTEL._replace(path="/usr/lib/libmpi.so.12")], together=["/a", "/b"])
    verdict = result.assemble(LAUNCH, good(payloads=[payload(0), twice]), after())
    assert (verdict["exit_code"], codes(verdict)) == (3, [("mpi.twice", "rank 1")])
    assert evidence.read(PayloadRecord, written(twice), "it").together == ("/a", "/b")


def test_programs_without_the_launcher_s_variables_fail_a_job_that_ended_well():
    """The probe's world was whole."""
    lost = [payload(0, unset=["PMI_FD"]), payload(1, unset=["PMI_FD"])]
    verdict = result.assemble(LAUNCH, good(payloads=lost), after())
    assert (verdict["exit_code"], verdict["world_size"]) == (3, None)
    assert codes(verdict) == [("mpi.unset", "ranks 0-1")]
    assert "without PMI_FD" in verdict["findings"][0]["message"]
    assert evidence.read(PayloadRecord, written(lost[0]), "it").unset == ("PMI_FD",)
    alone = good(hosts=HOSTS[:1], probes=[probe(0, size=1)], payloads=lost[:1])
    assert codes(result.assemble(LAUNCH._replace(nodes=1), alone, after())) == []


def test_one_rank_alone_is_a_world():
    found = good(hosts=HOSTS[:1], probes=[], payloads=[outside(0, size=1, alone="no PMI_FD")])
    assert codes(result.assemble(LAUNCH._replace(nodes=1), found, after())) == [("proof.outside", "job")]


#: Two nodes of a job without MPI, and how they met.
WITHOUT = LAUNCH._replace(mpi=None, provider=None, without_mpi=True)
NODES = [HostRecord("cn%d" % n, None, addresses=(NodeAddress("eth0", "10.0.0.%d" % n, 24),)) for n in (1, 2)]
MET = [NetworkRecord("cn1", peers=("cn2",)), NetworkRecord("cn2", nanoseconds=41500, bytes_per_second=1180000000)]


def met(networks=MET, hosts=NODES, **values):
    probes = [probe(task, library=None, provider=None, **values) for task in (0, 1)]
    return Evidence(hosts, probes, [payload(0, libraries=[]), payload(1, libraries=[])], {}, None, None)._replace(
        networks=networks
    )


def test_nodes_that_met_are_shown_with_what_they_measured():
    verdict = result.assemble(WITHOUT, met(), after())
    assert codes(verdict) == []
    assert (verdict["exit_code"], verdict["world_size"]) == (0, 2)
    worst = {"nodes": 2, "latency_us": 41.5, "bandwidth_mb_s": 1180.0, "slowest": "cn2 to cn1"}
    assert verdict["network"].items() >= worst.items()
    assert result.assemble(LAUNCH, good(), after())["network"] is None


EXPECTED = ExpectedNetwork(Speed(2.0, 10000.0), Speed(40.0, 4000.0), 0.5, "the profile", "omni-path")


def linked(there, back):
    """Return the evidence of a job whose first rank measured the connection to the second one."""
    measures = Measures(None, link=NodeLink(1, 2100, 4 << 20, int(there * 1e6), int(back * 1e6)))
    return good(probes=[probe(0)._replace(measures=measures), probe(1)])


def test_a_job_stops_on_a_network_that_is_slower_than_expected():
    launch = LAUNCH._replace(network=EXPECTED)
    assert codes(result.assemble(launch, linked(9000, 5100), after("probe"))) == [("job.unfinished", "job")]
    verdict = result.assemble(launch, linked(9000, 900), after("probe"))
    assert (codes(verdict), verdict["exit_code"]) == ([("network.slow", "job")], 3)
    (slow,) = verdict["findings"]
    assert "from cn2 to cn1 is slow: 900 MB/s and 2.1 us (4 MiB and 8 bytes)" in slow["message"]
    assert "the expected 10000 MB/s and 2 us; the other direction is not slow" in slow["message"]
    assert verdict["network"]["connections"][1] == {
        "from": "cn2", "to": "cn1", "latency_us": 2.1, "bandwidth_mb_s": 900.0
    }  # fmt: skip
    provider = result.assemble(launch, linked(900, 900), after("probe"))["findings"][0]["message"]
    assert provider.endswith("the ranks use intel with libfabric's provider tcp, instead of omni-path")


def test_a_slow_network_can_be_accepted_and_is_shown_without_an_expectation():
    accepted = result.assemble(LAUNCH._replace(network=EXPECTED, accept=["network.slow"]), linked(900, 900), after())
    assert [(each["code"], each["severity"]) for each in accepted["findings"]] == [("network.slow", WARNING)]
    assert accepted["exit_code"] == 0
    unknown = result.assemble(LAUNCH, linked(900, 900), after())
    assert (codes(unknown), unknown["network"]["bandwidth_mb_s"]) == ([], 900.0)


def test_a_slow_network_without_mpi_is_compared_with_tcp():
    verdict = result.assemble(WITHOUT._replace(network=EXPECTED), met(), after("network"))
    assert (codes(verdict)[0], verdict["exit_code"]) == (("network.slow", "job"), 3)
    assert codes(result.assemble(WITHOUT._replace(network=EXPECTED._replace(tcp=None)), met(), after())) == []


@pytest.mark.parametrize(
    ("found", "code", "subject"),
    [
        (met([MET[0]._replace(peers=()), NetworkRecord("cn2", "No route to host")]), "net.unreachable", "cn2"),
        (met([NetworkRecord("cn1", "Address already in use", ()), MET[1]]), "net.port", "cn1"),
        (met([MET[0]]), "net.silent", "cn2"),
        (met([MET[0]._replace(peers=()), MET[1]]), "net.count", "job"),
        (met(hosts=[NODES[0], NODES[1]._replace(addresses=())]), "net.none", "job"),
        (met(size=1), "net.world", "job"),
    ],
)
def test_ranks_that_cannot_find_each_other_end_the_job(found, code, subject):
    steps = ["probe"] if code == "net.world" else ["network", "payload"]
    for step in steps:
        verdict = result.assemble(WITHOUT, found, after(step))
        assert codes(verdict)[0] == (code, subject)
        assert verdict["exit_code"] == 3
    if code != "net.world":
        assert code not in str(codes(result.assemble(WITHOUT._replace(nodes=1, ranks_per_node=2), found, after())))


@pytest.mark.parametrize(("size", "said"), [(1, "1 rank,"), (3, "3 ranks,")])
def test_the_number_of_ranks_that_the_launcher_started_is_in_words(size, said):
    first = result.assemble(WITHOUT, met(size=size), after("probe"))["findings"][0]
    assert first["message"].startswith(f"the launcher started {said} but the job requested 2")


def test_a_script_of_an_older_deployer_has_no_network_step():
    assert codes(result.assemble(WITHOUT, met([]), after())) == []


def communicating(connected, itself=False, nccl=None):
    libraries = (MappedLibrary("/usr/lib/libgloo.so.0", "build-id:cc", None),)
    return [
        payload(task, libraries=[], communication=Communication(libraries, connected, itself, nccl)) for task in (0, 1)
    ]


@pytest.mark.parametrize(
    ("payloads", "severity"),
    [
        (communicating(connected=False, itself=True), ERROR),  # as in a world of one
        (communicating(connected=False), WARNING),  # perhaps on purpose
        (communicating(connected=True), None),
        (communicating(connected=None), None),  # it ended at once
        ([communicating(connected=False)[0], communicating(connected=True)[1]], None),
        ([communicating(connected=False)[0], payload(1)], None),
    ],
)
def test_ranks_that_computed_alone_are_told(payloads, severity):
    verdict = result.assemble(WITHOUT, met()._replace(payloads=payloads), after())
    assert [item["severity"] for item in verdict["findings"]] == ([severity] if severity else [])
    assert verdict["exit_code"] == (3 if severity == ERROR else 0)
    if severity:
        assert codes(verdict) == [("net.alone", "job")]
        assert "Lightning's Trainer and Fabric need num_nodes" in verdict["findings"][0]["remedy"]


@pytest.mark.parametrize(("launch", "told"), [(WITHOUT, True), (WITHOUT._replace(without_mpi=False), False)])
def test_a_mapped_mpi_is_no_proof_in_a_job_without_mpi(launch, told):
    """Debian's PyTorch is linked with Open MPI and maps it even if the job does not use it."""
    mapped = (MappedLibrary("/usr/lib/libmpi.so.40", "build-id:dd", None),)
    payloads = [item._replace(libraries=mapped) for item in communicating(connected=False, itself=True)]
    verdict = result.assemble(launch, met()._replace(payloads=payloads), after())
    assert (("net.alone", "job") in codes(verdict)) is told


@pytest.mark.parametrize(
    ("network", "fast", "told"), [("Socket", "x", True), ("IB", "x", False), ("Socket", None, False)]
)
def test_sockets_on_a_fast_fabric_are_told(network, fast, told):
    payloads = communicating(connected=True, nccl=NcclReport("2.21.5+cuda12.4", network, ("NET/" + network, "P2P")))
    verdict = result.assemble(WITHOUT._replace(fast=fast), met()._replace(payloads=payloads), after())
    assert codes(verdict) == ([("net.sockets", "job")] if told else [])
    assert verdict["ranks"][0]["communication"] == {
        "libraries": [{"path": "/usr/lib/libgloo.so.0", "identity": "build-id:cc"}],
        "connected": True,
        "nccl": {"version": "2.21.5+cuda12.4", "network": network, "via": ["NET/" + network, "P2P"]},
    }
