"""What the last lines of a log tell about a job's end: why Slurm ended it, known causes, and one line for people."""

import pytest

from deployer.contract.rules import findings
from deployer.site.proof import causes

EROFS = "OSError: [Errno 30] Read-only file system: './checkpoint-1.h5'"
NO_NAME = "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"
MPI_INIT = (
    "--------------------------------------\nIt looks like MPI_INIT failed for some reason; your job may abort\n"
    "*** An error occurred in MPI_Init\n*** on a NULL communicator\n"
    "*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)\n"
    + "[cn1:12] Local abort before MPI_INIT completed, but am not able to guarantee that others were killed!\n"
    * 6
)
SRUN = "srun: error: cn1: task 0: Exited with exit code 1\nslurmstepd: error: *** STEP 7.1 ON cn1 CANCELLED ***\n"
#: How JAX 0.10.2 ends a rank that does not find the first one.
XLA = (
    """\
F1123 07:44:10.760619 1063 client.h:80] Terminating process because the JAX distributed service detected fatal errors.

RPC: /xla.coordination.CoordinationService/RegisterTask
*** Check failure stack trace: ***
    @     0x7fd34b440634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
"""
    + "    @           0x5132ec  PyObject_Vectorcall\n" * 9
)
#: As torchrun 2.13 reports that a rank of each node failed, under Slurm 22.05.
TORCHRUN = """\
E1122 21:25:42.502000 552 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/usr/local/lib/python3.11/dist-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
python3 FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_21:25:42
  host      : cn1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 554)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
srun: error: cn2: task 1: Exited with exit code 1
slurmstepd-cn1: error: *** STEP 2.4 ON cn1 CANCELLED AT 2026-11-22T21:25:43 ***
"""
#: How Python 3.11 begins to print an exception, and how Intel MPI ends a rank under Slurm 22.05.
TRACEBACK = """\
Traceback (most recent call last):
  File "/usr/local/lib/python3.11/dist-packages/mpi4py/run.py", line 36, in run_string
    return _run_module_code(code, init_globals, run_name, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "<string>", line 4, in <module>
"""
MPI_ABORT = (
    "Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n" + SRUN
)
REPLACED = "During handling of the above exception, another exception occurred:"
PEER = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.99.0.12]:61130.\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (EROFS, "payload.read-only"),
        ("cp: cannot create regular file 'x': Read-only file system", "payload.read-only"),
        ("(unable to open file: name = 'a.h5', errno = 30, error message = '')", "payload.read-only"),
        (NO_NAME, "payload.no-network"),
        ("curl: (6) Could not resolve host: data.example", "payload.no-network"),
        ("wget: unable to resolve host address 'data.example'", "payload.no-network"),
        ("socket.gaierror: [Errno -2] Name or service not known", "payload.no-network"),
        ("urllib3.exceptions.NameResolutionError: failed to resolve 'data.example'", "payload.no-network"),
        ("OSError: [Errno 11004] getaddrinfo failed", "payload.no-network"),
        ("OSError: We couldn't connect to 'https://hub.example' to load this file", "payload.no-network"),
    ],
)
def test_a_cause_is_found_before_what_the_launcher_adds(line, code):
    told = causes.told(f"epoch 1\nTraceback (most recent call last):\n{line}\n{SRUN}")
    assert told.causes == ((code, line),)
    assert told.last == line
    found = findings.finding(code, "job", line=line)
    assert (found.severity, line in found.message, "--bind" in found.remedy) == (findings.ERROR, True, True)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", None),
        (SRUN, None),
        ("loss 0.1\n", "loss 0.1"),
        ("Traceback:\nValueError: boom\n" + "epoch\n" * 50, "ValueError: boom"),  # output that was buffered
        (
            "KeyError: 'old'\n" + "epoch\n" * 50 + "solver: cannot open input.dat\nbye\n",
            "solver: cannot open input.dat",
        ),
        ("mean error 0.2\n" + "epoch\n" * 50 + "line 7: 3 numbers expected\n", "line 7: 3 numbers expected"),
        ("Segmentation fault (core dumped)\n" + SRUN, "Segmentation fault (core dumped)"),
        (MPI_INIT + SRUN, "*** An error occurred in MPI_Init"),
        (
            "/x: error while loading shared libraries: libmpi.so.40: cannot open shared object file\n" + "lost\n" * 9,
            "/x: error while loading shared libraries: libmpi.so.40: cannot open shared object file",
        ),
        ("[rank3]: ValueError: boom\n" + PEER + TORCHRUN, "[rank3]: ValueError: boom"),
        (PEER + TORCHRUN, PEER.strip()),
        (XLA + SRUN, XLA.splitlines()[0]),
        ("a\x1b[31mred\x07\u2028b\n", "a\\x1b[31mred\\x07\\u2028b"),
        ("50%\rKeyError: 1\r\n", "KeyError: 1"),
        ("x" * 1000, "x" * 297 + "..."),
        (TRACEBACK + "ValueError: boom\n" + MPI_ABORT, "ValueError: boom"),
        (TRACEBACK + "torch.x.ChildError:\n" + MPI_ABORT, "torch.x.ChildError:"),
        (TRACEBACK + MPI_ABORT, causes._LOST),
        (TRACEBACK[:40], causes._LOST),
        ("error: loss is NaN\n" + MPI_ABORT, "error: loss is NaN"),
        (MPI_ABORT, None),
        ("ValueError: boom\n" + "step 3 val_error 0.3\n" * 40, "ValueError: boom"),
        ("KeyError: 1\nepoch 2\nValueError: first\n\nOSError: second\n", "ValueError: first"),
        (f"KeyError: 1\n\n{REPLACED}\n\nOSError: raised\n", "OSError: raised"),
        (f"KeyError: 1\n\n{REPLACED}\n\n{TRACEBACK}{MPI_ABORT}", "KeyError: 1"),
        ("deployer: error: cannot start /x: Exec format error\n" + SRUN, "cannot start /x: Exec format error"),
    ],
)
def test_the_line_that_tells_best(text, last):
    assert causes.told(text).last == last


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "slurmstepd-cn2: error: execve(): /opt/python3: No such file or directory\n" + SRUN,
            "slurmstepd-cn2: error: ex",
        ),
        ("srun: error: cn2: task 1: Exited with exit code 2\n", None),
        (
            "begun\nslurmstepd-cn1: error: *** STEP 1.2 ON cn1 CANCELLED AT 2026 ***\n",
            "slurmstepd-cn1: error: *** STEP",
        ),
        (MPI_ABORT, "Abort(1) on node 1 (rank 1"),
        ("slurm_script: line 36: /opt/python3: No such file or directory\n", "slurm_script: line 36: /opt/python3: "),
        ("bash: fork: retry: Resource temporarily unavailable\n", "bash: fork: retry"),
    ],
)
def test_what_the_launcher_adds_counts_if_there_is_nothing_else(text, reason):
    told = causes.told(text)
    assert (told.reason or "").startswith(reason or "")
    assert bool(told.reason) == bool(reason)


#: As Slurm 22.05 wrote them into the logs of jobs of the lab.
ENDS = {
    "srun: error: Node failure on cn2": "NODE_FAIL",
    "slurmstepd-cn1: error: *** JOB 4 ON cn1 CANCELLED AT 2026 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***": "NODE_FAIL",
    "slurmstepd-cn1: error: *** JOB 4 ON cn1 CANCELLED AT 2026-11-23T22:34:02 DUE TO TIME LIMIT ***": "TIMEOUT",
    "slurmstepd: error: *** JOB 4 ON cn1 CANCELLED AT 2026-11-23T22:34:02 DUE TO PREEMPTION ***": "PREEMPTED",
    "slurmstepd-cn1: error: *** JOB 8 ON cn1 CANCELLED AT 2026-11-23T22:34:17 ***": "CANCELLED",
    "slurmstepd-cn1: error: Detected 1 oom-kill event(s) in StepId=1.2.": "OUT_OF_MEMORY",
}


@pytest.mark.parametrize(("line", "state"), ENDS.items())
def test_why_slurm_ended_a_job(line, state):
    assert causes.told(f"begun\n{line}\n{SRUN}").ends == {state: line}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("ch-run: error: please report this bug: No space left on device (ch_core.c:488 28)", "runtime.space"),
        ("error: can't init user+mount namespaces: No space left on device", "runtime.namespaces"),
        ("error: can't stat: /x/rootfs: No such file or directory", "runtime.start"),
    ],
)
def test_why_a_runtime_starts_no_container(said, code):
    assert causes.of_runtime(said) == code


def test_a_good_end_has_no_cause():
    assert causes.told("epoch 1: val_accuracy 0.97\nwrote checkpoint-1.h5\n").causes == ()
