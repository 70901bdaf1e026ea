"""A report from files on the laptop."""

from pathlib import Path

import pytest

from deployer.cli.laptop.main import main


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == 2
    assert "there is no" in capsys.readouterr().err
