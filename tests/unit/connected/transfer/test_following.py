"""following: what is copied of a job's folder, when, and what is not."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from deployer.connected.transfer import following
from deployer.connected.transfer.following import JobCopy
from deployer.connected.transfer.remote import Remote, RemoteFile
from deployer.contract.base.errors import TransferError, UsageError
from deployer.contract.base.json_records import Fields

LARGE = b"x" * (1024 * 1024 + 1)


class _Site:
    """A site whose folder is one of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.got, self.added = folder, [], 0
        self.states: Iterator[str] = iter(())
        self.lost = 0

    got: list[str]

    def prepare(self) -> None:
        pass

    def check_open(self) -> None:
        if self.lost:
            self.lost -= 1
            raise TransferError("the connection closed")

    def site(self, words: Sequence[str]) -> Fields:
        active = next(self.states) == "RUNNING"
        status = {"job": "x-1", "folder": str(self.folder), "active": active}
        return Fields(status, "the answer", TransferError)

    def files_in(self, folder: str) -> dict[str, RemoteFile]:
        found = {}
        for path in self.folder.rglob("*"):
            state = path.stat()
            if path.is_file():
                name = str(path.relative_to(self.folder))
                found[name] = RemoteFile(state.st_size, state.st_ino, f"{state.st_mtime:.9f}")
        return {**found, "../outside": RemoteFile(1, 1, "1"), "/etc/passwd": RemoteFile(1, 2, "1")}

    def get(self, folder: str, wanted: Sequence[tuple[str, Path, bool]]) -> None:
        for name, path, adds in wanted:
            self.got.append(name)
            source = self.folder / name
            if not source.exists():
                continue
            if adds:
                data = source.read_bytes()[path.stat().st_size :]
                self.added += len(data)
                with open(path, "ab") as stream:
                    stream.write(data)
            else:
                path.write_bytes(source.read_bytes())
                os.utime(path, (source.stat().st_atime, source.stat().st_mtime))


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    (tmp_path / "far").mkdir()
    return _Site(tmp_path / "far")


def copied(copy: JobCopy, site: _Site, last: bool = False) -> list[str]:
    return copy.copy(cast(Remote, site), str(site.folder), last)


def test_changed_files_are_copied_and_paths_that_lead_out_are_not(site: _Site, tmp_path: Path) -> None:
    copy = JobCopy("x-1", tmp_path / "near")
    (site.folder / "a").mkdir()
    (site.folder / "a" / "metrics.csv").write_text("1\n")
    (site.folder / ".spare").write_text("reserve")
    assert copied(copy, site) == ["a/metrics.csv"]
    assert copied(copy, site) == []
    (site.folder / "a" / "metrics.csv").write_text("1\n2\n")
    assert copied(copy, site) == ["a/metrics.csv"]
    assert (tmp_path / "near" / "a" / "metrics.csv").read_text() == "1\n2\n"
    assert sorted(os.listdir(tmp_path)) == ["far", "near"]


def test_bytes_are_added_to_a_large_file_that_grows_and_all_of_it_is_copied_at_the_end(
    site: _Site, tmp_path: Path
) -> None:
    copy, events = JobCopy("x-1", tmp_path / "near"), site.folder / "events.out.tfevents.7"
    events.write_bytes(LARGE)
    copied(copy, site)
    events.write_bytes(LARGE + b"more")
    copied(copy, site)
    assert site.added == 4
    data = b"y" + LARGE[1:] + b"more and more"  # what was copied before has changed too
    events.write_bytes(data)
    assert copied(copy, site, last=True) == [events.name]
    assert (tmp_path / "near" / events.name).read_bytes() == data


def test_a_large_file_is_copied_when_it_no_longer_changes(site: _Site, tmp_path: Path) -> None:
    copy, checkpoint = JobCopy("x-1", tmp_path / "near"), site.folder / "model.ckpt"
    checkpoint.write_bytes(LARGE)
    assert copied(copy, site) == []
    checkpoint.write_bytes(LARGE * 2)
    assert copied(copy, site) == []
    assert copied(copy, site) == ["model.ckpt"]
    checkpoint.write_bytes(LARGE)
    assert copied(copy, site, last=True) == ["model.ckpt"]


def test_patterns_choose_files_of_any_size(site: _Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_MOST", 10)
    (site.folder / "b").mkdir()
    (site.folder / "b" / "model.ckpt").write_bytes(b"x" * 11)
    (site.folder / "output.log").write_text("log")
    everything = JobCopy("x-1", tmp_path / "everything")
    assert copied(everything, site) == ["output.log"]
    assert everything.large == {"b/model.ckpt"}
    assert copied(JobCopy("x-1", tmp_path / "some", ["*.ckpt"]), site) == ["b/model.ckpt"]


def test_a_second_command_continues_and_other_folders_are_refused(site: _Site, tmp_path: Path) -> None:
    (site.folder / "output.log").write_text("log")
    assert copied(JobCopy("x-1", tmp_path / "near"), site) == ["output.log"]
    assert copied(JobCopy("x-1", tmp_path / "near"), site) == []
    with pytest.raises(UsageError, match="has other files"):
        JobCopy("x-2", tmp_path / "near")
    with pytest.raises(UsageError, match="has other files"):
        JobCopy("x-1", site.folder)


def test_a_file_that_vanishes_or_shrinks_meanwhile_is_not_copied(
    site: _Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = JobCopy("x-1", tmp_path / "near")
    listed = {"gone": RemoteFile(1, 1, "1.0"), "short": RemoteFile(9, 2, "1.0")}
    monkeypatch.setattr(site, "files_in", lambda _: listed)
    (site.folder / "short").write_text("s")
    copied(copy, site)
    assert os.listdir(tmp_path / "near") == [following._MARKER]
    assert copied(copy, site) == []
    assert site.got == ["gone", "short"] * 2


def test_a_job_is_followed_to_its_end_through_a_lost_connection(site: _Site, tmp_path: Path) -> None:
    pauses: list[float] = []
    site.states, site.lost = iter(["RUNNING", "RUNNING", "RUNNING", "ENDED"]), 2
    (site.folder / "output.log").write_text("log")
    copy, said = JobCopy("x-1", tmp_path / "near"), list[str]()
    connect: Any = lambda: nullcontext(site)  # noqa: E731
    status = following.follow(connect, [], lambda _: copy, 10.0, said.append, pauses.append)
    assert not status.flag("active")
    assert said == ["the connection closed; trying again in 10 s"] * 2 + ["copied output.log"]
    assert pauses == [10.0] * 20


def test_a_connection_that_cannot_be_made_at_first_is_an_error(site: _Site, tmp_path: Path) -> None:
    def connect() -> Remote:
        raise TransferError("no connection")

    with pytest.raises(TransferError, match="no connection"):
        following.follow(connect, [], lambda _: JobCopy("x-1", tmp_path), 10.0, print)
