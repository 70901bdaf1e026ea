"""run, status, logs and cancel with a fake Slurm on PATH, so that the real code path runs."""

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.contract.base import json_records, records
from deployer.contract.base.errors import IntegrityError, JobFailed, Refused, SpaceError, TransferError, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import HostRecord
from deployer.contract.rules import hostfiles, verdict
from deployer.contract.rules.findings import ERROR, WARNING, Finding
from deployer.contract.site.plan import Batch, Bind, GpuPlace, GpuRequest, NodeShape, StartOption
from deployer.site.container import container, runtime_check
from deployer.site.container import home as homes
from deployer.site.install import gc
from deployer.site.jobs import jobs, result, result_reserve
from deployer.site.jobs.schedulers.interface import JobState
from deployer.site.proof.result import StepOutcome, assemble
from deployer.site.rank import host_probe, payload_monitor
from deployer.site.run import earlier, run
from deployer.site.run import exec as execs
from deployer.site.run.job_script.submission import SubmissionOptions
from deployer.site.run.prepare import render, start_option
from deployer.site.run.prepare.request import RunRequest
from deployer.site.storage import inventory, unfinished
from deployer.system import files
from tests import running as made

REQUEST = RunRequest("hello")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a folder that stands first in PATH, with a ch-run, a python3 and a squeue without jobs in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    made.program(folder, "ch-run", "exit 0")
    made.program(folder, "squeue", "exit 0")
    made.program(folder, "python3", "exit 0")
    return folder


@pytest.fixture
def store(tmp_path, programs):
    return made.store(tmp_path / "root")


#: What each result has.
RECORD = {"schema": "deployer.result", "format": 1, "min_reader": 1, "findings": []}


def fake_slurm(programs, state, exit_code=0, log="", **record):
    """Put an sbatch that writes the result which a job of that end would leave, and a squeue that says ``state``."""
    text = json.dumps(dict(RECORD, exit_code=exit_code, **record))
    writes = f'd=$(dirname "$2")\nprintf "%s" {shlex.quote(log)} >"$d/output.log"\n'
    made.program(programs, "sbatch", writes + f'cat >"$d/result.json" <<"END"\n{text}\nEND\necho 77\n')
    made.program(programs, "squeue", f'echo "77|{state}|0:01|cn1|None"')


def submitted(store):
    """Prepare a job and submit it; return its folder."""
    folder = run.prepare(store, REQUEST)
    run.submit(folder)
    return folder


def test_a_job_folder_holds_script_and_record(store):
    folder = run.prepare(store, REQUEST._replace(nodes=4, threads=4, extra=["--epochs", "2"], time="01:00:00"))
    assert os.path.dirname(folder) == store.jobs
    assert os.path.basename(folder).startswith("hello-20")
    launch = result.launch(folder)
    assert (launch.nodes, launch.ranks_per_node, launch.threads, launch.time) == (4, 1, 4, "01:00:00")
    assert launch.command == ["python3", "/deployer/app/train.py", "--epochs", "2"]
    assert (launch.provider, launch.mpi, launch.site) == ("tcp", made.PLAN.mpi, "lab")
    text = run.show_script(folder)
    assert "#SBATCH --nodes=4\n" in text
    assert f"    --bind={folder}:/deployer/job\n" in text
    assert "    --set-env=DEPLOYER_RESULT=/deployer/job/payload.json\n" in text
    assert jobs.status(folder).state == "NEW"


@pytest.mark.parametrize("error", [SpaceError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("what", ["spare", "launch", "script"])
def test_an_error_leaves_no_part_of_a_job_folder(store, monkeypatch, error, what):
    def fail(*_, **__):
        assert jobs.folders(store) == ([], [])  # what is being made is no job yet
        raise error

    if what == "spare":
        monkeypatch.setattr(result_reserve, "keep", fail)
    else:
        real, name = files.write_text, result.LAUNCH_FILE if what == "launch" else result.SCRIPT
        monkeypatch.setattr(
            files, "write_text", lambda path, *rest: fail() if path.endswith(name) else real(path, *rest)
        )
    with pytest.raises(type(error)):
        run.prepare(store, REQUEST)
    assert os.listdir(store.jobs) == []


def test_what_a_killed_run_left_goes_with_the_next(store):
    half = os.path.join(store.jobs, ".installing-%s-%d-0-abc" % (socket.gethostname(), os.getpid()))
    os.makedirs(half)
    assert half in [item.path for item in gc.find(store, 1)]
    folder = run.prepare(store, REQUEST)
    assert os.listdir(store.jobs) == [os.path.basename(folder)]


def test_ranks_that_must_lie_across_numa_domains_are_told_before_and_after(tmp_path, programs):
    plan = made.PLAN._replace(node=NodeShape(2, 4, 1, 4000, numa_domains=2))
    folder = run.prepare(made.store(tmp_path / "root", plan=plan), REQUEST._replace(threads=4))
    told = "1 rank per node with 4 CPUs each: a NUMA domain has 2 CPUs, so each rank runs across several"
    assert run.warnings(folder) == [told]
    assert f"# Note: {told}.\n" in run.show_script(folder)
    done = assemble(result.launch(folder), result.gather(folder), StepOutcome("payload", 0, None, "7", 0, 1))
    assert [item["message"] for item in done["findings"] if item["code"] == "layout.numa"] == [told]
    assert run.warnings(run.prepare(made.store(tmp_path / "other", plan=plan), REQUEST._replace(threads=2))) == []


@pytest.mark.parametrize("python", ["/usr/bin/python3", None])
def test_no_image_says_where_the_ranks_find_each_other(tmp_path, programs, python):
    """`rank` does, unless the job or the user has said it; outside of the container, the runtime lets it in."""
    image = made.IMAGE._replace(env=["MASTER_ADDR=localhost", "RANK=0", "MASTER_PORT=1"], python=python)
    store = made.store(tmp_path / "root", image=image)
    text = run.show_script(run.prepare(store, REQUEST._replace(env=["MASTER_PORT=29500"])))
    assert "--set-env=MASTER_PORT=29500\n" in text
    assert "MASTER_ADDR=" not in text
    assert " --set-env=RANK=" not in text
    assert ("|MASTER_ADDR|RANK|" in text) is (python is None)


def test_each_rank_gets_its_own_gpus_near_its_cpus(tmp_path, programs):
    plan = made.PLAN._replace(
        node=NodeShape(2, 4, 1, 4000, numa_domains=2),
        batch=Batch(gpus=GpuRequest("gres", 4, None)),
        gpu_order="CUDA_VISIBLE_DEVICES",
        gpu_places=(GpuPlace(0, 1), GpuPlace(1, 1), GpuPlace(2, 0), GpuPlace(3, 0)),
    )
    store = made.store(tmp_path / "root", plan=plan)
    text = run.show_script(run.prepare(store, REQUEST._replace(ranks_per_node=2, gpus_per_rank=2)))
    assert (
        'rank --out /deployer/job/ranks --home "$home" --meet "$meet" --gpus 2:CUDA_VISIBLE_DEVICES=2,3,0,1 -- ' in text
    )
    assert "--set-env=CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in text
    assert "--set-env=CUDA_VISIBLE_DEVICES" not in text
    some = SubmissionOptions(gpus=2)  # a part of the node's: the batch system says which
    text = run.show_script(run.prepare(store, REQUEST._replace(ranks_per_node=2, gpus_per_rank=1, options=some)))
    assert " --gpus 1:CUDA_VISIBLE_DEVICES -- " in text
    message = "2 ranks per node x 3 GPUs = 6, but the job has 4 GPUs per node"
    with pytest.raises(Refused, match=message):
        run.prepare(store, REQUEST._replace(ranks_per_node=2, gpus_per_rank=3))
    with pytest.raises(UsageError, match="not a number of GPUs"):
        run.prepare(store, REQUEST._replace(gpus_per_rank=-1))
    with pytest.raises(UsageError, match="--gpus 0: each rank of job train needs 1 of its own"):
        run.prepare(store, REQUEST._replace(gpus_per_rank=1, options=SubmissionOptions(gpus=0)))
    job = made.JOBS[0]._replace(ranks_per_node=2, gpus=0)
    store = made.store(tmp_path / "none", plan=plan._replace(directives=["--gres=gpu:1"]), jobs=[job])
    text = run.show_script(run.prepare(store, REQUEST))
    assert "gpu:1" in text  # what the partition demands
    assert " --gpus " not in text
    store = made.store(tmp_path / "some", plan=plan, jobs=[job])
    assert "gpu" not in run.show_script(run.prepare(store, REQUEST._replace(token="b")))
    text = run.show_script(run.prepare(store, REQUEST._replace(token="c", options=SubmissionOptions(gpus=4))))
    assert "--gres=gpu:4" in text
    assert " --gpus " not in text


@pytest.mark.parametrize(("there", "message"), [(0, "no GPU"), (3, "3 GPUs"), (4, None), (None, None)])
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_job_with_gpus_needs_nodes_that_have_them(tmp_path, programs, there, message, is_checked):
    found = [Finding("gpu.none", ERROR, "job train", "a node has no GPU", "-", "train")]
    checked = verdict.judged(found) if is_checked and there == 0 else None
    plan = made.PLAN._replace(node=made.PLAN.node._replace(gpus=there), checked=checked)
    store = made.store(tmp_path / "root", plan=plan, jobs=[made.JOBS[0]._replace(ranks_per_node=2, gpus=2)])
    if message:
        with pytest.raises(Refused, match="a node has " + message):
            run.prepare(store, REQUEST)
    else:
        assert " --gpus 2:" in run.show_script(run.prepare(store, REQUEST))
    assert " --gpus 2:" in run.show_script(run.prepare(store, REQUEST._replace(force=True, token="b")))
    none = REQUEST._replace(options=SubmissionOptions(gpus=0), token="c")
    assert " --gpus " not in run.show_script(run.prepare(store, none))


@pytest.mark.parametrize("launch", ["torchrun", "node"])
def test_one_process_per_node_has_all_of_the_node(tmp_path, programs, launch):
    plan = made.PLAN._replace(node=NodeShape(2, 8, 2, 64000))
    job = made.JOBS[0]._replace(nodes=2, ranks_per_node=4, threads=2, memory=1000, launch=launch)
    store = made.store(tmp_path / "root", plan=plan, jobs=[job])
    folder = run.prepare(store, REQUEST)
    text = run.show_script(folder)
    for word in ("--ntasks-per-node=1 ", "--ntasks=2 ", "--cpus-per-task=16 ", "--mem=4000M\n", "OMP_NUM_THREADS=2\n"):
        assert word in text, word
    assert "OMP_PLACES" not in text  # the processes of a node would all use its first cores
    wrapped = "-m torch.distributed.run --nnodes=2 --nproc_per_node=4 --rdzv_backend=static --no_python"
    words = f"python3 {wrapped} " if launch == "torchrun" else ""
    assert f" -- {words}{shlex.quote(job.command[0])}" in text
    launched = result.launch(folder)
    assert (launched.nodes, launched.ranks_per_node, launched.threads) == (2, 1, 8)
    assert launched.workers == (4 if launch == "torchrun" else 1)
    with pytest.raises(UsageError, match=f"one process per node \\(launch: {launch}\\)"):
        run.prepare(store, REQUEST._replace(gpus_per_rank=1))


def test_torchrun_would_hide_that_ranks_saved_their_state(tmp_path, programs):
    store = made.store(tmp_path / "root", jobs=[made.JOBS[0]._replace(launch="torchrun")])
    with pytest.raises(UsageError, match=r"--again: job .* starts through torchrun, which ends with 1 instead"):
        run.prepare(store, REQUEST._replace(again=1, time="01:00:00"))


def test_the_plan_s_environment_stands_over_the_layout_s_over_the_image_s(tmp_path, programs):
    plan = made.PLAN._replace(environment={"OMP_NUM_THREADS": "7", "LD_LIBRARY_PATH": "/x"})
    image = made.IMAGE._replace(env=["KMP_BLOCKTIME=9", "HOME=/root", "TMPDIR=/tmp", "LD_LIBRARY_PATH=/y", "OWN=1"])
    text = run.show_script(run.prepare(made.store(tmp_path / "root", plan=plan, image=image), REQUEST))
    homes = ('HOME="$home"', 'TMPDIR="$home"', "PYTHONNOUSERSITE=1")
    for word in ("OMP_NUM_THREADS=7", "KMP_BLOCKTIME=0", "LD_LIBRARY_PATH=/x:/y", "OWN=1", *homes):
        assert f"    --set-env={word}\n" in text


@pytest.mark.parametrize(
    ("image", "job", "plan", "user", "expected"),
    [
        ("psm3", "", "", "", "psm3"),
        ("psm3", "verbs;ofi_rxm", "", "", "verbs;ofi_rxm"),
        ("psm3", "verbs", "tcp", "", "tcp"),
        ("", "verbs", "tcp", "psm2", "psm2"),
        ("", "^psm3", "", "", None),
        ("", "", "", "", None),
    ],
)
def test_the_provider_to_expect_is_the_one_that_the_job_gets(tmp_path, programs, image, job, plan, user, expected):
    def given(value):
        return {"FI_PROVIDER": value} if value else {}

    store = made.store(
        tmp_path / "root",
        plan=made.PLAN._replace(environment=given(plan)),
        image=made.IMAGE._replace(env=["FI_PROVIDER=" + image] if image else []),
        jobs=[made.JOBS[0]._replace(environment=given(job))],
    )
    folder = run.prepare(store, REQUEST._replace(env=["FI_PROVIDER=" + user] if user else []))
    assert result.launch(folder).provider == expected


def test_the_user_s_variables_stand_over_the_plan_s_over_the_job_s(tmp_path, programs):
    plan = made.PLAN._replace(environment={"A": "plan", "B": "plan", "FI_PROVIDER": "tcp"})
    image = made.IMAGE._replace(env=["C=image", "D=image"])
    environment = {"A": "job", "B": "job", "C": "job", "OMP_NUM_THREADS": "3", "LINES": "a\nb"}
    jobs_ = [made.JOBS[0]._replace(environment=environment, memory=700)]
    store = made.store(tmp_path / "root", plan=plan, image=image, jobs=jobs_)
    asked = ["A=user", "FI_PROVIDER=psm2", "QUOTED='x'", "DOLLAR=$HOME:$x", "EMPTY=", "BYTES=\udcff"]
    folder = run.prepare(store, REQUEST._replace(env=asked))
    text = run.show_script(folder)
    for word in (
        "A=user", "B=plan", "C=job", "D=image", "OMP_NUM_THREADS=3", "FI_PROVIDER=psm2", "EMPTY=", "BYTES=\udcff",
    ):  # fmt: skip
        assert re.search(f"^    '?--set-env={re.escape(word)}'?$", text, re.MULTILINE), word
    assert "    $'--set-env=LINES=a\\nb'\n" in text
    assert "    '--set-env=DOLLAR=$HOME:$x'\n" in text
    assert "--set-env=QUOTED=" + shlex.quote("''x''")[1:-1] in text  # ch-run removes one pair
    assert result.launch(folder).provider == "psm2"
    assert "#SBATCH --mem=700M\n" in text
    more = run.show_script(run.prepare(store, REQUEST._replace(memory_mb=900, ranks_per_node=2, threads=1)))
    assert "#SBATCH --mem=1800M\n" in more


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (REQUEST._replace(image="other"), "no image other is installed"),
        (REQUEST._replace(job="nope"), "hello has no job nope"),
        (REQUEST._replace(plan="moon"), "no plan for site moon"),
        (REQUEST._replace(time="1x"), "is not"),
        (REQUEST._replace(nodes=0), "at least 1"),
        (REQUEST._replace(binds=["/no/such:/data"]), "there is no /no/such"),
        (REQUEST._replace(binds=["/usr:/nope"]), "read-only and has no /nope"),
        (REQUEST._replace(binds=["/usr:/tmp/.keras"]), "/tmp in the container is the node's own, which all its"),
        (REQUEST._replace(binds=["/usr:/dev/shm/x"]), "/dev in the container is the node's own"),
        (REQUEST._replace(binds=["/usr:/bin"]), "/bin is a link"),
        (REQUEST._replace(binds=["/usr:data"]), "absolute"),
        (REQUEST._replace(binds=["/usr:/data/../usr"]), "absolute"),
        (REQUEST._replace(env=["NCCL_DEBUG"]), "--env NCCL_DEBUG has no ="),
        (REQUEST._replace(env=["PATH=/x"]), "--env PATH: this variable cannot be set"),
        (REQUEST._replace(binds=["/etc/passwd:/data"]), "a folder can only be bound to a folder"),
    ],
)
def test_wrong_usage_leaves_no_folder(store, request_, message):
    with pytest.raises(UsageError, match=message) as error:
        run.prepare(store, request_)
    assert error.value.exit_code == 2
    assert not os.path.exists(store.jobs)


def test_a_bundle_without_a_job_runs_the_words(tmp_path, programs):
    store = made.store(tmp_path / "root", jobs=[])
    assert result.launch(run.prepare(store, REQUEST._replace(extra=["true"]))).command == ["true"]
    with pytest.raises(UsageError, match="hello has no job"):
        run.prepare(store, REQUEST)


def test_what_does_not_fit_is_refused(tmp_path, store, programs):
    with pytest.raises(Refused, match="8 ranks per node x 2 threads = 16"):
        run.prepare(store, REQUEST._replace(ranks_per_node=8))
    bare = made.PLAN._replace(modules=[])
    os.unlink(str(programs / "ch-run"))
    programs_only = made.store(tmp_path / "other", plan=bare)
    old = os.environ["PATH"]
    os.environ["PATH"] = str(programs)
    try:
        with pytest.raises(Refused, match="no ch-run in PATH"):
            run.prepare(programs_only, REQUEST)
    finally:
        os.environ["PATH"] = old
    udocker = made.PLAN._replace(start_options=[made.START_OPTION._replace(runtime="udocker")])
    with pytest.raises(Refused, match="the bundle was packed without udocker"):
        run.prepare(made.store(tmp_path / "third", plan=udocker), REQUEST)


def test_submit_follow_and_status(store, programs):
    fake_slurm(programs, "COMPLETED", log="trained")
    folder = run.prepare(store, REQUEST)
    assert run.submit(folder) == "77"
    told = []
    jobs.follow(folder, told.append)
    assert told == ["COMPLETED, exit 0"]
    status = jobs.status(folder)
    assert (status.job_id, status.state, status.exit_code, status.active) == ("77", "COMPLETED", 0, False)
    assert json.loads(json.dumps(status.record()))["job"] == os.path.basename(folder)
    assert jobs.tail(folder) == ["trained"]


@pytest.mark.parametrize(("terminal", "told"), [("1", "deployer: COMPLETED, exit 0\n"), ("", "")])
def test_a_person_on_a_laptop_sees_how_it_goes(store, programs, monkeypatch, capsys, terminal, told):
    fake_slurm(programs, "COMPLETED")
    monkeypatch.setenv("DEPLOYER_TERMINAL", terminal)
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 0
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("payload", "lines"),
    [
        ({"val_accuracy": 0.97, "epochs": [{"loss": 1}] * 40}, ["val_accuracy: 0.97", "epochs: 40 items, the last: "]),
        ({"\x1b[2J": "\x9b31m\n" + "x" * 100}, ['\\u001b[2J: "\\u009b31m\\nxxx']),
        ({str(number): number for number in range(20)}, ["11: 11", ": 8 more fields"]),
        (None, [": no result of its own"]),
        (3.5, [": 3.5"]),
    ],
)
def test_a_wait_ends_with_state_seconds_log_and_the_payload_s_result(store, programs, capsys, payload, lines):
    """Nobody looks on here: it is not a terminal."""
    fake_slurm(programs, "COMPLETED", seconds=14, payload=payload)
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 0
    said = capsys.readouterr()
    out, ((folder,), _) = said.out.splitlines(), jobs.folders(store)
    assert out[1:4] == [
        f"job {os.path.basename(folder)} (77): COMPLETED, exit 0, 14 s",
        f"log: {folder}/output.log",
        f"result: {folder}/result.json",
    ]
    assert all("payload" + (line if line[0] == ":" else " " + line) in said.out for line in lines)
    assert out[-1] == "proof: none: result.json lists no ranks"
    assert len(out) < 19
    assert max(len(line) for line in out[4:]) < 160
    assert said.err == ""
    assert main.main(["run", "hello", "--wait", "--json", "--root", store.root]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["seconds"], os.path.basename(status["log"])) == (14, "output.log")


def test_a_wait_ends_with_the_warnings_about_a_job_that_did_well(store, programs, capsys):
    found = [
        {"code": code, "severity": severity, "subject": "job", "message": "each alone\x1b", "remedy": "see\x1b it"}
        for code, severity in (("net.alone", "warning"), ("runtime.native", "note"))
    ]
    fake_slurm(programs, "COMPLETED", seconds=14, findings=found)
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 0
    out = capsys.readouterr().out
    assert "/result.json\nwarning net.alone: job: each alone\\x1b; see\\x1b it\npayload: no result" in out
    assert "runtime.native" not in out


def test_a_wait_for_a_job_that_failed_ends_with_the_remedy(store, programs, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "_LAG", 0.0)
    found = {"code": "job.module", "severity": "error", "subject": "job", "message": "no module", "remedy": "capture"}
    fake_slurm(programs, "FAILED", 2, findings=[found])
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 1
    assert ": no module (job.module)\nhint: capture\n" in capsys.readouterr().err
    log = ["said", "deployer: error job.module: no module", "hint: capture"]
    log += ["deployer: error mpi.x: y", "hint: z", "deployer: more: m"]
    fake_slurm(programs, "FAILED", 2, "\n".join(log), findings=[found])
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 1
    err = capsys.readouterr().err
    assert "| said\n| deployer: error mpi.x: y\n| hint: z\ndeployer: error: job " in err  # what follows is not repeated
    assert err.count("no module") == 1
    assert main.main(["status", "--wait", "--root", store.root]) == 1
    assert "no module" in capsys.readouterr().err
    assert main.main(["status", "--wait", "--after-log", "--root", store.root]) == 1  # the log that was printed has it
    assert capsys.readouterr().err.splitlines()[0].endswith("(77) ended as FAILED")


def test_a_wait_for_a_job_that_failed_ends_with_the_same(store, programs, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "_LAG", 0.0)
    fake_slurm(programs, "FAILED", 2)
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 1
    assert "(77): FAILED, exit 2, 0:01\nlog: " in capsys.readouterr().out
    made.program(programs, "sbatch", "echo 77")
    assert main.main(["run", "hello", "--wait", "--root", store.root]) == 1
    assert "(77): FAILED, 0:01\n" in capsys.readouterr().out


@pytest.mark.needs("user-namespaces")  # else the image's runtime is refused
def test_ctrl_c_tells_that_the_job_continues_and_how_to_end_it(store, programs):
    fake_slurm(programs, "RUNNING")
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from deployer.cli.site import main as site; sys.exit(site.main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "run", "hello", "--wait", "--root", store.root]
    environment = dict(os.environ, PYTHONPATH=os.getcwd(), DEPLOYER_TERMINAL="1")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, env=environment, start_new_session=True) as process:
        name = process.stdout.readline().decode().split()[1]
        assert b"RUNNING" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    words = f"{sys.executable} {store.tool} cancel {name}"
    assert err.decode() == f"deployer: interrupted: job {name} (77) continues\nhint: to end it: {words}\n"


@pytest.mark.parametrize(("state", "code"), [("FAILED", 1), ("TIMEOUT", 143), ("COMPLETED", 3)])
def test_a_job_that_failed(store, programs, state, code):
    fake_slurm(programs, state, code)
    folder = submitted(store)
    with pytest.raises(JobFailed, match="ended as " + state) as error:
        jobs.follow(folder, lambda line: None)
    assert error.value.exit_code == 1


def found_in(folder):
    """Return the findings of a job's result.json."""
    return [records.read(Finding, item) for item in result.read(folder).items("findings")]


UNFINISHED = {"code": "job.unfinished", "severity": "error", "subject": "job", "message": "m", "remedy": "r"}


@pytest.mark.parametrize(
    ("state", "findings", "log", "problem"),
    [
        ("NODE_FAIL", ["job.stopped"], "srun: error: Node failure on cn2", "a node of it died .*Node failure on cn2"),
        ("NODE_FAIL", ["job.ended"], "", r"^job: m \(job.ended\)"),
        ("OUT_OF_MEMORY", ["payload.out-of-memory"], "", r"\(payload.out-of-memory\)"),
        ("OUT_OF_MEMORY", ["payload.failed"], "", r"the kernel killed it for lack of memory \(job.ended\)"),
        ("CANCELLED", ["job.stopped"], "", r"\(job.stopped\)"),
        ("CANCELLED", None, "", r"its owner or the site cancelled it \(job.ended\)"),
        ("TIMEOUT", None, "", r"it reached its time limit \(job.ended\)"),
        ("FAILED", ["payload.failed"], "x: not found", r"\(payload.failed\)"),
        (
            "FAILED",
            None,
            "job.sh: line 36: /p: No such file",
            r"its result: job.sh: line 36: /p: No such file \(job.un",
        ),
        ("FAILED", None, "", r"could write its result \(job.unfinished\)"),
        ("COMPLETED", [], "", "^$"),
    ],
)
def test_why_a_job_ended_is_the_most_specific_of_what_is_known(store, state, findings, log, problem):
    folder = run.prepare(store, REQUEST)
    if findings is not None:
        record = json_records.stamped("result", {"exit_code": 143 if findings else 0, "seconds": 1})
        record["findings"] = [dict(UNFINISHED, code=code) for code in findings]
        files.write_text(os.path.join(folder, "result.json"), json.dumps(record))
    files.write_text(os.path.join(folder, "output.log"), log + "\n")
    status = jobs.describe(result.launch(folder), folder, "7", JobState(state, "", "", "", False))
    assert re.search(problem, status.problem)
    assert bool(status.remedy) == (state != "COMPLETED")


@pytest.mark.parametrize(
    ("fault", "log", "why"),
    [
        (errno.EROFS, "", ": its folder cannot be written: Read-only file system"),
        (errno.EACCES, None, ": its folder cannot be written: Permission denied"),
        (0, None, ": there is no log either, so its first node could not write to its folder: is it mounted there?"),
        (0, "", ""),
        (errno.EROFS, "error: first", ": error: first"),
    ],
)
def test_why_a_job_could_not_write_to_its_folder(store, monkeypatch, fault, log, why):
    folder = run.prepare(store, REQUEST)
    if log is not None:
        files.write_text(os.path.join(folder, "output.log"), log + "\n")

    def refused(**_):
        raise OSError(fault, os.strerror(fault))

    if fault:
        monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    status = jobs.describe(result.launch(folder), folder, "7", JobState("FAILED", "", "", "", False))
    assert status.problem == f"job: the job ended before it could write its result{why} (job.unfinished)"


def test_a_job_that_left_nothing(store, programs, monkeypatch):
    monkeypatch.setattr(jobs, "_LAG", 0.0)
    fake_slurm(programs, "NODE_FAIL", None)
    folder = submitted(store)
    with pytest.raises(JobFailed, match=r"ended as NODE_FAIL: job: a node of it died .*\(job.ended\)") as error:
        jobs.follow(folder, lambda line: None)
    assert "sinfo -R" in error.value.hint
    assert jobs.status(folder).problem == "job: a node of it died or does not answer properly (job.ended)"
    assert jobs.status(folder).remedy == error.value.hint
    fake_slurm(programs, "RUNNING", None)
    assert jobs.status(folder).line().splitlines()[1:] == []


def test_slurm_may_still_wait_for_a_dead_node(store, programs):
    """Its state is COMPLETING for minutes, but job.sh has ended and has written why."""
    fake_slurm(programs, "COMPLETING", 3)
    folder = submitted(store)
    record = json_records.stamped("result", {"exit_code": None, "seconds": 1, "findings": []})
    for code, exit_code, known in (("job.unfinished", None, False), ("job.ended", 3, True)):
        record.update(exit_code=exit_code, findings=[dict(UNFINISHED, code=code)])
        files.write_text(os.path.join(folder, "result.json"), json.dumps(record))
        assert (jobs.status(folder).state, bool(jobs.status(folder).problem)) == ("COMPLETING", known)
    with pytest.raises(JobFailed, match=r"ended as FAILED: job: m \(job.ended\)"):
        jobs.follow(folder, lambda line: None)
    record["exit_code"] = 143  # Slurm stopped it, and may start it again
    files.write_text(os.path.join(folder, "result.json"), json.dumps(record))
    once = 'mkdir "$0.once" 2>/dev/null && state=COMPLETING || state=NODE_FAIL\n'
    made.program(programs, "squeue", once + 'echo "77|$state|0:01|cn1|None"')
    with pytest.raises(JobFailed, match="ended as NODE_FAIL: job: m "):
        jobs.follow(folder, lambda line: None)
    requeued = JobState("PENDING", active=True)  # the result is the earlier attempt's
    assert jobs.describe(result.launch(folder), folder, "77", requeued).problem == ""


@pytest.mark.thorough
def test_following_ends_when_nobody_reads(store, programs):
    """ssh ended: the far end of `logs -f` must not ask Slurm until the job's end."""
    fake_slurm(programs, "RUNNING", log="one")
    submitted(store)
    code = "import sys; from deployer.cli.site import main as site; "
    code += "sys.exit(site.main(['logs', '-f', '--root', sys.argv[1]]))"
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    argv = [sys.executable, "-c", code, store.root]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.read(3) == b"one"
        process.stdout.close()
        assert process.wait(30) == 0


def test_a_failed_job_is_told_what_became_of_its_image(store, programs):
    folder = run.prepare(store, REQUEST)
    installed = store.find("hello")
    launched = result.launch(folder)
    Path(folder, result.LAUNCH_FILE).write_text(json.dumps(dict(launched.record(), digest="sha256:aaaa")))
    ended = StepOutcome("payload", 1, None, "7", 0, 9)
    inventory.write_inventory(installed.folder)
    assert not {"image.gone", "image.incomplete"} & codes(result.write_result(folder, ended))
    os.rmdir(os.path.join(installed.rootfs, "data"))
    assert "image.incomplete" in codes(result.write_result(folder, ended))
    status = jobs.status(folder)._replace(job_id="7")
    assert status.problem.endswith("files and folders are gone: rootfs/data (image.incomplete)")
    assert status.line().splitlines()[1:] == ["  " + status.problem, "  remedy: " + status.remedy]
    assert status.record()["remedy"]
    shutil.rmtree(installed.folder)
    assert "image.gone" in codes(result.write_result(folder, ended))
    assert "image.gone" not in codes(result.write_result(folder, ended._replace(exit_code=0)))


@pytest.mark.parametrize(
    ("image", "job", "folder"),
    [("/", None, "/deployer/job"), ("", None, "/deployer/job"), ("/work", None, None), ("/work", "/data", "/data")],
)
def test_a_job_starts_where_it_may_write_or_where_it_is_told(tmp_path, programs, image, job, folder):
    jobs_ = [Job("train", ["true"], 1, 1, 1, "1:00:00", job)]
    store = made.store(tmp_path / "root", plan=made.PLAN, jobs=jobs_, image=made.IMAGE._replace(workdir=image))
    text = run.show_script(run.prepare(store, REQUEST._replace(job="train", nodes=1, ranks_per_node=1, threads=1)))
    payload = text[text.index(". Payload: ") :]
    assert (f"--cd={folder} " in payload) is (folder is not None)
    assert ("--cd=" in payload) is (folder is not None)


def test_standard_input_of_the_job_or_of_the_call(tmp_path, programs):
    jobs_ = [Job("train", ["true"], 1, 1, 1, "1:00:00", stdin="/deployer/app/in")]
    store = made.store(tmp_path / "root", plan=made.PLAN, jobs=jobs_)
    request = REQUEST._replace(job="train", nodes=1, ranks_per_node=1, threads=1)
    with pytest.raises(Refused, match="there is no /deployer/app/in, which is the job's stdin"):
        run.prepare(store, request)
    assert not os.path.isdir(store.jobs)
    assert " --stdin /deployer/app/in -- true" in run.show_script(run.prepare(store, request._replace(force=True)))
    given = run.show_script(run.prepare(store, request._replace(stdin="/deployer/app/train.py")))
    assert " --stdin /deployer/app/train.py -- true" in given
    with pytest.raises(UsageError, match="invalid file for standard input: 'in'"):
        run.prepare(store, request._replace(stdin="in"))


def test_standard_input_in_a_bound_folder_is_looked_for_on_this_host(tmp_path, programs):
    store = made.store(tmp_path / "root", plan=made.PLAN, jobs=[Job("train", ["true"], 1, 1, 1, "1:00:00")])
    (tmp_path / "in").write_text("")
    (tmp_path / "link").symlink_to("/only/in/the/container")
    bound = REQUEST._replace(job="train", nodes=1, ranks_per_node=1, threads=1, binds=[f"{tmp_path}:/data"])
    with pytest.raises(Refused, match=f"this host has no {tmp_path}/gone, which is the job's stdin"):
        run.prepare(store, bound._replace(stdin="/data/gone"))
    for name in ("in", "link", "link/in"):
        assert f" --stdin /data/{name} " in run.show_script(run.prepare(store, bound._replace(stdin="/data/" + name)))
    assert " --stdin /scratch/gone " in run.show_script(run.prepare(store, bound._replace(stdin="/scratch/gone")))


def test_without_a_plan_exec_starts_the_kits_ch_run_if_the_site_has_none(store, programs, monkeypatch):
    monkeypatch.setenv("PATH", str(programs))
    installed = store.find("hello")
    assert execs._default(installed) == "charliecloud"
    os.unlink(str(programs / "ch-run"))
    assert execs._default(installed) == "charliecloud"  # its start says that there is none
    carried = Path(installed.engine) / "charliecloud"
    carried.mkdir(parents=True)
    for script in ("#!/bin/sh\necho 0.31\n", "#!/bin/sh\nexit 126\n"):  # the start of a broken one says why
        made.program(carried, "run", script)
        assert execs._default(installed) == "charliecloud-kit"
    made.program(programs, "ch-run", "echo 0.26")
    assert execs._default(installed) == "charliecloud-kit"
    made.program(programs, "ch-run", "echo 0.38")
    assert execs._default(installed) == "charliecloud"


def test_exec_starts_in_the_users_folder_if_it_is_bound_else_at_home(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    linked = [Bind(str(tmp_path / "link"), "/data", "x")]
    assert execs.working_folder(linked, "/home", str(tmp_path / "real" / "a")) == "/data/a"
    assert execs.working_folder(linked, "/home", "") == "/home"  # it is gone
    binds = [Bind("/lustre/home/u", "/data", "x"), Bind("/", "/all", "x"), Bind("/scratch/u/", "/mnt", "x")]
    for here, there in (("/scratch/u/run 1", "/mnt/run 1"), ("/scratch/us", "/all/scratch/us"), ("/scratch/u", "/mnt")):
        assert execs.working_folder(binds, "/home", here) == there
    assert execs.working_folder(binds[:1], "/home", "/lustre/home/us") == "/home"
    assert execs.working_folder(binds[:1], "/home", "/lustre/home/u/a") == "/data/a"


def test_the_end_of_the_log_tells_why_a_payload_failed_and_nothing_from_before_it(store, programs):
    folder = run.prepare(store, REQUEST)
    os.mkdir(os.path.join(folder, "hosts"))
    log = os.path.join(folder, result.LOG)
    for host in ("cn1", "cn2"):
        made.write(os.path.join(folder, "hosts", host + ".json"), evidence.record(HostRecord(host, "build-id:aa")))

    def failed():
        result.write_result(folder, StepOutcome("payload", 1, None, "7", 0, 9))
        found = {each.code: each.message for each in found_in(folder)}
        return found["payload.failed"].partition("; last line: ")[2], {"payload.read-only", "payload.no-network"} & set(
            found
        )

    Path(log).write_text("module: Read-only file system\n")
    assert result.write_result(folder, StepOutcome("hosts", 0, None, "7", 0, 9))["exit_code"] is None
    assert failed() == ("", set())
    with open(log, "a") as stream:
        stream.write("x" * 100000 + "\n\x1b]0;curl: (6) Could not resolve host: a.example\nsrun: error: cn1: task 0\n")
    assert failed() == ("\\x1b]0;curl: (6) Could not resolve host: a.example", {"payload.no-network"})
    os.unlink(log)
    assert failed() == ("", set())


@pytest.mark.parametrize(("exit_code", "code"), [(0, "hosts.count"), (1, "hosts.failed")])
def test_a_node_without_a_record_is_named(store, programs, exit_code, code):
    folder = run.prepare(store, REQUEST._replace(nodes=3))
    os.mkdir(os.path.join(folder, "hosts"))
    for host in ("cn1", "cn3"):
        made.write(os.path.join(folder, "hosts", host + ".json"), evidence.record(HostRecord(host, "build-id:aa")))

    def message(nodes, reason=None):
        made.program(programs, "scontrol", f"echo {nodes} | tr ' ' '\n'")
        outcome = StepOutcome("hosts", exit_code, None, "7", 0, 9, reason=reason)
        return {each["code"]: each["message"] for each in result.write_result(folder, outcome)["findings"]}[code]

    assert message("cn1 cn2 cn3").endswith(", not cn2")
    assert ", not " not in message("a1 a2 a3")  # Slurm has other names for the nodes
    assert ", not " not in message("cn1 cn2 cn3", "cn2 has no room")  # the step did not wait for the others


@pytest.mark.parametrize("step", ["hosts", "payload"])
def test_a_result_comes_out_of_a_full_disk(store, programs, monkeypatch, step):
    folder = run.prepare(store, REQUEST)
    os.mkdir(os.path.join(folder, "hosts"))
    taken = os.path.join(folder, result_reserve.NAME)
    ended = StepOutcome(step, 0, None, "7", 0, 9)
    assert os.path.getsize(taken) > 64 * 1024
    write = result.files.write_text

    def full(path, text, mode=0o666):
        if os.path.exists(taken):
            raise SpaceError(f"cannot write {path}: No space left on device")
        write(path, text, mode)

    monkeypatch.setattr(result.files, "write_text", full)
    verdict = result.write_result(folder, ended)
    assert verdict["exit_code"] == 6
    assert jobs.status(folder).problem.startswith(
        "job: the disk with the job's folder is full, so evidence and log may be "
    )
    assert not os.path.exists(taken)


def test_the_room_for_the_result_is_there_from_step_to_step(store, programs):
    folder = run.prepare(store, REQUEST)
    taken = os.path.join(folder, result_reserve.NAME)
    result.write_result(folder, StepOutcome("payload", 0, None, "7", 0, 9))
    assert not os.path.exists(taken)
    os.mkdir(os.path.join(folder, "hosts"))
    for number in range(result.launch(folder).nodes):
        record = evidence.record(HostRecord("cn%d" % number, "build-id:aa"))
        made.write(os.path.join(folder, "hosts", "cn%d.json" % number), record)
    assert (
        result.write_result(folder, StepOutcome("hosts", 0, None, "8", 0, 9))["exit_code"] is None
    )  # submitted again by hand
    assert os.path.exists(taken)
    assert result.write_result(folder, StepOutcome("root", 1, None, "8", 0, 9))["exit_code"] == 3
    assert not os.path.exists(taken)


def codes(verdict):
    return {item["code"] for item in verdict["findings"]}


def test_a_forgotten_job_is_known_from_its_result(store, programs):
    fake_slurm(programs, "COMPLETED", 0)
    folder = submitted(store)
    made.program(programs, "squeue", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert jobs.status(folder).state == "COMPLETED"
    os.unlink(os.path.join(folder, "result.json"))
    assert jobs.status(folder).state == "UNKNOWN"


def test_a_silent_scheduler_is_asked_again(store, programs, monkeypatch):
    monkeypatch.setattr(jobs, "_FIRST", 0.01)
    fake_slurm(programs, "COMPLETED")
    folder = submitted(store)
    made.program(
        programs,
        "squeue",
        (
            f"if [ -e {folder}/asked ]; then echo '77|COMPLETED|0:01|cn1|None'; exit; fi\n"
            f"touch {folder}/asked; echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1"
        ),
    )
    told = []
    jobs.follow(folder, told.append)
    assert told[0].endswith("trying again")


def test_sbatch_says_no(store, programs):
    made.program(programs, "sbatch", "echo 'sbatch: error: invalid partition specified: batch' >&2; exit 1")
    folder = run.prepare(store, REQUEST)
    with pytest.raises(Refused, match=r"invalid partition.*\(queue.partition\)"):
        run.submit(folder)
    assert not os.path.exists(folder)  # nothing is left that looks like a job
    made.program(programs, "sbatch", "echo no number")
    folder = run.prepare(store, REQUEST)
    with pytest.raises(Refused, match="no job id"):
        run.submit(folder)
    assert jobs.status(folder).state == "NEW"  # perhaps it was submitted


#: The end of a job's name that a laptop chose.
TOKEN = "20261123T080000-0123abcd"
#: The controller's answer is lost.
LOST = "echo 'sbatch: error: Batch job submission failed: Message receive failure' >&2; exit 1"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (LOST, "failure"),
        ("echo 'sbatch: error: Invalid account' >&2; kill -9 $$", "account"),
        ("echo 77; echo 'sbatch: error: Invalid account' >&2; exit 1", "account"),  # a wrapper has submitted it
        ("echo 'A plugin: Invalid account' >&2; " + LOST, "account"),
    ],
)
def test_a_job_that_may_have_been_submitted_keeps_its_folder(store, programs, words, rule):
    made.program(programs, "sbatch", words)
    folder = run.prepare(store, REQUEST)
    with pytest.raises(Refused, match=rule):
        run.submit(folder)
    assert jobs.status(folder).state == "NEW"


@pytest.mark.thorough
@pytest.mark.parametrize("answer", [LOST, "exec sleep 60", "echo welcome"])
def test_a_job_that_slurm_took_without_an_answer_is_found(store, programs, monkeypatch, capfd, answer):
    monkeypatch.setattr(jobs, "_PATIENCE", 1.0 if "sleep" in answer else 60.0)
    taken = os.path.join(store.root, "taken")
    made.program(programs, "sbatch", f"echo $2 >{taken}; {answer}")
    says = 'case "$*" in *%%o*) echo "9|/j/job.sh"; printf "77|"; cat %s ;; *) echo "77|RUNNING|0:01|cn1|None" ;; esac'
    made.program(programs, "squeue", says % taken)
    folder = run.prepare(store, REQUEST)
    assert run.submit(folder) == "77"
    assert jobs.job_id(folder) == "77"

    # It becomes visible only later, when the same command is repeated, or its status or its end is asked for.
    os.unlink(os.path.join(folder, "job_id"))
    assert jobs.status(folder).state == "RUNNING"
    os.unlink(os.path.join(folder, "job_id"))
    made.program(programs, "scancel", f'echo "$*" >{taken}.cancelled')
    assert jobs.cancel(folder)
    assert files.read_text(taken + ".cancelled") == "77\n"


def test_a_job_that_slurm_may_have_taken_is_found_by_the_same_command(store, programs, monkeypatch):
    request, squeue = REQUEST._replace(token=TOKEN), "echo 'Unable to contact slurm controller' >&2; exit 1"
    made.program(programs, "sbatch", LOST)
    made.program(programs, "squeue", squeue)
    folder = run.prepare(store, request)
    with pytest.raises(Refused, match="failure"):
        run.submit(folder)
    told = []
    with pytest.raises(TransferError, match="Unable to contact"):  # nobody knows, so there is no second job
        earlier.earlier(store, request, told.append)
    found = f"case $* in *%o*) echo '77|{folder}/job.sh' ;; *) echo '77|PENDING|0:00||None' ;; esac"
    made.program(programs, "squeue", found)
    assert earlier.earlier(store, request, told.append) == (folder, "77", "")


def test_a_job_that_was_only_prepared_has_a_status_without_the_scheduler(store, programs, capfd):
    folder = run.prepare(store, REQUEST)
    assert jobs.status(folder)[3:] == ("NEW", "", "", "", False, None, "", None, "", {}, ())
    made.program(programs, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    status = jobs.status(folder)
    assert (status.state, status.job_id, status.active) == ("NEW", None, False)
    assert status.problem.startswith("perhaps it was submitted: squeue failed: Unable to contact")
    assert status.remedy == "is Slurm up? try: sinfo"
    with pytest.raises(TransferError, match="Unable to contact"):  # what is not known cannot be cancelled
        jobs.cancel(folder)


def test_a_number_that_cannot_be_written_is_known_all_the_same(store, programs, monkeypatch, capfd):
    fake_slurm(programs, "RUNNING")
    folder, write_text = run.prepare(store, REQUEST), files.write_text

    def full(path, *words):
        if os.path.basename(path) == "job_id":
            raise SpaceError(f"cannot write {path}: No space left on device")
        write_text(path, *words)

    monkeypatch.setattr(files, "write_text", full)
    assert run.submit(folder) == "77"
    assert f"warning: job 77 was submitted, but: cannot write {folder}/job_id: No space" in capfd.readouterr().err
    made.program(programs, "squeue", f'case "$*" in *%o*) echo "77|{folder}/job.sh" ;; *) echo "77|RUNNING" ;; esac')
    assert not os.path.exists(os.path.join(folder, "job_id"))
    assert jobs.status(folder).line().startswith(f"{os.path.basename(folder)}  77  RUNNING")
    made.program(programs, "squeue", f'case "$*" in *%o*) echo "77|{folder}/job.sh" ;; *) echo "77|COMPLETED" ;; esac')
    jobs.follow(folder, lambda line: None)


def test_a_refused_job_whose_files_cannot_be_removed_has_no_name(store, programs, monkeypatch):
    made.program(programs, "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    folder = run.prepare(store, REQUEST)

    def denied(path, ignore_errors=False, **_):
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("shutil.rmtree", denied)
    with pytest.raises(Refused, match="Invalid account"):
        run.submit(folder)
    assert not os.path.exists(folder)


def test_sbatch_gets_a_small_environment(store, programs, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    for name in ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "abc")
    made.program(programs, "sbatch", 'env >"$(dirname "$2")/env"; echo 77')
    folder = submitted(store)
    text = Path(folder, "env").read_text()
    # For sbatch they count before the script's directives: --partition and the plan's account would have no effect.
    assert "SBATCH_" not in text
    assert "SLURM_CLUSTERS" not in text
    assert "SECRET" not in text
    said = run.show_script(folder)
    assert "#SBATCH --account=abc\n" in said
    assert "#SBATCH --clusters=abc\n" in said
    made.program(programs, "squeue", 'echo "$SLURM_CLUSTERS" >%s; exit 1' % (store.root + "/asked"))
    jobs.ask(["squeue"])
    assert files.read_text(store.root + "/asked") == "abc\n"


def test_podman_would_end_a_payload_without_a_handler(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(start_option, "vetoes", lambda *_: {})
    plan = made.PLAN._replace(start_options=[made.START_OPTION._replace(name="podman-folder", runtime="podman")])
    plain = made.store(tmp_path / "plain", plan=plan, image=made.IMAGE._replace(python=None))
    with pytest.raises(Refused, match="--again: the image has no Python, so podman would send"):
        run.prepare(plain, REQUEST._replace(again=1, time="01:00:00"))
    run.prepare(plain, REQUEST)
    run.prepare(made.store(tmp_path / "python", plan=plan), REQUEST._replace(again=1, time="01:00:00"))


@pytest.mark.parametrize(
    ("directives", "gpus", "near"), [([], None, True), ([], 2, True), ([], 1, False), (["--gres=gpu:1"], None, False)]
)
def test_ranks_are_near_gpus_only_if_the_job_has_all_of_them(tmp_path, programs, directives, gpus, near):
    plan = made.PLAN._replace(
        node=NodeShape(2, 4, 1, 4000, numa_domains=2),
        batch=Batch(gpus=GpuRequest("gres", 2, None)),
        directives=directives,
        gpu_order="CUDA_VISIBLE_DEVICES",
        gpu_places=(GpuPlace(0, 1), GpuPlace(1, 0)),
    )
    request = REQUEST._replace(ranks_per_node=2, options=SubmissionOptions(gpus=gpus))
    folder = run.prepare(made.store(tmp_path / "root", plan=plan), request)
    assert ("CUDA_VISIBLE_DEVICES=1,0" in run.show_script(folder)) is near


def test_finding_jobs(store, programs):
    with pytest.raises(UsageError, match="there are no jobs"):
        jobs.find(store, None)
    fake_slurm(programs, "COMPLETED")
    first, second = run.prepare(store, REQUEST), run.prepare(store, REQUEST)
    os.utime(os.path.join(first, "job.json"), (1, 1))
    assert jobs.find(store, None) == second
    run.submit(first)
    assert jobs.find(store, None) == first  # the other one is a --dry-run
    assert jobs.find(store, "77") == jobs.find(store, os.path.basename(first)) == first
    with pytest.raises(UsageError, match="no job 78"):
        jobs.find(store, "78")


def test_cancel_for_programs(store, programs, capsys):
    fake_slurm(programs, "RUNNING")
    made.program(programs, "scancel", "exit 0")
    folder = submitted(store)
    assert main.main(["cancel", "--json", "--root", store.root]) == 0
    expected = {"job": os.path.basename(folder), "job_id": "77", "folder": folder, "cancelled": True}
    assert json.loads(capsys.readouterr().out) == expected
    fake_slurm(programs, "COMPLETED")
    assert main.main(["cancel", "--root", store.root]) == 0
    assert capsys.readouterr().out == f"job {os.path.basename(folder)} (77) had already ended\n"


def log_of(folder, follow=True):
    with tempfile.TemporaryFile() as stream:
        jobs.show_log(folder, follow, stream)
        stream.seek(0)
        return stream.read()


def test_who_follows_a_log_asks_rarely_until_the_result_changes(store, programs, monkeypatch):
    """An hour of `logs -f` asks the batch system 300 times at most, and sees the end at once."""
    fake_slurm(programs, "RUNNING", log="one\n")
    folder = submitted(store)
    begun = now = time.time()
    written, asked = begun + 3600, []

    def sleep(seconds):
        nonlocal now
        if now < written <= now + seconds:
            made.write(os.path.join(folder, "result.json"), {})
        now += seconds

    def state(*_):
        asked.append(now)
        return JobState("RUNNING" if now < written else "COMPLETED", active=now < written)

    monkeypatch.setattr(jobs, "time", types.SimpleNamespace(time=lambda: now, sleep=sleep))
    monkeypatch.setattr(jobs, "state", state)
    assert log_of(folder) == b"one\n"
    assert 200 < len(asked) < 300
    assert asked[-1] - written <= 2


def test_cancel_and_logs(store, programs, tmp_path):
    fake_slurm(programs, "RUNNING", log="one\ntwo\n")
    made.program(programs, "scancel", f'echo "$1" >{tmp_path}/cancelled')
    folder = run.prepare(store, REQUEST)
    with pytest.raises(UsageError, match="never submitted"):
        jobs.cancel(folder)
    with pytest.raises(UsageError, match="no log yet"):
        jobs.show_log(folder, False)
    run.submit(folder)
    assert jobs.cancel(folder)
    assert (tmp_path / "cancelled").read_text() == "77\n"
    fake_slurm(programs, "CANCELLED", log="one\ntwo\n")
    for follow in (False, True):
        assert log_of(folder, follow) == b"one\ntwo\n"


def test_a_followed_log_ends_with_the_end_of_a_line(store, programs):
    fake_slurm(programs, "COMPLETED", log="one\nEnter a number: ")
    folder = submitted(store)
    for follow, end in ((False, b""), (True, b"\n")):
        assert log_of(folder, follow) == b"one\nEnter a number: " + end


def test_a_followed_log_goes_on_while_the_scheduler_does_not_answer(store, programs, monkeypatch):
    fake_slurm(programs, "COMPLETED", log="one\n")
    folder = submitted(store)
    monkeypatch.setattr(jobs.time, "sleep", lambda _: None)
    monkeypatch.setattr(jobs, "_FIRST", 0)
    answers = [TransferError("no answer"), None]
    known = jobs.state

    def state(*words):
        error = answers.pop(0)
        if error:
            raise error
        return known(*words)

    monkeypatch.setattr(jobs, "state", state)
    assert log_of(folder) == b"one\n"
    answers.append(TransferError("no answer"))
    monkeypatch.setattr(jobs, "_SILENCE", -1)
    with pytest.raises(TransferError):
        log_of(folder)


def test_what_a_job_left_is_gathered_and_broken_records_count_as_none(store):
    folder = run.prepare(store, REQUEST)
    os.makedirs(os.path.join(folder, "hosts"))
    os.makedirs(os.path.join(folder, "ranks"))
    for name, text in (
        ("hosts/cn1.json", json.dumps(evidence.record(HostRecord("cn1", None)))),
        ("hosts/cn2.json", '{"schema":"deployer.ho'),
        ("ranks/probe-0.json", "\xff"),
        ("ranks/probe-0.log", "a\nlast words\n"),
        ("payload.json", '{"val_accuracy": 0.97}'),
    ):
        Path(folder, name).write_text(text)
    found = result.gather(folder)
    assert [item.host for item in found.hosts] == ["cn1"]
    assert (found.probes, found.logs) == ([], {0: "last words"})
    assert (found.payload, found.payload_error) == ({"val_accuracy": 0.97}, None)
    Path(folder, "payload.json").write_text("{")
    assert result.gather(folder).payload_error is not None


def test_the_runtime_always_has_a_user(monkeypatch):
    monkeypatch.delenv("USER", raising=False)
    assert container.user_environment()["USER"]


def test_the_variant_of_the_plans_family_is_bound_and_found_first(store):
    home = store.find("hello").folder
    for abi in ("mpich-abi", "openmpi"):
        os.makedirs(os.path.join(home, "variants", abi, "lib"))
    made.write(os.path.join(home, "plans", "lab.json"), made.PLAN._replace(abi="openmpi").record())
    text = run.show_script(run.prepare(store, REQUEST))
    assert f"    --bind={home}/variants/openmpi:/deployer/variant\n" in text
    assert "    --set-env=PYTHONPATH=/deployer/variant/lib\n" in text
    assert "variants/mpich-abi" not in text


def test_an_mpi_that_was_replaced_since_the_capture_is_refused(tmp_path, programs):
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(b"the library that was captured")
    identity = "sha256:" + hashlib.sha256(library.read_bytes()).hexdigest()
    mpi = made.PLAN.mpi._replace(library=str(library), identity=identity)
    store = made.store(tmp_path / "root", plan=made.PLAN._replace(mpi=mpi))
    assert result.launch(run.prepare(store, REQUEST)).mpi == mpi
    library.write_bytes(b"another")
    with pytest.raises(Refused, match=r"mpi\.host-drift: .*but the site was captured with sha256:") as error:
        run.prepare(store, REQUEST)
    assert "make a new plan" in error.value.hint
    library.unlink()  # a login node that does not have it proves nothing
    run.prepare(store, REQUEST)


def test_a_library_beside_an_unchanged_mpi_that_was_replaced_is_refused(tmp_path, programs, monkeypatch):
    library, pal = tmp_path / "libmpi.so.12", tmp_path / "libopen-pal.so.80"
    for path in (library, pal):
        path.write_bytes(b"the library that was captured")
    identity = "sha256:" + hashlib.sha256(pal.read_bytes()).hexdigest()
    known = {str(pal): identity, "/usr/lib64/libpsm2.so.2": "build-id:00"}
    mpi = made.PLAN.mpi._replace(library=str(library), identity=identity, libraries=known)
    store = made.store(tmp_path / "root", plan=made.PLAN._replace(mpi=mpi))
    run.prepare(store, REQUEST)
    pal.write_bytes(b"another")
    with pytest.raises(Refused, match=r"mpi\.host-drift: .*libopen-pal.so.80 is sha256:"):
        run.prepare(store, REQUEST)
    pal.unlink()
    run.prepare(store, REQUEST)


ESCAPE = Finding("mpi.escape", ERROR, "/usr/lib/x.so", "it would use the image's", "patchelf --remove-rpath it")


def test_what_check_refused_is_refused_unless_it_is_forced(tmp_path, programs):
    refused = made.store(tmp_path / "root", plan=made.PLAN._replace(checked=verdict.judged([ESCAPE])))
    with pytest.raises(Refused) as error:
        run.prepare(refused, REQUEST)
    assert "mpi.escape" in error.value.message
    assert "it would use the image's" in error.value.message
    assert error.value.hint == "patchelf --remove-rpath it; to run it anyway, use `run --force`"
    folder = run.prepare(refused, REQUEST._replace(force=True))
    assert result.launch(folder).forced
    assert run.warnings(folder)[0] == "check said REFUSE on the laptop"


def test_what_check_found_about_a_job_is_told_of_this_job_alone(tmp_path, programs):
    jobs_ = [made.JOBS[0]._replace(name=name) for name in ("a", "b")]
    slow = ESCAPE._replace(code="fabric.tcp", severity=WARNING, job="a")
    checked = verdict.judged([ESCAPE._replace(job="b"), slow])
    refused = made.store(tmp_path / "root", plan=made.PLAN._replace(checked=checked), jobs=jobs_)
    folder = run.prepare(refused, REQUEST._replace(job="a"))
    assert result.launch(folder).checked == verdict.judged([slow])
    assert [line.split(":")[0] for line in run.warnings(folder)] == [
        "check said WARN on the laptop",
        "warning fabric.tcp",
    ]
    with pytest.raises(Refused, match="escape"):
        run.prepare(refused, REQUEST._replace(job="b"))
    assert not result.launch(run.prepare(refused, REQUEST._replace(job="a", force=True))).forced


def test_a_verdict_of_another_deployer_is_told_as_such(tmp_path, programs):
    by = "by deployer 0.0.1;"
    checked = verdict.judged([ESCAPE])._replace(deployer="0.0.1")
    store = made.store(tmp_path / "root", plan=made.PLAN._replace(checked=checked))
    with pytest.raises(Refused, match=by):
        run.prepare(store, REQUEST)
    assert by in run.warnings(run.prepare(store, REQUEST._replace(force=True)))[0]


@pytest.mark.parametrize("severity", [WARNING, verdict.MISSING_FACTS])
def test_what_check_warned_of_is_told(tmp_path, programs, severity):
    checked = verdict.judged([ESCAPE._replace(severity=severity)])
    folder = run.prepare(made.store(tmp_path / "root", plan=made.PLAN._replace(checked=checked)), REQUEST)
    first, second = run.warnings(folder)
    assert checked.verdict in first
    assert second == severity + " mpi.escape: /usr/lib/x.so: it would use the image's"
    assert not result.launch(folder).forced


def test_what_was_accepted_is_no_refusal(tmp_path, programs):
    checked = verdict.judged([ESCAPE], ["mpi.escape"])
    folder = run.prepare(made.store(tmp_path / "root", plan=made.PLAN._replace(checked=checked)), REQUEST)
    assert result.launch(folder).checked == checked


def test_a_plan_without_a_verdict_is_silent(store):
    assert run.warnings(run.prepare(store, REQUEST)) == []


def test_the_canary_is_read_by_what_the_image_has(tmp_path):
    rootfs = str(tmp_path)
    assert render._canary_reader(rootfs, "/usr/bin/python3") == []  # packed by an older deployer
    os.makedirs(rootfs + "/deployer")
    (tmp_path / "deployer" / "canary").write_text("x")
    assert render._canary_reader(rootfs, None) == []
    assert render._canary_reader(rootfs, "/usr/bin/python3")[0] == "/usr/bin/python3"
    os.makedirs(rootfs + "/usr/bin")
    os.symlink("/bin/busybox", rootfs + "/usr/bin/cat")
    assert render._canary_reader(rootfs, None) == ["/usr/bin/cat", "/deployer/canary"]


def test_without_user_namespaces_charliecloud_is_vetoed(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(
        runtime_check.machine, "namespaces_denied", lambda: "no user namespaces here: Operation not permitted"
    )
    with pytest.raises(Refused, match=r"charliecloud-folder .no user namespaces here: Operation not permitted"):
        run.prepare(made.store(tmp_path / "root"), REQUEST)


def test_what_the_plan_knows_of_the_nodes_counts_more_than_this_host(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(runtime_check.machine, "namespaces_denied", lambda: "no user namespaces here")
    plan = made.PLAN._replace(namespaces=True)
    store = made.store(tmp_path / "root", plan)
    assert os.path.isdir(run.prepare(store, REQUEST))
    (image,) = store.installed()
    assert start_option.vetoes(plan, image) == {}
    assert start_option.vetoes(plan, image, here=True) == {"charliecloud": "no user namespaces here"}


def test_a_command_that_the_image_lacks_is_refused_before_anything_is_made(tmp_path, programs):
    store = made.store(tmp_path / "root", jobs=[])

    def prepared(*words, **changes):
        return run.prepare(store, REQUEST._replace(extra=list(words), **changes))

    with pytest.raises(Refused, match=r"job command: command\.missing: .*no bash in its PATH"):
        prepared("bash", "-c", "x")
    with pytest.raises(Refused, match=r"train\.py has no execute permission"):
        prepared("/deployer/app/train.py")
    with pytest.raises(Refused, match=r"there is no /deployer/app/gone\.py"):
        prepared("python3", "/deployer/app/gone.py")
    assert not os.path.exists(store.jobs)
    assert prepared("bash", force=True)
    assert prepared("/bin/true")  # by a link of the image
    assert prepared("/data/tool")  # of a bind
    assert prepared("true")


def test_the_programs_of_wheels_and_of_the_host_are_there(tmp_path, programs):
    host = (hostfiles.HostFile("bin/nvidia-smi", hostfiles.FILE, "/bin/sh", "a test"),)
    store = made.store(tmp_path / "root", jobs=[], plan=made.PLAN._replace(host=host))
    home = os.path.join(store.images, "aaaa")
    os.makedirs(os.path.join(home, "wheels", "bin"))
    made.program(os.path.join(home, "wheels", "bin"), "trainer", "")
    for word in ("trainer", "nvidia-smi"):
        assert run.prepare(store, REQUEST._replace(extra=[word]))


def test_a_laptop_that_had_no_answer_repeats_its_request_and_gets_the_same_job(store, programs, capfd):
    fake_slurm(programs, "RUNNING")
    words = ["run", "hello", "--json", "--root", store.root, "--token"]
    assert main.main([*words, TOKEN]) == 0
    (name,) = os.listdir(store.jobs)
    assert name == "hello-" + TOKEN
    first = json.loads(capfd.readouterr().out)
    made.program(programs, "sbatch", f"touch {store.root}/twice")
    assert main.main([*words, TOKEN]) == 0
    assert dict(first, repeated=True) == json.loads(capfd.readouterr().out)
    assert first["repeated"] is False
    words.remove("--json")
    assert main.main([*words, TOKEN]) == 0
    assert f"job {name} was submitted before as 77: " in capfd.readouterr().out
    assert os.listdir(store.jobs) == [name]
    assert not os.path.exists(os.path.join(store.root, "twice"))
    assert main.main(["status", name, "--json", "--root", store.root]) == 0
    assert json.loads(capfd.readouterr().out)["own"] is True
    for wrong in ("", "../x", "20261123T080000-0123ABCD", TOKEN + "\n", "x" + TOKEN, TOKEN + "/../y"):
        assert main.main([*words[:-1], "--token=" + wrong]) == UsageError.exit_code


def clock(monkeypatch, sleep):
    """Replace the pauses of the module run alone: others sleep too, for instance for the end of a process."""
    monkeypatch.setattr(earlier, "time", types.SimpleNamespace(time=time.time, sleep=sleep))


def test_a_job_that_has_ended_meanwhile_is_the_answer(store, programs, capfd):
    """Nobody has seen it yet: the same command shows its end, and makes no second job."""
    fake_slurm(programs, "RUNNING", exit_code=0)
    words = ["run", "hello", "--root", store.root, "--token", TOKEN]
    assert main.main(words) == 0
    fake_slurm(programs, "COMPLETED")
    capfd.readouterr()
    assert main.main(words) == 0
    assert f"job hello-{TOKEN} was submitted before as 77" in capfd.readouterr().out
    assert len(os.listdir(store.jobs)) == 1


@pytest.mark.thorough
def test_the_record_of_a_repeated_run_says_so(store, programs, capfd):
    fake_slurm(programs, "RUNNING")
    words = ["run", "hello", "--json", "--root", store.root, "--token", TOKEN]
    assert main.main(words) == 0
    capfd.readouterr()
    seen = os.path.join(store.root, "seen")
    once = "if [ -e %s ]; then echo '77|COMPLETED|0:01|cn1|None'; else touch %s; echo '77|RUNNING|0:01|cn1|None'; fi"
    made.program(programs, "squeue", once % (seen, seen))
    assert main.main([*words, "--wait"]) == 0
    assert json.loads(capfd.readouterr().out)["repeated"] is True
    assert len(os.listdir(store.jobs)) == 1


def test_of_two_processes_one_submits_and_both_have_its_number(store, programs, monkeypatch):
    request, told = REQUEST._replace(token=TOKEN), []
    assert earlier.earlier(store, request, told.append) is None
    folder = run.prepare(store, request)
    with pytest.raises(Refused, match=f"there is a job hello-{TOKEN}"):
        run.prepare(store, request)

    def submitted(_):
        Path(folder, "job_id").write_text("77\n")

    clock(monkeypatch, submitted)
    assert earlier.earlier(store, request, told.append) == (folder, "77", "")
    os.unlink(os.path.join(folder, "job_id"))
    clock(monkeypatch, lambda _: unfinished.discard(folder))  # Slurm has refused it
    assert earlier.earlier(store, request, told.append) is None
    assert told == [f"waiting for the number of job hello-{TOKEN}"] * 2


@pytest.mark.parametrize("at", ["is_own", "launch", "number"])
def test_a_job_that_is_refused_while_it_is_looked_at_is_none(store, programs, monkeypatch, at):
    """The other process removes its folder between two looks of this one."""
    request, told = REQUEST._replace(token=TOKEN), []
    folder = run.prepare(store, request)
    module = {"is_own": files, "launch": result, "number": jobs}[at]
    real = getattr(module, at)

    def discarded_before(path):
        monkeypatch.setattr(module, at, real)
        unfinished.discard(folder)
        return real(path)

    monkeypatch.setattr(module, at, discarded_before)
    clock(monkeypatch, lambda _: None)
    assert earlier.earlier(store, request, told.append) is None


@pytest.mark.parametrize("problem", ["no number", "another bundle", "another user"])
def test_a_job_of_that_name_that_is_not_this_request_s_is_named(store, programs, capfd, monkeypatch, problem):
    monkeypatch.setattr(earlier, "_NUMBER_SECONDS", 0.0)
    fake_slurm(programs, "RUNNING")
    folder = run.prepare(store, REQUEST._replace(token=TOKEN))
    if problem == "another bundle":
        path = os.path.join(folder, "job.json")
        made.write(path, dict(json.loads(files.read_text(path)), digest="sha256:00"))
    elif problem == "another user":
        is_own = files.is_own
        monkeypatch.setattr(files, "is_own", lambda path: path != folder and is_own(path))
    for _ in range(2):  # a line that breaks again leads to no third job
        assert main.main(["run", "hello", "--root", store.root, "--token", TOKEN]) == 0
        assert problem in capfd.readouterr().err
        assert len(os.listdir(store.jobs)) == 2


def test_files_are_not_looked_for_again_after_an_install(store, programs):
    inventory.write_inventory(store.find("hello").folder)
    os.rmdir(os.path.join(store.find("hello").rootfs, "data"))
    with pytest.raises(IntegrityError, match="are gone: rootfs/data"):
        run.prepare(store, REQUEST)
    assert run.prepare(store, REQUEST._replace(just_checked=True))


def shared(store):
    """Change the installed image into one whose rootfs is a layer, with a mount point of another image that has it."""
    home = os.path.join(store.images, "aaaa")
    layer = os.path.join(store.layers, "%032x-%d" % (1, os.geteuid()))
    os.makedirs(layer)
    os.rename(os.path.join(home, "rootfs"), os.path.join(layer, "rootfs"))
    os.symlink(os.path.relpath(os.path.join(layer, "rootfs"), home), os.path.join(home, "rootfs"))
    inventory.write_inventory(layer)
    os.makedirs(os.path.join(layer, "rootfs", "theirs", "deep"))
    os.makedirs(os.path.join(layer, "rootfs", "ours", "deep"))


@pytest.mark.parametrize(
    ("target", "lacking"),
    [("/theirs/deep", True), ("/theirs", True), ("/ours/deep", False), ("/ours", False), ("/data", False)],
)
def test_a_bind_to_another_image_s_mount_point_is_made_on_the_nodes_too(tmp_path, programs, target, lacking):
    staged = [
        StartOption("charliecloud-" + kind, "charliecloud", kind, "srun", "pmi2", None, place="/dev/shm", room_mb=99999)
        for kind in ("squashfs", "memory")
    ]
    store = made.store(tmp_path / "root", plan=made.PLAN._replace(start_options=staged))
    shared(store)
    home = os.path.join(store.images, "aaaa")
    record = json.loads(Path(home, "bundle.json").read_text())
    made.write(os.path.join(home, "bundle.json"), dict(record, mount_points=["/ours/deep"]))
    os.makedirs(store.bundles)
    for path in (os.path.join(home, "image.sqfs"), store.bundle(store.find("hello").receipt)):
        open(path, "w").close()
    text = run.show_script(run.prepare(store, REQUEST._replace(binds=[f"{tmp_path}:{target}"])))
    assert (f"    --mount-point {target}" in text) is lacking
    assert ("--staging squashfs" in text or "image.sqfs" in text) is not lacking  # nothing can be made in that
    asked = REQUEST._replace(binds=[f"{tmp_path}:{target}"], staging="squashfs")
    if lacking:
        with pytest.raises(Refused, match=f"mount points for {target} cannot be made"):
            run.prepare(store, asked)
    else:
        run.prepare(store, asked)


def of_small_nodes(tmp_path, sizes):
    """Return a store with a plan for up to 4 nodes from the folder; ``sizes``: room for an image, by its staging."""
    option = StartOption("charliecloud-folder", "charliecloud", "folder", "srun", "pmi2", 4)
    staged = [
        option._replace(name=kind, staging=kind, max_nodes=None, place="/dev/shm", room_mb=room)
        for kind, room in sizes.items()
    ]
    store = made.store(tmp_path / "root", plan=made.PLAN._replace(start_options=[option, *staged]))
    os.makedirs(store.bundles)
    Path(store.bundle(store.find("hello").receipt)).touch()
    return store


@pytest.mark.parametrize(("room", "expected"), [(0, "mounted"), (9, "squashfs")])
def test_many_small_nodes_get_the_image_as_a_squashfs_file_made_for_them(tmp_path, programs, capsys, room, expected):
    store = of_small_nodes(tmp_path, {"memory": 0, "squashfs": room, "mounted": 0})
    request = REQUEST._replace(nodes=32)
    assert result.launch(run.prepare(store, request)).start_option == expected
    assert os.path.getsize(os.path.join(store.images, "aaaa/image.sqfs"))
    assert "making its SquashFS file" in capsys.readouterr().err
    folder = run.prepare(store, request)
    assert ("    --in-place" in run.show_script(folder)) is (expected == "mounted")
    assert "SquashFS" not in capsys.readouterr().err  # it exists


def test_no_file_is_made_if_that_would_not_help(tmp_path, programs):
    store = of_small_nodes(tmp_path, {"memory": 0})
    with pytest.raises(Refused, match=r"folder \(meant for at most 4 nodes\), memory \(the image takes"):
        run.prepare(store, REQUEST._replace(nodes=32))
    assert "image.sqfs" not in os.listdir(os.path.join(store.images, "aaaa"))


def test_the_first_refusal_counts_if_the_file_cannot_be_made(tmp_path, programs):
    store = of_small_nodes(tmp_path, {"mounted": 0})
    made.program(programs, "mksquashfs", "echo broken >&2; exit 1")
    with pytest.raises(Refused, match=r"mounted \(it has no SquashFS file\)$"):
        run.prepare(store, REQUEST._replace(nodes=32))


LINKED = [made.JOBS[0]._replace(links={"~/.x/y": "app/y", "data": "app"}, workdir="/deployer/job/run/here")]


def test_links_are_in_the_jobs_folder_and_in_the_record_of_the_home(tmp_path, programs):
    store = made.store(tmp_path / "root", jobs=LINKED)
    (Path(store.images) / "aaaa/app/y").write_text("y")
    folder = run.prepare(store, REQUEST)
    assert os.readlink(os.path.join(folder, "data/y")) == "/deployer/app/y"
    assert os.path.isdir(os.path.join(folder, "run/here"))
    assert result.launch(folder).links == {".x/y": "/deployer/app/y"}


@pytest.mark.parametrize("odd", ["y/\x85", "z\x85"])
def test_a_file_whose_name_is_not_printable_is_refused_before_the_job_is_submitted(odd, tmp_path, programs):
    store = made.store(tmp_path / "root", jobs=LINKED)
    app = Path(store.images) / "aaaa/app"
    (app / "y").mkdir()
    (app / odd).write_text("")
    with pytest.raises(UsageError, match=r"invalid link: '.*\\x85' to") as caught:
        run.prepare(store, REQUEST)
    assert "rename the file" in caught.value.hint
    assert files.names(store.jobs) == []


def test_links_need_a_container(tmp_path, programs):
    native = StartOption("native-folder", "native", "folder", "srun", "pmi2", None)
    store = made.store(tmp_path / "root", made.PLAN._replace(start_options=[native]), jobs=LINKED)
    with pytest.raises(Refused, match="has links to data, which only a container has"):
        run.prepare(store, REQUEST._replace(runtime="native"))


def test_a_node_makes_the_links_in_the_home_of_the_job(tmp_path, programs):
    store = made.store(tmp_path / "root", jobs=LINKED)
    (Path(store.images) / "aaaa/app/y").write_text("y")
    folder = run.prepare(store, REQUEST)
    home = homes.BEGIN + "%d-links-%d" % (os.getuid(), os.getpid())
    try:
        host_probe.host(os.path.join(folder, "hosts"), None, home)
        assert os.readlink(os.path.join(home, ".x/y")) == "/deployer/app/y"
    finally:
        files.remove_tree(home)


KEEPING = [made.JOBS[0]._replace(keep=["numba", "~/own"], environment={"NUMBA_DEBUG_CACHE": "1"})]


@pytest.fixture
def keeping(tmp_path, programs):
    """Return a store whose image has a layer, with a job that keeps caches."""
    store = made.store(tmp_path / "root", jobs=KEEPING)
    image, layer = os.path.join(store.images, "aaaa"), "0123456789abcdef" * 2 + "-%d" % os.getuid()
    os.makedirs(os.path.join(store.layers, layer))
    os.rename(os.path.join(image, "rootfs"), os.path.join(store.layers, layer, "rootfs"))
    os.symlink(f"../../layers/{layer}/rootfs", os.path.join(image, "rootfs"))
    return store


def test_a_job_keeps_caches_of_its_image(keeping):
    text = (Path(run.prepare(keeping, REQUEST)) / "job.sh").read_text()
    archives = os.path.join(keeping.caches, "0123456789abcdef" * 2)
    assert f"keep=(--keep={archives} --keep=.cache/numba --keep=own)\n" in text
    assert '--set-env=NUMBA_CACHE_DIR="$home"/.cache/numba' in text
    assert text.count('"${keep[@]}"') == 2
    text = (Path(run.prepare(keeping, REQUEST._replace(env=["NUMBA_CACHE_DIR=/own"]))) / "job.sh").read_text()
    assert "NUMBA_CACHE_DIR=/own" in text


def test_a_chosen_home_keeps_everything_itself(keeping, tmp_path):
    (tmp_path / "home").mkdir(mode=0o700)
    os.makedirs(os.path.join(keeping.images, "aaaa/rootfs/deployer/home"), exist_ok=True)
    asked = REQUEST._replace(home=REQUEST.home._replace(chosen=str(tmp_path / "home")))
    text = (Path(run.prepare(keeping, asked)) / "job.sh").read_text()
    assert "keep=" not in text
    assert "NUMBA_CACHE_DIR=/deployer/home/.cache/numba" in text


@pytest.mark.thorough
def test_a_node_restores_and_the_first_one_saves(keeping, monkeypatch, capsys):
    folder, words = run.prepare(keeping, REQUEST), [os.path.join(keeping.caches, "aa"), "own"]
    for number in ("0", "1"):
        monkeypatch.setenv("SLURM_NODEID", number)
        home = homes.BEGIN + "%d-keep%s-%d" % (os.getuid(), number, os.getpid())
        try:
            host_probe.host(os.path.join(folder, "hosts"), None, home, keep=words)
            payload_monitor.leave(home)  # when the job must end: what job.sh saves later stays
            assert os.path.isdir(home) is (number == "0")
            if number == "0":
                os.mkdir(os.path.join(home, "own"))
                Path(home, "own/kernel").write_text("code")
                main.main(["keep", "--home", home, *("--keep=" + word for word in words)])
                assert "kept 4 B of compiled code" in capsys.readouterr().err
        finally:
            files.remove_tree(home)
    home = homes.BEGIN + "%d-keep-%d" % (os.getuid(), os.getpid())
    try:
        host_probe.host(os.path.join(folder, "hosts"), None, home, keep=words)
        assert Path(home, "own/kernel").read_text() == "code"
    finally:
        files.remove_tree(home)


@pytest.mark.parametrize(
    ("nodes", "memory_mb", "staging", "relayed"),
    [
        (1, None, "memory", False),
        (2, None, "memory", True),
        (2, 900, "memory", True),
        (2, 99, "memory", False),
        (2, 99, "disk", True),
    ],
)
def test_nodes_pass_the_bundle_on_if_the_job_s_memory_holds_it_beside_the_image(
    tmp_path, programs, nodes, memory_mb, staging, relayed
):
    option = StartOption("charliecloud-x", "charliecloud", staging, "srun", "pmi2", None, place="/dev/shm", broadcast=2)
    store = made.store(tmp_path / "root", plan=made.PLAN._replace(start_options=[option]))
    os.makedirs(store.bundles)
    with open(store.bundle(store.find("hello").receipt), "wb") as bundle:
        bundle.truncate(100 << 20)
    request = REQUEST._replace(nodes=nodes, ranks_per_node=1, threads=1, memory_mb=memory_mb)
    assert (" --relay " in run.show_script(run.prepare(store, request))) is relayed
