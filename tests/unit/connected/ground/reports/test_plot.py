"""The plot of a report, from files on the laptop."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground.reports import plot
from deployer.contract.base.errors import MissingTool
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


@pytest.mark.thorough
def test_a_report_is_drawn_beside_published_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert main(["report", str(saved(tmp_path)), "--beside", "lrz-3dgan", "--plot", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(magic)
        said = capsys.readouterr()
        assert "gan-2" in said.out
        assert "left out: gan-3: it failed" in said.err
    assert (tmp_path / "a.svg").read_bytes().count(b"<!-- lrz-3dgan: ") == 4  # in the legend


@pytest.mark.thorough
def test_names_of_others_are_not_mathematics(tmp_path: Path) -> None:
    path = saved(tmp_path, r"$\nope{", measured_runs.IMAGES, (9.0, 9.1, 9.0))
    assert main(["report", str(path), "--plot", str(tmp_path / "a.svg")]) == 0
    labels = re.findall(r"<!-- (.*) -->", (tmp_path / "a.svg").read_text())
    assert r"$\mathdefault{6\times10^{0}}$" in labels  # all values are within a power of ten


def test_what_cannot_be_drawn_is_said_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", str(tmp_path / "none"), "--plot", "a.pdf"]) == 2
    assert "cannot draw a.pdf: the name must end with .png or .svg" in capsys.readouterr().err

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingTool, match="needs matplotlib"):
        plot.check(Path("a.png"))


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == 2
    assert "there is no" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert main(["report", str(tmp_path / "bad.json")]) == 1
    assert "is not valid JSON" in capsys.readouterr().err
