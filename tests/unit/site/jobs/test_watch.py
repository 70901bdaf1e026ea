"""While some nodes have not answered, a job tells what is wrong already, and which nodes are late."""

import os
import sys
import threading
import time

import pytest

from deployer.cli.site.main import main
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import HostRecord
from deployer.contract.site.plan import CANARY_TEXT
from deployer.site.jobs import jobs, result, watch
from deployer.site.jobs.schedulers.interface import JobState
from tests import running
from tests.unit.site.proof.test_result import LAUNCH

RIGHT = "build-id:aa"


class Job:
    """The folder of a job, a clock, and what its log says."""

    def __init__(self, folder, monkeypatch, capsys, count):
        self.folder = folder
        self.capsys = capsys
        self.now = 100.0
        self.launch = LAUNCH._replace(nodes=count)
        (folder / "hosts").mkdir(parents=True)
        running.write(str(folder / "job.json"), self.launch.record())
        names = " ".join("cn%d" % number for number in range(1, count + 1))
        (folder / "bin").mkdir()
        running.program(folder / "bin", "scontrol", "printf '%s\\n' " + names)
        monkeypatch.setenv("PATH", "{}:{}".format(folder / "bin", os.environ["PATH"]))
        monkeypatch.setattr(watch.time, "monotonic", lambda: self.now)
        self.watch = watch.Watch(str(folder))

    def answer(self, *numbers, identity=RIGHT):
        for number in numbers:
            record = evidence.record(HostRecord("cn%d" % number, identity))
            running.write(str(self.folder / "hosts" / ("cn%d.12345678.json" % number)), record)

    def show(self, *numbers, text=CANARY_TEXT):
        for number in numbers:
            (self.folder / "hosts" / ("cn%d%s" % (number, result.ROOT_SUFFIX))).write_text(text)

    def after(self, seconds):
        """Look each second, and return what the log says then."""
        for _ in range(seconds):
            self.now += 1
            self.watch.look()
        return self.capsys.readouterr().err.splitlines()

    @property
    def notice(self):
        path = self.folder / result.NOTICE
        return path.read_text() if path.exists() else None


@pytest.fixture
def job(tmp_path, monkeypatch, capsys):
    return lambda count: Job(tmp_path / "job", monkeypatch, capsys, count)


def test_a_node_that_does_not_answer_is_named_once_and_soon(job):
    of = job(64)
    assert of.after(30) == []  # nothing is late while nobody has answered: modules are loaded
    of.answer(*(number for number in range(1, 65) if number != 37))
    assert of.after(3) == []
    line = "still waiting for cn37: 63 nodes answered within 0 s"
    assert of.after(1) == ["deployer: " + line]
    assert of.after(30) == []
    assert of.notice == line
    of.watch.begin(result.ROOT_SUFFIX)
    assert of.notice is None


def test_nodes_that_answer_one_after_the_other_are_not_late(job):
    of = job(8)
    for number in range(1, 8):
        of.answer(number)
        assert of.after(2) == []
    assert of.after(10) == []  # the others took 12 seconds
    assert of.after(2) == ["deployer: still waiting for cn8: 7 nodes answered within 12 s"]
    of.answer(8)
    assert of.after(9) == []
    assert not of.watch.waits


def test_a_job_on_one_node_does_not_look(job):
    assert not job(1).watch.waits


def test_the_line_does_not_grow_with_the_job(job):
    of = job(1000)
    of.answer(*range(1, 1001, 2))
    (line,) = of.after(7)
    assert "cn2, cn4, cn6, " in line
    assert len(line) < 250


def test_without_the_names_of_the_nodes_they_are_counted(job):
    of = job(8)
    running.program(of.folder / "bin", "scontrol", "exit 1")
    of.answer(*range(1, 7))
    assert of.after(7) == ["deployer: still waiting for 2 nodes: 6 nodes answered within 0 s"]


def test_a_wrong_node_is_named_as_soon_as_its_record_is_there(job):
    of = job(8)
    of.answer(3, identity=None)
    (line,) = of.after(1)
    assert line.startswith("deployer: error mpi.host-missing: cn3: ")
    of.answer(1, identity="build-id:bb")
    of.answer(2)
    assert "host-differs" not in " ".join(of.after(1))  # which of the two is the wrong one is not known yet
    of.answer(5, 6)
    assert "error mpi.host-differs: cn1: " in " ".join(of.after(1))
    assert "cn3" in of.notice
    assert "cn1" in of.notice


def test_a_container_that_does_not_start_is_named_and_a_node_that_stages_long_too(job):
    of = job(4)
    of.answer(1, 2, 3, 4)
    of.watch.begin(result.ROOT_SUFFIX)
    of.after(20)
    of.show(1, 2)
    assert of.after(19) == []  # they took 20 seconds
    of.show(3, text="no such file")
    (line,) = of.after(1)
    assert line == "deployer: error runtime.start: cn3: charliecloud cannot start the container: no such file"
    assert of.after(45)[-1].startswith("deployer: still waiting for cn4: 3 nodes answered within 4")


def test_the_judge_tells_it_while_the_step_runs(job, monkeypatch, capsys):
    of = job(4)
    monkeypatch.undo()
    monkeypatch.setattr(watch, "_LOOK", 0.02)
    monkeypatch.setattr(watch, "_QUIET", 0.1)
    of.answer(1, 2, 3)
    read, write = os.pipe()
    with os.fdopen(read) as stdin, os.fdopen(write, "w") as script:
        monkeypatch.setattr(sys, "stdin", stdin)
        told = []

        def step():
            until = time.monotonic() + 20
            while of.notice is None and time.monotonic() < until:
                time.sleep(0.01)
            told.append(of.notice)
            script.write("hosts 6 - cn4 cannot write there: it is full\n")
            script.flush()
            script.close()

        thread = threading.Thread(target=step)
        thread.start()
        main(["result", str(of.folder), "--until", "probe", "--id", "7", "--started", "1"])
        thread.join()
    said = capsys.readouterr()
    assert "still waiting for 1 node: 3 nodes answered within" in told[0]
    assert "deployer: " + told[0] in said.err
    assert "cn4 cannot write there: it is full" in said.err
    assert said.out == "3\n"
    assert of.notice is None


def test_status_and_run_wait_show_it_while_the_job_runs(job, monkeypatch):
    of = job(2)
    (of.folder / result.NOTICE).write_text("still waiting for cn2")
    running_now = JobState("RUNNING", "", "0:09", "cn[1-2]", active=True)
    assert "still waiting for cn2" in jobs.describe(of.launch, str(of.folder), "7", running_now).line()
    waiting = JobState("PENDING", "Resources", active=True)
    assert "cn2" not in jobs.describe(of.launch, str(of.folder), "7", waiting).line()
    states = [running_now, running_now._replace(word="COMPLETED", active=False)]
    monkeypatch.setattr(jobs, "state", lambda *_: states.pop(0))
    monkeypatch.setattr(jobs, "_FIRST", 0.01)
    monkeypatch.setattr(jobs, "_LAG", 0.0)
    (of.folder / "job_id").write_text("7\n")
    told = []
    with pytest.raises(jobs.JobFailed):
        jobs.follow(str(of.folder), told.append)
    assert told[0] == "RUNNING  cn[1-2]  still waiting for cn2"
