"""Show and upload the metrics of a copied job: TensorBoard, Weights & Biases, and MLflow, by their own programs."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from deployer.contract.base.errors import DeployerError, MissingTool
from deployer.system import process
from deployer.system.process import Background

#: Beginnings of the names of variables that the programs read: logins, servers, proxies and certificates.
_VARIABLES = ("WANDB_", "MLFLOW_", "HTTP", "NO_PROXY", "http", "no_proxy", "REQUESTS_", "SSL_", "TF_", "XDG_")
_PAUSE = 0.5
_UPLOAD_SECONDS = 24 * 3600.0
_HINT = "correct it, then repeat `deployer result --sync`; what is uploaded already stays"
_SCRIPT = Path(__file__).with_name("mlflow_runs.py")


class TensorBoard:
    """TensorBoard on this machine, for use in a ``with`` block.

    Attributes:
        url: its address. Only this machine can open it.
    """

    def __init__(self, folder: Path, port: int) -> None:
        """Start it for a folder with event files. Raises MissingTool."""
        argv = [_tool("tensorboard"), "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
        self.url = f"http://127.0.0.1:{port}/"
        self._log = tempfile.NamedTemporaryFile(prefix="tensorboard-")
        self._process = Background([*argv, "--reload_interval", "5"], _environment(), self._log.name)

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._log.close()

    def wait(self) -> None:
        """Wait until it ends. Raises DeployerError, with its last words."""
        while self._process.poll() is None:
            time.sleep(_PAUSE)
        lines = self._process.output().strip().splitlines()
        raise DeployerError(f"TensorBoard ended: {lines[-1] if lines else 'it printed nothing'}")


def upload(tracker: str, folder: Path) -> list[str]:
    """Upload the offline runs below a folder, and return their names.

    Args:
        tracker: ``wandb`` or ``mlflow``.

    Raises:
        MissingTool: its program is not installed here.
        DeployerError: the folder has no run, or the upload failed.
    """
    if tracker == "wandb":
        runs = [path for path in folder.rglob("offline-run-*") if path.is_dir()]
        command = [_tool(tracker), "sync"]
    else:  # MLflow has no command for this; its Python is beside its program
        runs = [*folder.rglob("mlflow.db")] or [path.parents[1] for path in folder.rglob("mlruns/*/meta.yaml")][:1]
        command = [str(Path(_tool(tracker)).resolve().with_name("python3")), str(_SCRIPT)]
    if not runs:
        raise DeployerError(f"{folder} has no run of {tracker}")
    for path in sorted(runs):
        process.run([*command, str(path.absolute())], _UPLOAD_SECONDS, _environment(), hint=_HINT)
    return [str(path.relative_to(folder)) for path in sorted(runs)]


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise MissingTool(f"there is no {name} on this machine", f"pip install {name}")
    return path


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    # MLflow refuses the older kind of its stores, mlruns, without this.
    return {**process.base_environment(), "MLFLOW_ALLOW_FILE_STORE": "true", **own}
