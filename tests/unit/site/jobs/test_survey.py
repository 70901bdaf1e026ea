"""The capture of a whole site with a fake Slurm on PATH: nothing is submitted twice, and what was cut continues."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import UsageError
from deployer.site.capture.capture_files import SiteCapture
from deployer.site.jobs import survey
from deployer.site.storage import store
from tests.running import program

LOGIN = {
    "format": 1,
    "name": "here",
    "source": {"kind": "captured", "where": "login1", "date": "2026-11-22"},
    "login": {"host": "login1"},
    "scheduler": {"kind": "slurm"},
    "mpi": {},
    "partitions": {"batch": {"nodes": 2}, "gpu x;$(id)": {"nodes": 1, "node": {"gpus": {"count": 4}}}},
}


@pytest.fixture
def request_(tmp_path, monkeypatch):
    """Return a request whose login node was captured already, and the fakes' folder first in PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs, "sinfo", f"cat {tmp_path}/queue\n")
    program(programs, "squeue", f"cat {tmp_path}/states\n")
    program(programs, "sbatch", f'echo "$2" >>{tmp_path}/submitted; wc -l <{tmp_path}/submitted\n')
    program(programs, "scancel", f'echo "$1" >>{tmp_path}/cancelled\n')
    monkeypatch.setenv("PATH", str(programs) + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(store, "running_archive", lambda: "/home/a b/deployer.pyz")
    monkeypatch.setattr(survey, "_LAG", 0.0)
    (tmp_path / "queue").write_text("batch|up|2|idle\n")
    (tmp_path / "states").write_text("")
    (tmp_path / "submitted").write_text("")
    made = survey.SurveyRequest(str(tmp_path / "out" / "site.json"))
    os.makedirs(made.folder, 0o700)
    SiteCapture(LOGIN, None).write(os.path.join(made.folder, "login.json"))
    return made


def captured(request, part, **more):
    (found,) = [each for each in survey.Survey(request, LOGIN).wanted() if each.name == part]
    record = dict(LOGIN, partitions={part: dict({"nodes": 1, "fuse": True}, **more)})
    SiteCapture({key: record[key] for key in record if key != "login"}, None).write(found.capture)


def age(request):
    for name in os.listdir(request.folder):
        os.utime(os.path.join(request.folder, name), (1, 1))


def states(found):
    return {each.name: each.state for each in found}


def test_a_job_of_grid_engine_makes_itself_a_login_shell(request_):
    profile = dict(LOGIN, scheduler={"kind": "gridengine"})
    (part,) = [each for each in survey.Survey(request_, profile).wanted() if each.name == "batch"]
    text = survey.Survey(request_, profile).script(part)
    assert "#$ -q batch\n" in text
    assert "\nshopt -q login_shell || exec /bin/bash -l " in text
    assert "-pe" not in text


def test_a_job_of_pbs_writes_to_its_log_itself(request_):
    profile = dict(LOGIN, scheduler={"kind": "pbs"}, partitions={"gpu": {"node": {"gpus": {"count": 4}}}})
    (part,) = survey.Survey(request_, profile).wanted()
    text = survey.Survey(request_, profile).script(part)
    assert "#PBS -l select=1:ncpus=1:mpiprocs=1:ngpus=1\n" in text
    assert f"\nexec >>{part.log} 2>&1\n" in text


def test_a_partition_of_several_kinds_of_nodes_gets_a_job_for_each(request_):
    kinds = {
        "all-thin": {"queue": "all", "constraint": "thin"},
        "all-fat": {"queue": "all", "constraint": "fat", "gpu_request": "gres", "node": {"gpus": {"count": 4}}},
    }
    profile = dict(LOGIN, partitions=dict(kinds, batch={"nodes": 2}))
    both = survey.Survey(request_._replace(partitions=["all"]), profile).wanted()
    assert [part.name for part in both] == ["all-thin", "all-fat"]
    (one,) = survey.Survey(request_._replace(partitions=["all-fat"]), profile).wanted()
    assert one == both[1]
    text = survey.Survey(request_, profile).script(one)
    for line in ("--partition=all", "--constraint=fat", "--gres=gpu:1"):
        assert f"#SBATCH {line}\n" in text
    assert " capture --node --partition all-fat -o " in text


def test_each_partition_gets_one_job_and_the_result_is_one_capture(request_, tmp_path):
    first = survey.step(request_)
    assert [(each.state, each.job_id) for each in first] == [("waiting", "1"), ("waiting", "2")]
    scripts = (tmp_path / "submitted").read_text().split("\n")[:2]
    text = Path(scripts[1]).read_text()
    assert text.startswith("#!/bin/bash -l\n#SBATCH --job-name=capture\n")
    assert "#SBATCH --gres=gpu:1\n" in text
    assert "'#SBATCH" not in text
    assert "#SBATCH '--partition=gpu x;$(id)'\n" in text
    assert "'/home/a b/deployer.pyz' capture --node --partition 'gpu x;$(id)' -o " in text
    (tmp_path / "states").write_text("1|RUNNING|0:01|cn1|None\n2|PENDING|0:00||Resources\n")
    second = survey.step(request_)
    assert [(each.state, each.reason) for each in second] == [("running", ""), ("waiting", "Resources")]
    captured(request_, "batch")
    captured(request_, "gpu x;$(id)")
    last = survey.step(request_)
    assert set(states(last).values()) == {"captured"}
    assert (tmp_path / "submitted").read_text().count("\n") == 2
    assert survey.collect(request_, last) == []
    profile = json.loads(Path(request_.output).read_text())
    assert profile["login"] == {"host": "login1"}
    assert [each["fuse"] for each in profile["partitions"].values()] == [True, True]
    assert os.listdir(os.path.dirname(request_.output)) == ["site.json"]


def test_a_job_that_slurm_took_without_an_answer_is_not_submitted_again(request_, tmp_path):
    lost = f'echo "$2" >>{tmp_path}/submitted; echo "Socket timed out" >&2; exit 1\n'
    program(tmp_path / "bin", "sbatch", lost)
    program(tmp_path / "bin", "squeue", f'printf "7|"; tail -n 1 {tmp_path}/submitted\n')
    request = request_._replace(partitions=["batch"])
    for _ in range(2):
        (found,) = survey.step(request)
        assert found.job_id == "7"
    assert (tmp_path / "submitted").read_text().count("\n") == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("hello\ndeployer: error: no module\n", "no module"),
        ("deployer: error: this node has no Python\n", "this node has no Python"),
        (
            "job.sh: line 3: /usr/bin/python3: Permission denied\n",
            "job.sh: line 3: /usr/bin/python3: Permission denied",
        ),
    ],
)
def test_what_cannot_be_captured_is_a_note_and_the_rest_is_there(request_, tmp_path, log, reason):
    survey.step(request_)
    part = survey.Survey(request_, LOGIN).wanted()[1]
    with open(part.log, "w") as stream:
        stream.write(log)
    captured(request_, "batch")
    found = survey.step(request_)
    assert [(each.state, each.reason) for each in found][1] == ("failed", reason)
    os.unlink(part.log)
    assert survey.step(request_)[1].reason == reason  # it is final
    notes = survey.collect(request_, found)
    assert notes == ["partition gpu x;$(id): no node was captured: " + reason]
    assert json.loads(Path(request_.output).read_text())["notes"] == notes


def test_a_partition_that_runs_nothing_is_skipped(request_, tmp_path):
    (tmp_path / "queue").write_text("batch|down|2|idle\n")
    found = survey.step(request_._replace(partitions=["batch"]))
    assert [(each.state, each.reason) for each in found] == [("skipped", "it runs no jobs now: 2 idle")]
    assert (tmp_path / "submitted").read_text() == ""


def test_a_job_that_is_no_longer_wanted_is_cancelled(request_, tmp_path):
    survey.step(request_)
    captured(request_, "batch")
    found = survey.step(request_._replace(partitions=["batch"]))
    assert states(found) == {"batch": "captured"}
    assert (tmp_path / "cancelled").read_text() == "2\n"
    with pytest.raises(UsageError, match="there is no partition nope"):
        survey.step(request_._replace(partitions=["nope"]))


def test_the_folder_of_another_is_not_used(request_):
    os.chmod(request_.folder, stat.S_IRWXU | stat.S_IWOTH)
    with pytest.raises(UsageError, match="not a folder of yours alone"):
        survey.step(request_)
    os.rename(request_.folder, request_.folder + "2")
    os.symlink(request_.folder + "2", request_.folder)
    with pytest.raises(UsageError, match="not a folder of yours alone"):
        survey.step(request_)


def test_an_old_survey_begins_again(request_, monkeypatch):
    seen = []
    monkeypatch.setattr(survey, "capture", lambda request, _: seen.append(request) or SiteCapture(LOGIN, None))
    captured(request_, "batch")
    age(request_)
    assert states(survey.step(request_))["batch"] == "waiting"
    assert len(seen) == 1


def test_a_survey_is_not_old_while_a_job_waits_or_a_capture_is_new(request_, tmp_path):
    survey.step(request_)
    (tmp_path / "states").write_text("1|PENDING|0:00||Priority\n")
    age(request_)
    assert states(survey.step(request_))["batch"] == "waiting"
    (tmp_path / "states").write_text("")
    age(request_)
    captured(request_, "batch")  # after days in the queue
    found = survey.step(request_)
    assert states(found) == {"batch": "captured", "gpu x;$(id)": "failed"}
    assert (tmp_path / "submitted").read_text().count("\n") == 2
    age(request_)  # between the two
    survey.collect(request_, found)
    assert json.loads(Path(request_.output).read_text())["partitions"]["batch"]["fuse"] is True


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.slept = 0.0

    def monotonic(self):
        return self.slept

    def sleep(self, seconds):
        self.slept += seconds

    def time(self):
        return time.time()


def test_all_failures_wait_once_and_only_in_one_call(request_, monkeypatch):
    survey.step(request_)
    clock = Clock()
    monkeypatch.setattr(survey, "time", clock)
    monkeypatch.setattr(survey, "_LAG", 15.0)
    assert [each.state for each in survey.step(request_)] == ["failed", "failed"]
    assert 15 <= clock.slept < 16
    found = survey.step(request_)
    assert clock.slept < 16
    assert [each.reason for each in found] == ["job %d ended without a capture (forgotten)" % each for each in (1, 2)]
    captured(request_, "batch")  # later than the lag: better than the failure
    assert states(survey.step(request_))["batch"] == "captured"


def test_a_dry_run_keeps_a_survey_that_waits(request_, tmp_path, monkeypatch, capsys):
    survey.step(request_)
    words = ["capture", "--partitions", "all", "--dry-run", "--json", "-o"]
    assert main.main([*words, request_.output]) == 0
    assert set(json.loads(capsys.readouterr().out)["jobs"]) == set(LOGIN["partitions"])
    (tmp_path / "states").write_text("1|PENDING|0:00||\n2|PENDING|0:00||\n")
    assert set(states(survey.step(request_)).values()) == {"waiting"}
    assert (tmp_path / "submitted").read_text().count("\n") == 2
    monkeypatch.setattr(survey, "capture", lambda *_: SiteCapture(LOGIN, None))
    assert main.main([*words, str(tmp_path / "new.json")]) == 0
    assert not (tmp_path / "new.json.parts").exists()


def test_the_command_does_not_wait_if_it_is_told_so(request_, tmp_path, capsys):
    words = ["capture", "--partitions", "batch", "-o", request_.output, "--no-wait", "--json"]
    assert main.main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["profile"], said["partitions"][0]["state"]) == (None, "waiting")
    captured(request_, "batch")
    assert main.main(words) == 0
    assert json.loads(capsys.readouterr().out)["profile"] == request_.output
    for more, reason in ((["--node"], "--node cannot be used"), (["--merge", "x"], "--merge cannot be used")):
        assert main.main([*words, *more]) == 2
        assert reason in capsys.readouterr().err


def test_without_slurm_there_is_the_login_node_and_a_note(request_, tmp_path):
    login = {key: value for key, value in LOGIN.items() if key not in ("scheduler", "partitions")}
    SiteCapture(login, None).write(os.path.join(request_.folder, "login.json"))
    assert survey.step(request_) == []
    (note,) = survey.collect(request_, [])
    assert "capture --node --partition NAME" in note
    assert json.loads(Path(request_.output).read_text())["login"] == {"host": "login1"}


@pytest.mark.parametrize("reached", [True, False, None])
def test_the_login_node_tries_a_port_of_each_node(request_, monkeypatch, reached):
    monkeypatch.setattr(survey.ports, "reached", lambda path, own: reached)
    survey.step(request_._replace(partitions=["batch"]))
    (part,) = survey.Survey(request_, LOGIN).wanted()[:1]
    Path(part.port).write_text("{}")
    survey.step(request_._replace(partitions=["batch"]))
    captured(request_, "batch")
    survey.collect(request_, survey.step(request_._replace(partitions=["batch"])))
    login = json.loads(Path(request_.output).read_text())["login"]
    assert login.get("reaches_nodes") is reached
