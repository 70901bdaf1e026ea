"""The commands that job.sh calls."""

import json
import os
import sys
from pathlib import Path

import pytest

from deployer.cli.site.main import main
from deployer.contract.site.plan import CANARY_TEXT
from tests import evidence


def test_one_judge_answers_after_each_step_until_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence.leave(str(tmp_path), 2, 1, False)
    root = tmp_path / "hosts" / "node00000.root"
    root.write_text("cat: /deployer/canary: No such file or directory\n")
    reading, writing = os.pipe()
    os.write(writing, b"hosts 0 -\nroot 0 -\nprobe 0 TERM\nprobe 0 -\n")
    os.close(writing)
    with os.fdopen(reading) as asked:
        monkeypatch.setattr(sys, "stdin", asked)
        assert main(["result", str(tmp_path), "--until", "probe", "--id", "8", "--started", "9"]) == 0
        assert asked.read() == "probe 0 -\n"  # it has ended
    out, err = capsys.readouterr()
    assert out == "3\n3\n143\n"
    assert err.count("runtime.root") >= 3
    assert json.loads((tmp_path / "result.json").read_text())["job_id"] == "8"
    root.write_text(CANARY_TEXT)
    assert main(["result", str(tmp_path), "--step", "hosts", "--exit", "0", "--id", "8", "--started", "9"]) == 0
