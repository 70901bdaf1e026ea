"""PBS and LSF by fakes on PATH, written from memory: they accept what job.sh asks, and their refusals are shown."""

import os
import stat
import sys
from pathlib import Path

import pytest

from deployer.contract.errors import Refused
from deployer.site.jobs import jobs
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobRequest

FAKES = Path(__file__).resolve().parent / "fakes"
COMMANDS = {"pbs": ("qsub", "qstat", "qdel", "pbsnodes"), "lsf": ("bsub", "bjobs", "bkill", "bqueues", "bhosts")}
QUEUES = {"pbs": "workq", "lsf": "normal"}


@pytest.fixture(params=sorted(COMMANDS))
def kind(request, tmp_path, monkeypatch):
    """Return the name of a batch system whose commands are in PATH."""
    programs, state = tmp_path / "bin", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    source = (FAKES / (request.param + ".py")).read_text().split("\n", 1)[1]
    for name in COMMANDS[request.param]:
        text = "#!%s -IS\nimport os\nos.environ['FAKE_BATCH'] = %r\n%s" % (sys.executable, str(state), source)
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", "%s:%s" % (programs, os.environ["PATH"]))
    return request.param


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
        "#!/bin/bash -l\n# Job\n%s\ntrue\n" % "\n".join("%s %s" % (scheduler.prefix, line) for line in lines)
    )
    return str(path)


def submit(kind, path):
    return SCHEDULERS[kind].parse_submit(*jobs.ask(SCHEDULERS[kind].submit(path, 60)))


def test_a_job_is_taken_watched_and_cancelled(kind, tmp_path):
    scheduler = SCHEDULERS[kind]
    number = submit(kind, script(kind, tmp_path))
    assert jobs.scheduler(number, kind) is scheduler
    state = jobs.state(number, kind)
    assert (state.word, state.nodes, state.active) == ("RUNNING", "cn1,cn2", True)
    assert jobs.states([(number, kind)]) == {number: state}
    assert scheduler.parse_outputs(*jobs.ask(scheduler.outputs())) == {str(tmp_path / "output.log")}
    scheduler.parse_cancel(*jobs.ask(scheduler.cancel(number)))
    state = jobs.state(number, kind)
    assert (state.word, state.active) == ("FAILED", False)
    scheduler.parse_cancel(*jobs.ask(scheduler.cancel(number)))


@pytest.mark.parametrize("kind", ["pbs"], indirect=True)
def test_a_pbs_server_without_history_forgets_jobs_that_have_ended(kind, tmp_path):
    (tmp_path / "no-history").touch()
    first, second = (submit(kind, script(kind, tmp_path)) for _ in range(2))
    assert jobs.state(first, kind).word == "RUNNING"
    SCHEDULERS[kind].parse_cancel(*jobs.ask(SCHEDULERS[kind].cancel(first)))
    assert jobs.state(first, kind) is None
    assert list(jobs.states([(first, kind), (second, kind)])) == [second]


def test_a_job_that_is_not_there(kind):
    missing = {"pbs": "77.pbs01", "lsf": "77"}[kind]
    assert jobs.state(missing, kind) is None
    SCHEDULERS[kind].parse_cancel(*jobs.ask(SCHEDULERS[kind].cancel(missing)))


def test_a_queue_and_one_that_is_not_there(kind):
    scheduler = SCHEDULERS[kind]
    found = scheduler.parse_queue(*jobs.ask(scheduler.queue(QUEUES[kind])))
    assert (found.open, found.nodes, found.usable) == (True, 3, 2)
    assert scheduler.parse_queue(*jobs.ask(scheduler.queue("nope"))) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"queue": "nope"}, {"pbs": "Unknown queue", "lsf": "nope: No such queue"}),
        ({"directives": ["-Z 1"]}, {"pbs": "usage: qsub", "lsf": "Illegal option -- -Z"}),
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
