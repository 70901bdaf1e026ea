"""Out of memory: by the kernel's counters, by Slurm's words, and a guess only if neither speaks."""

import pytest

from deployer.contract.base.json_records import dumps
from deployer.contract.proof import evidence
from deployer.contract.proof.payload import PayloadRecord
from deployer.site.proof import causes, memory, rank_record, result
from tests.unit.site.proof.test_result import LAUNCH, after, good

HANDLER = "Some of your processes may have been killed by the cgroup out-of-memory handler."
KILLED = {"exit_code": None, "signal": 9}


def rank(task, **values):
    return PayloadRecord(task, "cn%d" % (task + 1), [], 0, None, 5000)._replace(**values)


def found(payloads, said=None):
    return [(item.subject, item.message) for item in memory.explain(payloads, payloads[0], said, "job")]


@pytest.mark.parametrize(
    "line",
    [
        # the format strings of Debian's Slurm 22.05: task_cgroup, launch_slurm, libslurmfull
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. " + HANDLER,
        "slurmstepd: error: Detected 2 oom-kill event(s) in step 12.0 cgroup. " + HANDLER,
        "srun: error: cn1: task 0: Out Of Memory",
        "slurmstepd: error: StepId=12.0 exceeded memory limit (2097152 > 1048576), being killed",
        "slurmstepd: error: Step 12.0 exceeded virtual memory limit (2097152 > 1048576), being killed",
        # after and long before
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
        "slurmstepd: error: Exceeded step memory limit at some point.",
        "slurmstepd: error: Exceeded job memory limit at some point.",
    ],
)
def test_slurm_says_it(line):
    told = causes.told(f"epoch 1\n{line}\nsrun: error: cn1: task 0: Killed\n")
    assert (told.ends["OUT_OF_MEMORY"], told.last) == (line, "epoch 1")
    verdict = result.assemble(LAUNCH, good(payloads=[], told=told), after("payload", 137))
    shown = [(item["code"], item["subject"], item["message"]) for item in verdict["findings"]]
    assert shown[0] == ("payload.out-of-memory", "job", "Slurm ended it for lack of memory: " + line)
    assert "fewer ranks per node" in verdict["findings"][0]["remedy"]
    assert verdict["findings"][1]["code"] == "payload.failed"


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** STEP 7.1 ON cn1 CANCELLED ***",
        "srun: error: cn1: task 0: Killed",
        "RuntimeError: out of memory",  # the payload's own word, perhaps of a GPU
        "tells that slurmstepd: error: Detected 1 oom-kill event(s)",
    ],
)
def test_slurm_says_something_else(line):
    assert "OUT_OF_MEMORY" not in causes.told(line).ends


def test_the_kernels_counters_name_the_node():
    ended = [rank(0, oom_group=0, oom_node=1, **KILLED), rank(1, exit_code=1, oom_group=2, oom_node=2), rank(2)]
    message = "the kernel killed 2 processes in the job's control group for lack of memory"
    assert found(ended) == [("cn2", message)]  # a worker of rank 1; rank 0 was killed by the launcher
    written = [{**rank_record.begun(item.task, item.host), **item._asdict()} for item in ended]
    assert [evidence.read(PayloadRecord, dumps(record), "p") for record in written] == ended
    message = "the kernel killed 1 process on this node for lack of memory"
    assert found([rank(0, oom_node=1, **KILLED)]) == [("cn1", message)]
    assert found([rank(0, oom_node=1, exit_code=137)]) == [("cn1", message)]  # a shell whose child was killed
    both = [rank(task, host="cn1", oom_node=task + 1, **KILLED) for task in range(2)]
    assert found(both) == [("cn1", "the kernel killed 2 processes on this node for lack of memory")]
    assert found([rank(0, oom_group=0, oom_node=1, **KILLED)]) == [("cn1", message)]  # in a group of its own
    assert found([rank(0, oom_node=1, exit_code=1)]) == []  # another job's process, for all we know


def test_without_a_counter_and_a_word_it_is_a_guess():
    guess = "rank 0 was killed (SIGKILL) without a cancel: probably by the kernel, for lack of memory"
    assert found([rank(0, **KILLED)]) == [("cn1", guess)]
    assert found([rank(0, exit_code=137)]) == [("cn1", guess)]
    assert found([rank(0, oom_node=0, **KILLED)]) == []  # the kernel says no: somebody else killed it
    assert found([rank(0, exit_code=1)]) == []
    assert found([rank(0, exit_code=None, signal=11)]) == []
    assert memory.explain([], None, None, "job") == []
    said = "srun: error: cn1: task 0: Out Of Memory"
    assert found([rank(0, **KILLED)], said) == [("job", "Slurm ended it for lack of memory: " + said)]


def test_a_job_that_was_cancelled_or_went_well_lacks_no_memory():
    killed = good(payloads=[rank(0, **KILLED), rank(1, **KILLED)])
    codes = [item["code"] for item in result.assemble(LAUNCH, killed, after("payload", 137))["findings"]]
    assert codes == ["payload.out-of-memory", "payload.failed"]
    stopped = result.assemble(LAUNCH, killed, after("payload", 137, signal="TERM"))
    assert [item["code"] for item in stopped["findings"]] == ["job.stopped"]
    told = causes.told("srun: error: cn1: task 0: Out Of Memory")
    assert result.assemble(LAUNCH, good(told=told), after())["findings"] == []
