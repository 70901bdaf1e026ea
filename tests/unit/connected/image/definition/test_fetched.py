"""The lock of `fetch`, and the jobs and data of a definition that has one."""

from pathlib import Path

import pytest

from deployer.connected.image.definition import fetched
from deployer.connected.image.definition.definition import load
from deployer.connected.image.definition.fetched import FetchedJob, LockedUrl
from deployer.contract.base.errors import Refused, UsageError

DEFINITION = """
name: x
version: "1"
base: {debian: bookworm, include: [python3]}
jobs:
  train: {command: [python3, t.py], environment: {A: "1"}, fetch: [python3, get.py]}
  other: {command: [python3, o.py]}
"""
MADE = FetchedJob([LockedUrl("https://h.example/a", "0" * 64, 5)], [".cache"], ["data"], {"HF_HUB_OFFLINE": "1"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bundle.yaml").write_text(DEFINITION)
    return tmp_path


def _put(folder: Path, digest: str) -> None:
    place = folder / fetched.FOLDER / "train"
    place.mkdir(parents=True)
    (place / fetched.MARKER).write_text(digest + "\n")


def test_a_lock_is_read_as_it_was_written(folder: Path) -> None:
    fetched.write(folder, {"train": MADE}, {})
    first = (folder / fetched.FILE).read_bytes()
    assert fetched.read(folder) == {"train": MADE}
    fetched.write(folder, fetched.read(folder), {})
    assert (folder / fetched.FILE).read_bytes() == first


def test_the_fetched_job_has_links_data_and_variables(folder: Path) -> None:
    fetched.write(folder, {"train": MADE, "gone": MADE}, {})
    definition = load(folder)
    train, other = definition.own_jobs
    assert train.links == {"~/.cache": "data/fetched/train/home/.cache", "data": "data/fetched/train/job/data"}
    assert train.environment == {"HF_HUB_OFFLINE": "1", "A": "1"}
    assert (other.links, other.environment) == ({}, {})
    assert definition.data_folders == {"fetched": folder / "fetched"}


def test_a_fetch_runs_its_own_command_without_the_fetched_files(folder: Path) -> None:
    fetched.write(folder, {"train": MADE}, {})
    definition = load(folder).to_fetch("train")
    (job,) = definition.own_jobs
    assert (job.command, job.links, definition.data_folders) == (["python3", "get.py"], {}, {})
    assert load(folder).to_fetch("other").own_jobs[0].command == ["python3", "o.py"]


def test_files_of_another_lock_are_refused(folder: Path) -> None:
    with pytest.raises(Refused, match="of job train are missing"):
        fetched.check(folder, {"train": MADE})
    _put(folder, "0" * 64)
    with pytest.raises(Refused, match=r"are not those of fetch\.lock"):
        fetched.check(folder, {"train": MADE})


def test_files_of_the_lock_are_accepted(folder: Path) -> None:
    _put(folder, MADE.digest())
    fetched.check(folder, {"train": MADE})


@pytest.mark.parametrize("text", ["{}", "x", '{"schema": "deployer.fetch-lock", "format": 1, "min_reader": 1}',
    '{"schema": "deployer.fetch-lock", "format": 1, "min_reader": 1, "jobs": {"train": {"urls": 1}}}',
    '{"schema": "deployer.fetch-lock", "format": 1, "min_reader": 1, "jobs": []}'])  # fmt: skip
def test_a_damaged_lock_is_an_error(folder: Path, text: str) -> None:
    (folder / fetched.FILE).write_text(text)
    with pytest.raises(UsageError, match=r"fetch\.lock"):
        load(folder)


def test_a_hostile_lock_links_nothing_outside(folder: Path) -> None:
    fetched.write(folder, {"train": MADE._replace(home=["../../x"])}, {})
    with pytest.raises(UsageError, match="invalid place"):
        _ = load(folder).own_jobs


def test_the_name_of_the_fetched_data_is_taken(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "bundle.yaml").write_text(DEFINITION + "data: {fetched: {folder: d}}\n")
    load(folder)
    fetched.write(folder, {"train": MADE}, {})
    with pytest.raises(UsageError, match="data: fetched"):
        load(folder)
