"""Write definitions for the corpus: ``python -m tests.corpus FOLDER --stand-ins DIR [--remedied]``."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.corpus import fetch
from tests.corpus.scripts import SCRIPTS, Script

ROOT = Path(__file__).resolve().parents[2]
#: Debian packages of the images. scikit-learn's scripts have PyTorch's image: one image less to ship.
_TORCH = [
    "python3", "python3-cloudpickle", "python3-filelock", "python3-matplotlib", "python3-packaging", "python3-psutil",
    "python3-six", "python3-sklearn", "python3-torch", "python3-torchvision", "python3-yaml",
]  # fmt: skip
_BASES = {"sklearn": _TORCH, "torch": _TORCH, "tensorflow": ["python3"]}
#: What is like the definition of the repository that an image comes from.
_LIKE = {"sklearn": "horovod-pytorch", "torch": "horovod-pytorch", "tensorflow": "horovod-tensorflow-cpu"}
_HOROVOD = {"torch": ("pytorch", "pytorch"), "tensorflow": ("tensorflow", "tensorflow")}
#: The SHA-256 that Keras 2.15 demands of a set. The real files cannot be had here, so the image's Keras demands that of
#: the stand-in. The scripts stay as they are.
_KERAS = {
    "mnist": "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    "reuters": "d6586e694ee56d7a4e65172e12b3e987c03096cb01eab99753921ef915959916",
    "imdb": "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f",
}
_DATASETS = "/usr/local/lib/python3.11/dist-packages/keras/src/datasets"


def names(image: str, mpi: bool) -> str:
    """Return the name of the definition for scripts of this kind."""
    return f"corpus-{image}{'-horovod' if mpi else ''}"


def write(folder: Path, standins: Path, remedied: bool, scripts: Sequence[Script] = SCRIPTS) -> list[Path]:
    """Write a definition for each kind of the scripts; return their folders.

    Args:
        standins: the folder that ``standins.py`` made.
        remedied: with the remedies for what the scripts reach for.
    """
    kinds = {(script.image, script.mpi): names(script.image, script.mpi) for script in scripts}
    return [
        _definition(
            folder / name,
            image,
            [each for each in scripts if (each.image, each.mpi) == (image, mpi)],
            standins,
            remedied,
        )
        for (image, mpi), name in kinds.items()
    ]


def _definition(folder: Path, image: str, scripts: Sequence[Script], standins: Path, remedied: bool) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if image in _LIKE:
        _context(folder, image, standins)
    data: dict[str, str] = {}
    jobs = {}
    for script in scripts:
        fetch.fetched(script, folder / "app")
        jobs[script.name] = _job(script, remedied)
        data.update(script.given)
        if remedied:
            for source in script.links.values():
                top = source.split("/")[0]
                data[top] = top
                if not (standins / source).is_dir():
                    target = folder / "data" / source
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if not target.exists():
                        _copy(standins / source, target)
    for each in set(data.values()):
        if not (folder / "data" / each).exists():  # of "corpus" only what is linked
            shutil.copytree(standins / each, folder / "data" / each, copy_function=_copy)
    record: dict[str, Any] = {
        "name": folder.name,
        "version": "2.0.0" if remedied else "1.0.0",
        "base": {"debian": "bookworm", "include": _BASES[image]},
    }
    if scripts[0].mpi:
        framework, stage = _HOROVOD[image]
        record.update(framework=framework, horovod={"version": "0.28.1", "stage": stage}, mpi=["mpich-abi"])
    else:
        record["mpi"] = []
    record["data"] = {name: {"folder": f"data/{each}"} for name, each in data.items()}
    record["jobs"] = jobs
    (folder / "bundle.yaml").write_text(yaml.safe_dump({k: v for k, v in record.items() if v != {}}, sort_keys=False))
    return folder


def _job(script: Script, remedied: bool) -> dict[str, Any]:
    command = ["python3", f"/deployer/app/{script.start}", *script.words]
    limit = f"{script.minutes // 60:02}:{script.minutes % 60:02}:00"
    job: dict[str, Any] = {"nodes": 2, "ranks_per_node": 1, "threads": 1, "time": limit}
    if remedied and script.before:
        command = ["sh", "-c", f'{script.before} && exec "$0" "$@"', *command]
    if remedied and script.links:
        job["links"] = {place: f"data/{source}" for place, source in script.links.items()}
    if remedied and script.workdir:
        job["workdir"] = script.workdir
    return {"command": command, **job}


def _context(folder: Path, image: str, standins: Path) -> None:
    """Copy the context of the definition that the image is like; its Keras takes the stand-ins."""
    like = ROOT / "bundles" / _LIKE[image]
    for path in like.glob("requirements*.txt"):
        shutil.copy(path, folder)
    text = (like / "Dockerfile").read_text()
    if image == "tensorflow":
        stand = {name: hashlib.sha256((standins / "corpus/keras" / f"{name}.npz").read_bytes()) for name in _KERAS}
        edits = " ".join(f"-e s/{real}/{stand[name].hexdigest()}/" for name, real in _KERAS.items())
        files = " ".join(f"{_DATASETS}/{name}.py" for name in _KERAS)
        greps = " && ".join(f"grep -q {stand[name].hexdigest()} {_DATASETS}/{name}.py" for name in _KERAS)
        text = text.replace(
            'CMD ["python3"]',
            f'RUN sed -i {edits} {files} && rm -rf {_DATASETS}/__pycache__ && {greps}\nCMD ["python3"]',
        )
    (folder / "Dockerfile").write_text(text)


def _copy(source: str | Path, target: str | Path) -> None:
    """Link a file where that is possible: the stand-ins are read only."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)
