"""Jobs where there is no batch system, with real processes."""

import os
import signal
import time
from unittest import mock

import pytest

from deployer.contract.base.errors import JobFailed, MissingTool, Refused, UsageError
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from deployer.system import files
from tests import running as made

local = SCHEDULERS["local"]


@pytest.fixture
def script(tmp_path):
    """Return a function that puts a script with these lines into a folder and returns its path."""

    def write(*lines):
        return made.program(tmp_path, "job.sh", "\n".join(lines) + "\n")

    return write


def started(path, seconds=60):
    return local.parse_submit(*jobs.ask([*local.submit(path), str(seconds)]))


def ended(job_id):
    for _ in range(600):
        if jobs.state(job_id) is None:
            return
        time.sleep(0.05)
    raise AssertionError("the job does not end")


def said(script):
    with open(os.path.join(os.path.dirname(script), "output.log")) as stream:
        return stream.read()


def test_a_job_outlives_the_command_that_started_it(script, tmp_path):
    path = script("echo started >&2", "pwd", "while [ ! -e go ]; do sleep 0.05; done", "echo done")
    job_id = started(path)
    state = jobs.state(job_id)
    assert (state.word, state.active) == ("RUNNING", True)
    assert os.getsid(int(job_id.split(".")[0])) == int(job_id.split(".")[0])
    (tmp_path / "go").write_text("")
    ended(job_id)
    assert said(path) == f"started\n{tmp_path}\ndone\n"


@pytest.mark.thorough
def test_an_end_is_asked_for_at_the_time_limit_and_by_cancel(script):
    path = script("trap 'echo asked; exit 3' TERM", "echo ready", "while :; do sleep 0.05; done")
    ended(started(path, 1))  # by its limit alone; on a busy machine perhaps before it was ready
    os.unlink(os.path.join(os.path.dirname(path), "output.log"))
    job_id = started(path)
    while not os.path.exists(os.path.join(os.path.dirname(path), "output.log")) or "ready" not in said(path):
        time.sleep(0.05)
    local.parse_cancel(*jobs.ask(local.cancel(job_id)))
    ended(job_id)
    assert said(path).endswith("asked\n")
    local.parse_cancel(*jobs.ask(local.cancel(job_id)))  # over already: no failure


def test_another_process_with_its_number_or_another_hosts_is_not_the_job(script):
    pid, start, host = started(script("sleep 60")).split(".", 2)
    try:
        assert jobs.state(f"{pid}.{start}.{host}") is not None
        assert jobs.state("%s.%d.%s" % (pid, int(start) + 1, host)) is None
        assert jobs.state(f"{pid}.{start}.elsewhere") is None
        local.parse_cancel(*jobs.ask(local.cancel(f"{pid}.{start}.elsewhere")))
        os.kill(int(pid), 0)  # it lives
    finally:
        os.kill(int(pid), signal.SIGTERM)


def test_ids_tell_whose_they_are():
    assert jobs.scheduler("77") is SCHEDULERS["slurm"]
    assert jobs.scheduler("77.123.host.domain") is local
    assert jobs.scheduler() is SCHEDULERS["slurm"]


def test_what_did_not_start():
    with pytest.raises(MissingTool, match="setsid and timeout"):
        local.parse_submit(127, "", "")
    with pytest.raises(JobFailed, match="no such"):
        local.parse_submit(1, "", "no such")


def test_another_users_process_is_theirs_to_cancel(tmp_path, monkeypatch):
    launch = mock.Mock(scheduler="local")
    monkeypatch.setattr(result, "launch", lambda folder: launch)
    monkeypatch.setattr(jobs, "job_id", lambda folder: "77.123.host")
    monkeypatch.setattr(jobs, "state", lambda number, kind: mock.Mock(active=True))
    monkeypatch.setattr(jobs, "ask", lambda argv: (1, "", "kill: (77) - Operation not permitted"))
    with pytest.raises(JobFailed):
        jobs.cancel(str(tmp_path))
    monkeypatch.setattr(files, "is_own", lambda path: False)
    with pytest.raises(Refused) as error:
        jobs.cancel(str(tmp_path))
    assert error.value.hint == "the job is another user's: let them cancel it"


def test_run_and_status_of_a_whole_job(tmp_path, monkeypatch):
    """With a launcher and a runtime that only start what they are given; the store's tool is no program."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name in ("ch-run", "mpiexec.hydra", "python3"):
        made.program(programs, name, "exit 0")
    option = made.START_OPTION._replace(launcher="mpiexec.hydra", pmi="", program=str(programs / "mpiexec.hydra"))
    plan = made.PLAN._replace(scheduler="local", modules=[], start_options=[option])
    store = made.store(tmp_path / "root", plan=plan)
    request = RunRequest("hello", "short")
    folder = run.prepare(store, request)
    assert result.launch(folder).scheduler == "local"
    assert run.by_hand(folder) == os.path.join(folder, "job.sh")
    with pytest.raises(UsageError, match="was never submitted"):
        jobs.cancel(folder)
    job_id = run.submit(folder)
    assert jobs.job_id(folder) == job_id
    ended(job_id)
    found = jobs.status(folder)
    assert (found.job_id, found.active, found.state) == (job_id, False, "UNKNOWN")  # nobody wrote its result.json
