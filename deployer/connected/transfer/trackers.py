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
        DeployerError: there is no run, or the upload failed.
    """
    pattern = "offline-run-*" if tracker == "wandb" else "mlruns"
    found = sorted(path for path in folder.rglob(pattern) if path.is_dir() and not path.is_symlink())
    if not found:
        raise DeployerError(f"{folder} has no {pattern}: the job left no run of {tracker}")
    tool = _tool(tracker)
    for path in found:
        # wandb's own command has this work; MLflow's has none, and its Python is beside it.
        argv = [tool, "sync", str(path)]
        if tracker == "mlflow":
            argv = [str(Path(tool).resolve().with_name("python3")), str(_SCRIPT), str(path.absolute())]
        process.run(argv, _UPLOAD_SECONDS, _environment(), hint="correct it, then: deployer result --sync again")
    return [path.name if tracker == "wandb" else str(path.relative_to(folder)) for path in found]


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise MissingTool(f"there is no {name} on this machine", f"pip install {name}")
    return path


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    return {**process.base_environment(), **own}
