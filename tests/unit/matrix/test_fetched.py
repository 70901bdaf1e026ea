"""The table of published scripts that download, and what the lab's internet serves to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.internet import Internet
from tests.lab.internet.answers import Request
from tests.matrix import fetched, fetched_data


def test_names_are_unique_and_ten_are_of_language_models() -> None:
    names = [script.name for script in fetched.SCRIPTS]
    assert len(set(names)) == len(names) >= 40
    assert sum(script.language for script in fetched.SCRIPTS) >= 10


def test_command_copies_what_writes_beside_itself() -> None:
    by_name = {script.name: script for script in fetched.SCRIPTS}
    assert fetched.command(by_name["gcn"], "/app") == ["python3", "/app/gcn/gcn/main.py", "--dry-run"]
    shell = fetched.command(by_name["nanogpt-char"], "/app")
    assert shell[2].startswith("cp -R /app/nanogpt-char/. . && exec")
    assert shell[-1] == "data/shakespeare_char/prepare.py"


@pytest.mark.thorough
def test_furnished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetched_data.fetch.CLONES, str(tmp_path))
    (tmp_path / "models/org/tiny").mkdir(parents=True)
    (tmp_path / "models/org/tiny/config.json").write_text("{}")
    internet = Internet(tmp_path)
    fetched_data.furnish(internet, tmp_path, None)
    for host, path in (
        ("huggingface.co", "/api/models/org/tiny"),
        ("raw.githubusercontent.com", "/mwaskom/seaborn-data/master/flights.csv"),
        ("linqs-data.soe.ucsc.edu", "/public/lbc/cora.tgz"),
        ("api.openml.org", "/api/v1/json/data/554"),
    ):
        assert internet.answer(Request("GET", "https", host, path)).status == 200, host
