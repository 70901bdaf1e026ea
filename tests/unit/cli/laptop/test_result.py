"""result: what it shows of jobs that wait, that failed and that wrote something."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.transfer import remote
from deployer.connected.transfer.remote import RemoteFile
from deployer.contract.base import json_records
from deployer.contract.base.errors import TransferError
from deployer.contract.base.json_records import Fields
from tests.checked_records import JOB

_STATUS = {**JOB, "job": "x-1", "job_id": "7", "folder": "/r/jobs/x-1"}


class _FakeRemote:
    """A site with one job; ``result`` is the content of its result.json, None if there is none."""

    result: bytes | None = None
    active = True

    def __init__(self, *_: object) -> None:
        self.downloaded: list[object] = []

    def __enter__(self) -> "_FakeRemote":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prepare(self) -> None:
        pass

    def site(self, words: object) -> Fields:
        known = {**_STATUS, "state": "PENDING" if self.active else "FAILED", "active": self.active}
        problem = {"problem": "", "remedy": ""} if self.active else {"problem": "a node died", "remedy": "run it again"}
        return Fields({**known, **problem}, "the answer of login1", TransferError)

    def has(self, folder: str, name: str) -> bool:
        return self.result is not None

    def fetch(self, path: str, limit: int) -> bytes:
        assert path == "/r/jobs/x-1/result.json"
        assert self.result is not None
        return self.result

    def files_in(self, folder: str) -> dict[str, RemoteFile]:
        sizes = {"ranks/0/out": 5, "output.log": 1200, "ranks/1": 7, "a\x1b[31mb": 3}
        return {name: RemoteFile(size, 1, "1.0") for name, size in sizes.items()}

    def download(self, folder: str, target: Path) -> None:
        target.mkdir()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[_FakeRemote]:
    class Site(_FakeRemote):
        pass

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(remote, "Remote", Site)
    return Site


def test_a_job_without_a_result(site: type[_FakeRemote], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["result", "--site", "lab", "x-1"]
    assert main([*words, "-o", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("job x-1 (7): PENDING\nit has written no result yet\n")
    assert (tmp_path / "new").is_dir()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"] is None
    site.active = False
    assert main(words) == 0
    assert "\nproblem: a node died\nremedy: run it again\nit left no result.json\n" in capsys.readouterr().out


def test_the_files_of_a_job_are_listed_with_the_command_that_fetches_them(
    site: type[_FakeRemote], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["result", "--site", "lab"]) == 0
    said = capsys.readouterr()
    listed = ["         3 B  a\\x1b[31mb", "      1.2 kB  output.log", "        12 B  ranks/  (2 files)"]
    assert said.out.splitlines()[-3:] == listed
    assert said.err == "next: deployer result --site lab x-1 -o DIR\n"


def test_the_folder_of_a_job_leads_to_its_page(
    site: type[_FakeRemote], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.result = b'{"payload": null, "ranks": []}'
    assert main(["result", "--site", "lab", "-o", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().err == f"next: deployer report {tmp_path / 'new'} --html page.html\n"


@pytest.mark.thorough
def test_a_result_of_many_ranks_is_read(site: type[_FakeRemote], capsys: pytest.CaptureFixture[str]) -> None:
    site.result = json.dumps({"payload": {"loss": 1}, "ranks": [{}] * 400_000}).encode()
    assert json_records.MAX_MEMORY < json_records.memory(site.result) < json_records.MAX_LARGE
    assert main(["result", "--site", "lab"]) == 0
    shown = capsys.readouterr().out
    assert '"loss": 1' in shown
    assert "\nproof: none: no MPI library was found in 400000 of 400000 ranks\non the site: /r/jobs/x-1\n" in shown


def test_a_list_of_numbers_has_one_line_and_long_ones_are_shortened(
    site: type[_FakeRemote], capsys: pytest.CaptureFixture[str]
) -> None:
    payload = {
        "loss": [2.5, 1, 0.25],
        "curve": [number / 4 for number in range(80)],
        "layers": [{"size": [3, 4], "name": "a\u202e"}, {}, [], [[1], ["x", None]]],
        "done": True,
    }
    site.result = json.dumps({"payload": payload, "ranks": []}).encode()
    assert main(["result", "--site", "lab"]) == 0
    shown = capsys.readouterr().out
    assert '  "curve": [0.0, 0.25, 0.5, ... 76 more ..., 19.75],\n' in shown
    del payload["curve"]
    site.result = json.dumps({"payload": payload, "ranks": []}).encode()
    assert main(["result", "--site", "lab"]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    text = shown[shown.index("{") : shown.rindex("}") + 1]
    assert json.loads(text) == payload
    assert '{\n  "loss": [2.5, 1, 0.25],\n  "layers": [\n    {\n      "size": [3, 4],\n' in text
    assert main(["result", "--site", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["payload"] == payload
