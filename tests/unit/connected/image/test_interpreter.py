"""What is asked of an image's Python, asked of Pythons here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.connected.image.interpreter import _QUESTION

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("python", [sys.executable, str(ROOT / ".venv36" / "bin" / "python")])
def test_a_python_says_what_it_is_and_has(python: str, tmp_path: Path) -> None:
    if not Path(python).exists():
        pytest.skip("pyenv install 3.6.15, then scripts/setup --tests")
    for name, file, text in (
        ("Own_Name.X-1.0.dist-info", "METADATA", "Metadata-Version: 2.1\nName: Own_Name.X\nVersion: 1.0\n\nName: no\n"),
        ("debian_like-2+dfsg.egg-info", "", "Name: debian-like\nVersion: 2+dfsg\n"),
        ("broken-3.dist-info", "METADATA", "nothing\n"),
        ("empty-4.dist-info", "", None),
    ):
        path = tmp_path / name
        if file or text is None:
            path.mkdir()
        if text is not None:
            (path / file if file else path).write_text(text)
    command = [python, "-s", "-c", _QUESTION]
    environment = {"PYTHONPATH": str(tmp_path)}
    said = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=30).stdout)
    assert (said["implementation"], said["packages"]["own-name-x"]) == ("cpython", "1.0")
    assert said["packages"]["debian-like"] == "2+dfsg"
    assert "broken" not in said["packages"]
    assert said["packages"]["pytest"]
    assert said["python"] == ("3.6" if ".venv36" in python else f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert said["glibc"].startswith("2.")
