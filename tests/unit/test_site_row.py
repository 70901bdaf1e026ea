"""scripts/site_row.py: the row of a report in the table of real sites, whatever is in the report."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/site_row.py"
REPORT = {
    "schema": "deployer.problem-report",
    "versions": {
        "deployer": "0.2.0",
        "system": "Rocky Linux 9.4, 5.14.0-427.el9",
        "batch": "slurm 23.11.8",
        "runtimes": "apptainer 1.3.4",
        "mpi": "intel 2021.15, /opt/intel/mpi/2021.15/lib/libmpi.so.12",
    },
    "plan": {"check": {"verdict": "RUN"}},
    "doctor": [{"name": "kernel", "state": "ok"}, {"name": "fabric", "state": "broken"}],
    "proofs": ["2 of 2 ranks on 1 nodes used it", "2 of 2 ranks on 2 nodes used it"],
    "last_job": None,
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_row", SCRIPT)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    document = tmp_path / "sites.md"
    document.write_bytes(module.DOCUMENT.read_bytes())
    monkeypatch.setattr(module, "DOCUMENT", document)
    monkeypatch.setattr(sys, "argv", ["site_row.py", str(tmp_path / "report.txt")])
    return module


def add(script: ModuleType, report: object) -> list[str]:
    """Return the lines of the table after a report."""
    Path(sys.argv[1]).write_text(f"# the head\n#\n{json.dumps(report, indent=2)}\n")
    script.main()
    text = script.DOCUMENT.read_text()
    assert "the table is empty" not in text
    return str(text[text.index("| date") :]).splitlines()


def test_a_report_becomes_a_row_of_as_many_columns(script: ModuleType) -> None:
    head, _, row = add(script, REPORT)
    assert row.count("|") == head.count("|")
    assert row.endswith("| slurm 23.11.8 | apptainer 1.3.4 | intel 2021.15, /opt/intel/mpi/2021.15/lib/libmpi.so.12 "
                        "| RUN | broken: fabric | 2 of 2 ranks on 2 nodes used it |")  # fmt: skip
    assert len(add(script, {**REPORT, "plan": None, "proofs": []})) == 4


def test_a_hostile_report_adds_one_row_of_plain_text(script: ModuleType) -> None:
    bad = "a | b\n| c [x](http://evil.example) <script> `rm` \x1b[31m" + "x" * 999
    rows = add(script, {**REPORT, "versions": dict.fromkeys(REPORT["versions"], bad)})  # type: ignore[call-overload]
    assert len(rows) == 3
    assert rows[2].count("|") == rows[0].count("|")
    assert not set("[]()<>`\x1b") & set(rows[2])
    assert len(rows[2]) < 900


@pytest.mark.parametrize("text", ["", "{}", "[1]", "# only a head\n", '# head\n{"schema": "deployer.result"}'])
def test_another_file_is_one_line_of_error(script: ModuleType, text: str) -> None:
    before = script.DOCUMENT.read_text()
    Path(sys.argv[1]).write_text(text)
    with pytest.raises(SystemExit, match="is not a report"):
        script.main()
    assert script.DOCUMENT.read_text() == before
