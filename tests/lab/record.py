"""A recording of a real session on the lab: an asciicast and a picture of it. ``scripts/record`` calls it.

The session is the one that README shows: a new definition is deployed, then one line of its program changes.
"""

from __future__ import annotations

import json
import os
import re
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
    "# a definition, a cluster without internet, two of its nodes",
    "deployer deploy first lab.yaml --nodes 2 -o first.tar",
    "# change a line of the program, and deploy it again",
    "sed -i 's/: sum {total}/: the sum is {total}/' first/app/main.py",
    "deployer deploy first lab.yaml --nodes 2 -o first.tar",
)
_WIDTH, _HEIGHT = 78, 44
_TYPED_S, _PAUSE_S = 0.5, 1.0
#: A stage that takes longer is shown as if it took this; the seconds that the program prints are those that it took.
_LONGEST_S = 1.0

#: Pixels: a line, a character, the bar above the terminal, and the space around its text.
_LINE, _CHARACTER, _BAR, _MARGIN = 20, 7.85, 34, 16
#: Styles by the parameters of ANSI's SGR sequence.
_STYLES = {"1;31": "red", "32": "green", "33": "yellow", "36": "cyan", "1": "bold", "2": "dim"}
_SGR = re.compile("\x1b\\[([0-9;]*)m")
#: What a continued line of a stage is indented by; others, and words too long for that, by four spaces.
_STAGE = re.compile(r"\w+ +\w+ +[\d.]+ s  ")
_NARROW = 4 * " "


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
                "FORCE_COLOR": "1",
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
        if command.startswith("#"):
            continue
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
    rows: list[Line] = []
    for line in lines:
        if line.text.startswith("$ #") and rows:
            rows.append(Line(line.second, ""))  # a gap before each part
        rows += [Line(line.second, row) for row in _wrapped(line.text)]
    wide, high = round(_WIDTH * _CHARACTER) + 2 * _MARGIN, _BAR + len(rows) * _LINE + _MARGIN
    shown = []
    for number, row in enumerate(rows):
        place = f'x="{_MARGIN}" y="{_BAR + (number + 1) * _LINE}" style="animation-delay: {row.second:.2f}s"'
        shown.append(f'  <text {place} xml:space="preserve">{_spans(row.text)}</text>\n')
    lights = "".join(f'<circle cx="{18 + 18 * place}" cy="17" r="5.5" fill="#5b6673"/>' for place in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
        ' role="img" aria-labelledby="title">\n'
        '  <title id="title">A terminal: a definition is deployed, then again after one changed line</title>\n'
        "  <style>\n"
        "    text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d7dee6; }\n"
        "    .name { font: 13px system-ui, sans-serif; fill: #a9b4c0; text-anchor: middle; }\n"
        "    .typed { fill: #ffffff; font-weight: 600; } .remark { fill: #9fb0c3; font-style: italic; }\n"
        "    .green { fill: #7ee0a1; } .yellow { fill: #f0c674; } .red { fill: #ff9d96; } .cyan { fill: #7fd3e8; }\n"
        "    .dim { fill: #9aa5b1; } .bold { font-weight: 700; }\n"
        "    @media (prefers-reduced-motion: no-preference) { g text { animation: appear 0.01s both; } }\n"
        "    @media print { g text { animation: none; } }\n"
        "    @keyframes appear { from { opacity: 0.75; } to { opacity: 1; } }\n"
        "  </style>\n"
        f'  <rect x="0.5" y="0.5" width="{wide - 1}" height="{high - 1}" rx="9" fill="#161b22" stroke="#3d4855"/>\n'
        f'  <path d="M0 {_BAR}V9a9 9 0 0 1 9 -9H{wide - 9}a9 9 0 0 1 9 9V{_BAR}z" fill="#2a323d"/>\n'
        f'  {lights}<text class="name" x="{wide // 2}" y="22">laptop: deployer</text>\n'
        "  <g>\n" + "".join(shown) + "  </g>\n</svg>\n"
    )


def _spans(text: str) -> str:
    """Return a row with its colours as XML: those of the program, and ours for what is typed."""
    for begin, style in (("$ #", "remark"), ("$ ", "typed")):
        if text.startswith(begin):
            return f'<tspan class="green">$</tspan><tspan class="{style}">{escape(text[1:])}</tspan>'
    pieces = _SGR.split(text)  # a text, a style, a text, ...
    made = escape(pieces[0])
    for sgr, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        style = _STYLES.get(sgr, "")
        made += f'<tspan class="{style}">{escape(piece)}</tspan>' if style and piece else escape(piece)
    return made


def _wrapped(text: str) -> list[str]:
    """Return the rows of a line, broken between words; sequences of colour have no width."""
    stage = _STAGE.match(_SGR.sub("", text))
    indent = " " * stage.end() if stage else _NARROW
    rows, row = [], ""
    for word in re.findall(r" *[^ ]+| +$", text):
        if row.strip() and len(_SGR.sub("", row + word)) > _WIDTH:
            rows.append(row)
            word = word.lstrip()
            row = (indent if len(indent + _SGR.sub("", word)) <= _WIDTH else _NARROW) + word
        else:
            row += word
    return [*rows, row]


if __name__ == "__main__":
    sys.exit(main())
