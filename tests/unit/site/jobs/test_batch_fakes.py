"""PBS and LSF by fakes on PATH, which obey the manuals: they accept what job.sh asks, and their refusals are shown."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.site.plan import GpuRequest
from deployer.site.jobs import jobs
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobRequest
from deployer.site.run.job_script import agent_script

FAKES = Path(__file__).resolve().parent / "fakes"
COMMANDS = {
    "pbs": ("qsub", "qstat", "qdel", "pbsnodes", "pbs_tmrsh"),
    "lsf": ("bsub", "bjobs", "bkill", "bqueues", "bhosts", "blaunch"),
}
QUEUES = {"pbs": "workq", "lsf": "normal"}


@pytest.fixture(params=sorted(COMMANDS))
def kind(request, tmp_path, monkeypatch):
    """Return the name of a batch system whose commands are in PATH."""
    programs, state = tmp_path / "bin", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    source = (FAKES / (request.param + ".py")).read_text().split("\n", 1)[1]
    for name in COMMANDS[request.param]:
        text = f"#!{sys.executable} -IS\nimport os\nos.environ['FAKE_BATCH'] = {str(state)!r}\n{source}"
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", "{}:{}".format(programs, os.environ["PATH"]))
    return request.param


def test_the_agent_starts_a_command_on_another_node(kind, tmp_path):
    """pbs_tmrsh executes its words and prints nothing; blaunch gives them to a shell."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / "agent").write_text(agent_script.agent(SCHEDULERS[kind], str(folder)))
    (folder / "environment").write_text("export WORD='a  b'\n")
    (folder / "machines").write_text("cn1\ncn2\n")
    words = ["bash", str(folder / "agent"), "-x", "cn2", "printf '<%s>' \"$WORD\" 'x\ty!'; exit 7"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    log = folder / "output.log"
    said = log.read_text() if kind == "pbs" else done.stdout.decode()
    assert (done.returncode, said) == (7, "<a  b><x\ty!>")


def script(kind, folder, **values):
    """Write a job's script with all that a job can ask for, and return its path."""
    scheduler = SCHEDULERS[kind]
    asked = JobRequest(
        "7-of-nine",
        str(folder),
        str(folder / "output.log"),
        2,
        2,
        2,
        "1-01:00:00",
        90000,
        1000,
        QUEUES[kind],
        "physics",
    )
    lines = scheduler.directives(asked._replace(**values))
    path = folder / "job.sh"
    path.write_text(
        "#!/bin/bash -l\n# Job\n{}\ntrue\n".format("\n".join(f"{scheduler.prefix} {line}" for line in lines))
    )
    return str(path)


def submit(kind, path):
    return SCHEDULERS[kind].parse_submit(*jobs.ask(SCHEDULERS[kind].submit(path)))


@pytest.mark.thorough
def test_a_job_is_taken_watched_and_cancelled(kind, tmp_path):
    scheduler = SCHEDULERS[kind]
    number = submit(kind, script(kind, tmp_path))
    assert jobs.scheduler(number, kind) is scheduler
    state = jobs.state(number, kind)
    assert (state.word, state.nodes, state.active) == ("RUNNING", "cn1,cn2", True)
    assert jobs.states([(number, kind)]) == {number: state}
    assert scheduler.parse_outputs(*jobs.ask(scheduler.outputs)) == {str(tmp_path / scheduler.own_log)}
    scheduler.parse_cancel(*jobs.ask(scheduler.cancel(number)))
    state = jobs.state(number, kind)
    assert (state.word, state.active) == ("FAILED", False)
    scheduler.parse_cancel(*jobs.ask(scheduler.cancel(number)))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["pbs"], indirect=True)
def test_a_pbs_server_without_history_forgets_jobs_that_have_ended(kind, tmp_path):
    (tmp_path / "no-history").touch()
    first, second = (submit(kind, script(kind, tmp_path)) for _ in range(2))
    assert jobs.state(first, kind).word == "RUNNING"
    SCHEDULERS[kind].parse_cancel(*jobs.ask(SCHEDULERS[kind].cancel(first)))
    assert jobs.state(first, kind) is None
    assert list(jobs.states([(first, kind), (second, kind)])) == [second]


@pytest.mark.thorough
def test_a_job_that_is_not_there(kind):
    missing = {"pbs": "77.pbs01", "lsf": "77"}[kind]
    assert jobs.state(missing, kind) is None
    SCHEDULERS[kind].parse_cancel(*jobs.ask(SCHEDULERS[kind].cancel(missing)))


@pytest.mark.thorough
def test_a_queue_and_one_that_is_not_there(kind):
    scheduler = SCHEDULERS[kind]
    found = scheduler.parse_queue(*jobs.ask(scheduler.queue(QUEUES[kind])))
    assert (found.open, found.nodes, found.usable) == (True, 3, 2)
    assert scheduler.parse_queue(*jobs.ask(scheduler.queue("nope"))) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"queue": "nope"}, {"pbs": "Unknown queue", "lsf": "nope: No such queue"}),
        ({"directives": ["-Z 1"]}, {"pbs": "usage: qsub", "lsf": "Illegal option -- -Z"}),
        (
            {"gpus": GpuRequest("gpu_count", 2, None), "directives": ["-gpu num=2/node"]},
            {"pbs": "Unknown resource: gpu_count", "lsf": "num=2/node: Bad argument for option -gpu"},
        ),
    ],
)
def test_what_it_refuses_is_said_in_its_own_words(kind, tmp_path, values, said):
    with pytest.raises(Refused, match=said[kind]):
        submit(kind, script(kind, tmp_path, **values))


def test_lsf_reserves_cores_or_hardware_threads_and_a_nodes_memory():
    asked = JobRequest("hello", "/j", "/j/output.log", 2, 4, 8, "1", 60, memory_mb=8000, threads=4)
    found = SCHEDULERS["lsf"].directives(asked)
    assert '-R "affinity[core(4)]"' in found
    assert '-R "rusage[mem=8000MB/host]"' in found
    assert '-R "affinity[thread(4)]"' in SCHEDULERS["lsf"].directives(asked._replace(hyperthreads=True))


@pytest.mark.thorough
def test_a_job_with_gpus_and_one_that_follows(kind, tmp_path):
    first = submit(kind, script(kind, tmp_path, gpus=GpuRequest("ngpus", 4, "v100" if kind == "lsf" else None)))
    second = SCHEDULERS[kind].submit(script(kind, tmp_path), first)
    assert SCHEDULERS[kind].parse_submit(*jobs.ask(second)) != first
    missing = first.replace("1", "77", 1)
    if kind == "lsf":  # PBS accepts it: that job may have ended, and its history is not kept
        with pytest.raises(Refused, match="No matching job found"):
            SCHEDULERS[kind].parse_submit(*jobs.ask(SCHEDULERS[kind].submit(script(kind, tmp_path), missing)))


def test_what_pbs_or_lsf_would_read_otherwise_is_refused():
    asked = JobRequest("hello", "/j", "/j/output.log", 1, 1, 1, "1", 60)
    with pytest.raises(UsageError, match="constraint 'haswell' is not a resource of PBS"):
        SCHEDULERS["pbs"].directives(asked._replace(constraints=["haswell"]))
    for kind, folder in (("pbs", "/j:1"), ("lsf", "/j%J")):
        with pytest.raises(UsageError, match="cannot write to the path"):
            SCHEDULERS[kind].directives(asked._replace(folder=folder))


def test_states_of_nodes_that_are_combined():
    """pbsnodes writes several states with commas; a node that is down for any reason cannot be used."""
    out = "queue_type = Execution\nenabled = True\nstarted = True\n"
    for state in ("free", "job-busy,resv-exclusive", "state-unknown, down", "offline,job-busy"):
        out += f"cn1\n     state = {state}\n"
    assert SCHEDULERS["pbs"].parse_queue(0, out, "").usable == 2
