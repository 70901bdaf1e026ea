"""trackers: programs as they are called. The real MLflow 3 and wandb were tried by hand."""

import json
import sys
import time
from pathlib import Path

import pytest

from deployer.connected.transfer import trackers
from deployer.contract.base.errors import DeployerError, MissingTool
from tests import running

#: The calls of a client that mlflow_runs makes, with one run that a store has, as JSON in a file.
_MLFLOW = """
import json, os
from types import SimpleNamespace as Made
SENT = os.environ["MLFLOW_SENT"]
class MlflowClient:
    def __init__(self, store=""):
        self.store = store
        self.sent = json.load(open(SENT)) if os.path.exists(SENT) else {}
    def search_experiments(self):
        return [Made(name="digits", experiment_id="1")]
    def get_experiment_by_name(self, name):
        return None
    def create_experiment(self, name):
        return "9"
    def search_runs(self, experiments, filter=""):
        info = Made(run_id="r1", run_name="first", status="FINISHED", start_time=1, end_time=2,
                    artifact_uri="/deployer/job/mlruns/1/r1/artifacts")
        data = Made(params={"lr": "0.1"}, metrics={"loss": 0.5}, tags={})
        return [Made(info=info, data=data)] if not filter or self.sent else []
    def create_run(self, experiment, start, tags, name):
        self.sent = {"experiment": experiment, "tags": tags, "name": name, "store": self.store}
        return Made(info=Made(run_id="n1"))
    def log_param(self, run, name, value):
        self.sent[name] = value
    def get_metric_history(self, run, name):
        return list(range(1500))
    def log_batch(self, run, metrics):
        self.sent.setdefault("batches", []).append(len(metrics))
    def log_artifacts(self, run, folder):
        self.sent["artifacts"] = os.listdir(folder)
    def set_terminated(self, run, status, end):
        self.sent["status"] = status
        json.dump(self.sent, open(SENT, "x"))
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_each_offline_run_of_wandb_is_synced(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running.program(programs, "wandb", f'#!/bin/sh\necho "$WANDB_API_KEY $*" >>{tmp_path}/calls\n')
    monkeypatch.setenv("WANDB_API_KEY", "key")
    job = tmp_path / "job"
    with pytest.raises(DeployerError, match="has no run of wandb"):
        trackers.upload("wandb", job)
    for number in (2, 1):
        (job / "wandb" / f"offline-run-{number}").mkdir(parents=True)
    assert trackers.upload("wandb", job) == ["wandb/offline-run-1", "wandb/offline-run-2"]
    calls = [f"key sync {job}/wandb/offline-run-{number}" for number in (1, 2)]
    assert (tmp_path / "calls").read_text().splitlines() == calls


@pytest.mark.thorough
def test_runs_of_mlflow_are_sent_once(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow.py").write_text(_MLFLOW)
    running.program(programs, "mlflow", "")
    running.program(programs, "python3", f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    monkeypatch.setenv("MLFLOW_SENT", str(tmp_path / "sent"))
    job = tmp_path / "job"
    (job / "mlruns" / "1" / "r1" / "artifacts").mkdir(parents=True)
    (job / "mlruns" / "1" / "r1" / "artifacts" / "note.txt").touch()
    (job / "mlflow.db").touch()
    for _ in range(2):
        assert trackers.upload("mlflow", job) == ["mlflow.db"]
    assert json.loads((tmp_path / "sent").read_text()) == {
        "experiment": "9", "tags": {"deployer.run": "r1"}, "name": "first", "store": "", "lr": "0.1",
        "batches": [1000, 500], "artifacts": ["note.txt"], "status": "FINISHED",
    }  # fmt: skip


def test_a_tracker_that_is_missing_or_fails_is_named(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "offline-run-1").mkdir()
    with pytest.raises(MissingTool, match="there is no wandb on this machine"):
        trackers.upload("wandb", tmp_path)
    running.program(programs, "wandb", "#!/bin/sh\necho 'Error: No API key configured.' >&2\nexit 1\n")
    with pytest.raises(DeployerError, match="No API key configured"):
        trackers.upload("wandb", tmp_path)


def test_tensorboard_is_only_for_this_machine_and_ends_with_the_block(programs: Path, tmp_path: Path) -> None:
    running.program(programs, "tensorboard", f'#!/bin/sh\necho "$@" >{tmp_path}/words\nexec sleep 60\n')
    with trackers.TensorBoard(tmp_path, 7001) as board:
        end = time.monotonic() + 20
        while not (tmp_path / "words").is_file() or not (tmp_path / "words").read_text():
            assert time.monotonic() < end
        assert board.url == "http://127.0.0.1:7001/"
    assert f"--logdir {tmp_path} --host 127.0.0.1 --port 7001" in (tmp_path / "words").read_text()
    running.program(programs, "tensorboard", "#!/bin/sh\necho 'the port is in use' >&2\n")
    with trackers.TensorBoard(tmp_path, 7001) as board, pytest.raises(DeployerError, match="the port is in use"):
        board.wait()
