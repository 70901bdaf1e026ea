"""fetch.lock: what `deployer fetch` downloaded for the jobs of a definition. Check it in.

The files themselves are in ``fetched/JOB/`` beside it, which is not checked in: ``home`` has those of the job's HOME,
``job`` those of its own folder. A marker there has the digest of the job's part of the lock.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import Refused, UsageError
from deployer.system import files

FILE, FOLDER = "fetch.lock", "fetched"
#: The folder with the repositories of a hub, each in a folder with the name of its data.
DATA = "fetched-data"
HOME, JOB, MARKER = "home", "job", "lock.sha256"
_SCHEMA = "fetch-lock"
_HINT = "it is written by `deployer fetch`: restore it, or remove it and fetch again"


class LockedUrl(NamedTuple):
    """A downloaded file.

    Attributes:
        url: its address, without logins.
        sha256: its digest, in hexadecimal.
        size: bytes.
    """

    url: str
    sha256: str
    size: int


class FetchedJob(NamedTuple):
    """What was fetched for a job.

    Attributes:
        urls: the downloaded files, sorted.
        home: names in HOME with the kept files; the job has links at their places.
        job: the same for the job's folder.
        environment: variables that keep libraries from asking for a network.
    """

    urls: list[LockedUrl]
    home: list[str]
    job: list[str]
    environment: Mapping[str, str]

    def record(self) -> json_records.Record:
        """Return the part of the lock."""
        return {
            "environment": dict(sorted(self.environment.items())),
            "home": sorted(self.home),
            "job": sorted(self.job),
            "urls": [each._asdict() for each in self.urls],
        }

    def digest(self) -> str:
        """Return the digest of this part of the lock."""
        return hashlib.sha256(json_records.dumps(self.record())).hexdigest()

    def links(self, name: str) -> dict[str, str]:
        """Return the links of the job ``name`` to its files."""
        top = f"data/{FOLDER}/{name}"
        own = {f"~/{each}": f"{top}/{HOME}/{each}" for each in self.home}
        return {**own, **{each: f"{top}/{JOB}/{each}" for each in self.job}}


def read(folder: Path) -> dict[str, FetchedJob]:
    """Return the lock of the definition in a folder, by job; empty if there is none. Raises UsageError."""
    path = str(folder / FILE)
    if not files.exists(path):
        return {}
    try:
        jobs = json_records.loads(files.read_bytes(path), _SCHEMA, path).children("jobs")
        return {name: records.read(FetchedJob, fields) for name, fields in jobs.items()}
    except UsageError as error:
        error.hint = error.hint or _HINT
        raise


def read_data(folder: Path) -> dict[str, dict[str, str]]:
    """Return the lock of a hub's files: the SHA-256 by path, by repository and revision. Raises UsageError."""
    path = str(folder / FILE)
    if not files.exists(path):
        return {}
    found = json_records.loads(files.read_bytes(path), _SCHEMA, path).record.get("data", {})
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise UsageError(f"{path} is not a lock of `fetch`", _HINT)
    return found


def write(folder: Path, jobs: Mapping[str, FetchedJob], data: Mapping[str, Mapping[str, str]]) -> None:
    """Write the lock."""
    fields = {"data": data, "jobs": {name: jobs[name].record() for name in sorted(jobs)}}
    files.write_text(str(folder / FILE), json.dumps(json_records.stamped(_SCHEMA, fields), indent=1) + "\n")


def ignore(top: Path) -> None:
    """Keep Git from adding what is in a new folder."""
    if not files.exists(str(top / ".gitignore")):
        files.write_text(str(top / ".gitignore"), "# written by `deployer fetch`, which fetches it again\n*\n")


def mark_data(top: Path, name: str, choice: str) -> None:
    """Record which files of a repository a folder of ``top`` has."""
    files.write_text(str(top / f".{name}"), choice + "\n")


def check_data(folder: Path, choices: Mapping[str, str]) -> None:
    """Raise Refused if the files of a repository are missing, or others than the definition chooses."""
    for name, choice in choices.items():
        marker = str(folder / DATA / f".{name}")
        made = files.is_folder(str(folder / DATA / name)) and files.exists(marker) and files.read_text(marker).strip()
        if made != choice:
            raise Refused(f"the files of data {name} are not fetched: {choice}", f"deployer fetch {folder}")


def check(folder: Path, jobs: Mapping[str, FetchedJob]) -> None:
    """Raise Refused if the files of a job are missing, or belong to another lock."""
    for name, job in jobs.items():
        marker = str(folder / FOLDER / name / MARKER)
        made = files.read_text(marker).strip() if files.exists(marker) else None
        if made != job.digest():
            why = "are missing" if made is None else f"are not those of {FILE}"
            hint = f"deployer fetch {folder} {name} --locked"
            raise Refused(f"the fetched files of job {name} {why}: {folder / FOLDER / name}", hint)
