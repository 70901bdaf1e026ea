"""A report from files on the laptop."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.contract.proof import measured_runs


def saved(
    folder: Path, workload: str = "3dgan", unit: str = measured_runs.SECONDS, values: tuple[float, ...] = (9.0, 8.0)
) -> Path:
    """Write what `report --json` printed, and return its path."""
    runs = [
        measured_runs.Run(f"gan-{n}", workload, "", unit, "lab", "charliecloud", n, n, 1, [each / n for each in values])
        for n in (1, 2)
    ]
    path = folder / "report.json"
    path.write_text(json.dumps(measured_runs.record(measured_runs.rows(runs), [("gan-3", "it failed")])))
    return path


def test_an_earlier_report_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(saved(tmp_path))]) == 0
    said = capsys.readouterr()
    assert "gan-2" in said.out
    assert "left out: gan-3: it failed" in said.err


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == 2
    assert "there is no" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert main(["report", str(tmp_path / "bad.json")]) == 1
    assert "is not valid JSON" in capsys.readouterr().err
