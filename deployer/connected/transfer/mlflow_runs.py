"""mlflow_runs.py STORE: send the runs of a job's mlflow.db or mlruns to the server of MLFLOW_TRACKING_URI, each once.

It runs with the Python that has MLflow. A run has its original number as a tag; a run that was sent before it had ended
is sent again.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

_TAG = "deployer.run"
#: The most metrics of one request.
_BATCH = 1000


def main(path: Path) -> None:
    """Send all runs."""
    client: Any = importlib.import_module("mlflow").MlflowClient
    here, there = client(f"sqlite:///{path}" if path.is_file() else f"file://{path}"), client()
    for experiment in here.search_experiments():
        known = there.get_experiment_by_name(experiment.name)
        target = known.experiment_id if known else there.create_experiment(experiment.name)
        for run in here.search_runs([experiment.experiment_id]):
            # Its artifacts have the paths of the container.
            folder = path.with_name("mlruns") / run.info.artifact_uri.rpartition("/mlruns/")[2]
            _send(here, there, run, target, folder)


def _send(here: Any, there: Any, run: Any, experiment: str, artifacts: Path) -> None:
    own = run.info.run_id
    for known in there.search_runs([experiment], f"tags.`{_TAG}` = '{own}'"):
        if known.info.status == run.info.status != "RUNNING":
            return
        there.delete_run(known.info.run_id)
    new = there.create_run(experiment, run.info.start_time, {**run.data.tags, _TAG: own}, run.info.run_name)
    for name, value in run.data.params.items():
        there.log_param(new.info.run_id, name, value)
    for name in run.data.metrics:
        history = here.get_metric_history(own, name)
        for start in range(0, len(history), _BATCH):
            there.log_batch(new.info.run_id, history[start : start + _BATCH])
    if artifacts.is_dir():
        there.log_artifacts(new.info.run_id, str(artifacts))
    if run.info.status != "RUNNING":
        there.set_terminated(new.info.run_id, run.info.status, run.info.end_time)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
