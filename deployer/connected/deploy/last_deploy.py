"""The record of a definition's last deploy to a site: its bundle, and a job that was not followed to its end.

The bundle is reused while nothing that went into it has changed. Files of the app are compared by content, data and
wheels by size, times and inode.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import deployer
from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.pyz import vendored
from deployer.connected.ground import xdg
from deployer.connected.ground.locked_folder import lock
from deployer.connected.rootfs import datafolder
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.system import files

_SCHEMA = "last-deploy"
_VERSION = 1


class LastDeploy(NamedTuple):
    """The record of a deploy.

    Attributes:
        inputs: a digest of everything that went into the bundle.
        file: the bundle's size, times and inode after it was written.
        digest: the bundle's digest.
        job: the name of a job whose end was not observed; empty: there is none.
        words: the words with which this job was submitted.
        pushed: the digest of the bundle installed at the site; empty: none.
    """

    inputs: str = ""
    file: Sequence[int] = ()
    digest: str = ""
    job: str = ""
    words: Sequence[str] = ()
    pushed: str = ""


def record_of(bundle: Path) -> Path:
    """Return the record file of deploys that pack into ``bundle``."""
    name = hashlib.sha256(os.fsencode(bundle.absolute())).hexdigest()[:16]
    return xdg.state_folder("deploys") / f"{bundle.stem}-{name}.json"


def recorded(bundle: Path) -> LastDeploy:
    """Return the record, or an empty one if it is missing or damaged; then everything is done again."""
    path = record_of(bundle)
    try:
        fields = Fields(json_records.parse(files.read_bytes(str(path)), str(path)), str(path))
        if fields.number("version") != _VERSION:
            return LastDeploy()
        return records.read(LastDeploy, fields, words=fields.words("words"), file=fields.record.get("file") or ())
    except DeployerError:
        return LastDeploy()


def write(bundle: Path, last: LastDeploy) -> None:
    """Keep the record."""
    record = {"schema": _SCHEMA, "version": _VERSION, **last._asdict()}
    files.write_text(str(record_of(bundle)), json_records.pretty(record))


@contextlib.contextmanager
def alone(bundle: Path) -> Iterator[None]:
    """Hold the lock of deploys that pack into ``bundle``. The kernel releases it when this process ends.

    Raises:
        UsageError: another deploy holds the lock.
    """
    path = record_of(bundle).with_suffix(".lock")
    with files.errors_named(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a")
    with stream:
        try:
            lock(stream)
        except BlockingIOError:
            hint = "wait until it has submitted its job, then repeat the command"
            raise UsageError(f"another deploy into {bundle} runs", hint) from None
        yield


def state_of(path: Path) -> Sequence[int]:
    """Return a file's size, times and inode; empty if it does not exist."""
    state = files.status(str(path))
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino] if state else []


def inputs_of(contents: Contents, image: Path | None, sites: Sequence[Profile], options: object) -> str:
    """Return a digest of everything that a pack reads, including this program.

    Args:
        sites: the profiles of the sites that need plans.
        image: the image file; None: the image is in the engine.
        options: further options for the pack.
    """
    app = datafolder.app_files(contents.app) if contents.app else ()
    made_of = {
        "program": [deployer.__version__, vendored(), _program()],
        "image": [contents.identity() if contents.identity else "", contents.lean, *(state_of(image) if image else ())],
        "jobs": [job._asdict() for job in contents.jobs],
        "app": [(file.name, file.mode, hashlib.sha256(b"".join(datafolder.pieces(file))).hexdigest()) for file in app],
        "data": [[name, list(_states([path]))] for name, path in sorted(contents.data.items())],
        "needs": [need._asdict() for need in contents.needs],
        "carried": [[name, list(_states([path]))] for name, path in sorted(contents.carried.items())],
        "of": [contents.name, contents.version, list(contents.mpi or ()), contents.mpi is None],
        "sites": [[site.model_dump(mode="json"), site.left_out] for site in sites],
        "options": options,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()


def _states(paths: Iterable[Path]) -> Iterator[object]:
    """Yield the state of each file. For a folder, yield the state of each file below it."""
    for top in paths:
        below = sorted(path for path in top.rglob("*")) if top.is_dir() else []
        for path in [top, *below]:
            yield str(path), list(state_of(path))


@functools.cache
def _program() -> list[object]:
    """Return the states of our own files at the first call. In a checkout they change without a new version."""
    below = sorted(Path(deployer.__file__).parent.rglob("*"))
    return list(_states(path for path in below if path.suffix != ".pyc" and path.is_file()))
