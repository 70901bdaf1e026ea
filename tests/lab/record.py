"""A recording of a real session on the lab: an asciicast and a picture of it. ``scripts/record`` calls it.

The session is the one that README shows: a new definition is deployed, then one line of its program changes.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.lab import Lab
from tests.lab.engine import take_engine

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
LAB = "record"

#: What is done before, and not shown: the facts of the site, a definition, and its base image.
_BEFORE = (
    "deployer capture login1 -o lab.yaml",
    "deployer init first",
    "deployer build first",
)
_SHOWN = (
    "deployer deploy first lab.yaml --nodes 2 --ranks-per-node 1 -o first.tar",
    "sed -i 's/: sum {total}/: the sum is {total}/' first/app/main.py",
    "deployer deploy first lab.yaml --nodes 2 --ranks-per-node 1 -o first.tar",
    "deployer result --site lab.yaml -o job > /dev/null",
    """grep -o '"host": "[a-z0-9]*", "mpi_library": "[^"]*"' job/result.json""",
)
_WIDTH, _HEIGHT = 100, 40
_TYPED_S, _PAUSE_S = 0.5, 1.0
#: A stage that takes longer is shown as if it took this; the seconds that the program prints are those that it took.
_LONGEST_S = 1.0

_LINE, _CHARACTER, _MARGIN = 19, 7.85, 14


class Line(NamedTuple):
    """A line of the terminal, and the second in which it appeared."""

    second: float
    text: str


def main() -> int:
    """Run the session, write ``session.cast`` and ``session.svg``."""
    lab = Lab(LAB)
    lab.up()
    try:
        with take_engine() as engine, TemporaryDirectory() as folder:
            (Path(folder) / "ssh_config").symlink_to(lab.ssh_config)  # a path that looks the same everywhere
            environment = {
                **os.environ,
                "DEPLOYER_SSH_CONFIG": "ssh_config",
                "DOCKER_HOST": engine.docker_host,
                "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
                "PYTHONUNBUFFERED": "1",
                "XDG_CONFIG_HOME": folder,
            }
            for command in _BEFORE:
                subprocess.run(shlex.split(command), cwd=folder, env=environment, check=True, stdin=subprocess.DEVNULL)
            lines = session(folder, environment)
    finally:
        lab.down(purge=True)
    (PICTURES / "session.cast").write_text(cast(lines))
    (PICTURES / "session.svg").write_text(picture(lines))
    return 0


def session(folder: str, environment: dict[str, str]) -> list[Line]:
    """Run the commands that are shown, and return all lines with their times; waits are cut short."""
    lines: list[Line] = []
    now = 0.0
    for command in _SHOWN:
        lines.append(Line(now, f"$ {command}"))
        now += _TYPED_S
        last = time.monotonic()
        with subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for text in process.stdout:
                now += min(time.monotonic() - last, _LONGEST_S)
                last = time.monotonic()
                lines.append(Line(now, text.rstrip("\n")))
        if process.returncode:
            raise SystemExit("\n".join(line.text for line in lines))
        now += _PAUSE_S
    return lines


def cast(lines: list[Line]) -> str:
    """Return the session as an asciicast, version 2, which asciinema plays."""
    head = {"version": 2, "width": _WIDTH, "height": _HEIGHT, "title": "deployer: a job, and one changed line"}
    events = [[round(line.second, 2), "o", line.text + "\r\n"] for line in lines]
    return "".join(json.dumps(each) + "\n" for each in [head, *events])


def read(text: str) -> list[Line]:
    """Return the lines of an asciicast that ``cast`` wrote."""
    return [Line(second, said.rstrip("\r\n")) for second, _, said in map(json.loads, text.splitlines()[1:])]


def picture(lines: list[Line]) -> str:
    """Return the session as a picture whose lines appear as they did; where nothing moves, all are there."""
    rows = [Line(line.second, piece) for line in lines for piece in _wrapped(line.text)]
    wide, high = round(_WIDTH * _CHARACTER) + 2 * _MARGIN, (len(rows) + 1) * _LINE
    shown = []
    for number, line in enumerate(rows):
        style = "command" if line.text.startswith("$ ") else "output"
        place = f'x="{_MARGIN}" y="{(number + 1) * _LINE + _MARGIN // 2}" style="animation-delay: {line.second:.2f}s"'
        shown.append(f'  <text class="{style}" {place} xml:space="preserve">{escape(line.text)}</text>\n')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
        ' role="img" aria-labelledby="title">\n'
        '  <title id="title">A terminal: a definition is deployed, then again after one changed line</title>\n'
        "  <style>\n"
        "    text { font: 13px ui-monospace, Menlo, Consolas, monospace; }\n"
        "    .command { fill: #7ee0a1; } .output { fill: #e6edf3; }\n"
        "    @media (prefers-reduced-motion: no-preference) { text { animation: appear 0.01s both; } }\n"
        "    @keyframes appear { from { opacity: 0; } to { opacity: 1; } }\n"
        "  </style>\n"
        f'  <rect width="{wide}" height="{high}" rx="6" fill="#161b22"/>\n' + "".join(shown) + "</svg>\n"
    )


def _wrapped(text: str) -> list[str]:
    """Return the rows of a line, as a terminal breaks it."""
    return [text[start : start + _WIDTH] for start in range(0, max(len(text), 1), _WIDTH)]


if __name__ == "__main__":
    sys.exit(main())
