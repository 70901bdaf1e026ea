"""The tutorials: their commands run in order on a lab of their own, and print what the pages show.

A block that begins with ``console`` has commands behind ``$ `` and, below each, what it prints. ``...`` in a line is
any text, and a line with nothing else is any number of lines, as in doctest. One shell runs all commands of a page. A
command that fails is a failure, unless the next one is ``echo $?``.
"""

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import ROOT
from tests.lab import Lab

PAGES = ROOT / "docs" / "tutorials"
#: What starts the shell of each page. In this order: each page goes on where the one before it ended.
SHELLS = {
    "laptop": ["bash", "-c"],
    "cluster": ["scripts/lab", "as", "alice", "login1", "--", "bash", "-c"],
    "admin": ["bash", "-c"],
}
#: The host of README's first job: the lab's login node.
HOST = "login.example.org"
#: What README shows as it was: times and sizes, and whether this machine has the image and the bundle already.
VARIES = re.compile(r"(?<=build {4})done.*|(?<=pack {5})done.*|\d+(\.\d+)?(?= s\b| MB\b)")
#: What the commands use of the checkout.
USED = (".venv", "scripts")


class Step(NamedTuple):
    """A command of a page.

    Attributes:
        line: its line in the page.
        command: what the shell gets; of several lines, if the page has ``> `` before them.
        printed: the lines that it prints, with ``...`` for what varies.
    """

    line: int
    command: str
    printed: list[str]


def steps(text: str) -> list[Step]:
    """Return the commands of a page with what they print."""
    found: list[Step] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Step(number, line[2:], []))
        elif inside and line.startswith("> ") and not found[-1].printed:
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line[2:]}")
        elif inside:
            found[-1].printed.append(line)
    return found


def pattern(lines: list[str]) -> str:
    """Return the regular expression of what a page shows."""
    return "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"[ ]*\n" for line in lines
    )


def play(shell: list[str], page: list[Step], cwd: Path, environment: dict[str, str]) -> list[tuple[int, str]]:
    """Run the commands in one shell; return the exit code of each and what it printed."""
    mark = secrets.token_hex(8)
    lines = [f"{each.command}\ndone=$?; echo {mark} $done; (exit $done)" for each in page]
    done = subprocess.run(
        [*shell, "\n".join(lines)],
        cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    pieces = re.split(rf"{mark} (\d+)\n", done.stdout)
    return [(int(code), said) for said, code in zip(pieces[::2], pieces[1::2], strict=False)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that looks like the checkout: what the commands write there is not this machine's user's."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in USED:
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def environment(checkout: Path, engine: Any) -> Iterator[dict[str, str]]:
    """Yield an environment with a lab's name, and no settings of this machine's user; the lab goes at the end."""
    name = f"pytest-tutorial-{os.getpid()}"
    state = checkout / "state"
    own = {"XDG_STATE_HOME": str(state), "XDG_CONFIG_HOME": str(checkout / "config"), "COLUMNS": "80"}
    try:
        yield {**os.environ, **own, "DEPLOYER_LAB": name, "DOCKER_HOST": engine.docker_host}
    finally:
        Lab(name, state / "deployer" / "lab" / name).down(purge=True)


@pytest.mark.needs("root", "docker", "slurm", "munge", "ssh", "charliecloud", "lmod")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHELLS)
def test_the_commands_print_what_the_page_shows(name: str, checkout: Path, environment: dict[str, str]) -> None:
    compare(steps((PAGES / f"{name}.md").read_text()), SHELLS[name], checkout, environment)


@pytest.mark.needs("root", "docker", "slurm", "munge", "ssh", "charliecloud")
@pytest.mark.timeout(900)
def test_the_first_job_prints_what_the_readme_shows(tmp_path: Path, engine: Any) -> None:
    own = Lab(f"pytest-readme-{os.getpid()}")
    own.up()
    try:
        config = tmp_path / "ssh_config"
        config.write_text(own.ssh_config.read_text().replace("Host login1", f"Host login1 {HOST}", 1))
        environment = {
            **os.environ,
            "COLUMNS": "80",
            "DEPLOYER_SSH_CONFIG": str(config),
            "DOCKER_HOST": engine.docker_host,
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        empty = tmp_path / "empty"
        empty.mkdir()
        page = VARIES.sub("...", (ROOT / "README.md").read_text())
        compare(steps(page), ["bash", "-c"], empty, environment)
    finally:
        own.down(purge=True)


def compare(page: list[Step], shell: list[str], cwd: Path, environment: dict[str, str]) -> None:
    """Run the commands of a page, and compare what they print with what it shows."""
    seen = play(shell, page, cwd, environment)
    wrong = []
    for number, (step, (code, said)) in enumerate(zip(page, seen, strict=False)):
        asked = page[number + 1 : number + 2]
        if code and not (asked and asked[0].command == "echo $?"):
            wrong.append(f"line {step.line}: $ {step.command}\nexit code {code}:\n{said}")
        elif not re.fullmatch(pattern(step.printed), said):
            wrong.append(f"line {step.line}: $ {step.command}\nprinted:\n{said}")
    assert not wrong, "\n".join(wrong)
    assert len(seen) == len(page), "the shell ended early"


def test_every_tutorial_is_tried() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(SHELLS)


def test_a_line_that_differs_is_found(tmp_path: Path) -> None:
    text = "```console\n$ echo one\none\n$ echo two; echo three\n...\nth...\n$ false\n$ echo $?\n1\n```\n"
    page = steps(text)
    assert [step.line for step in page] == [2, 4, 7, 8]
    seen = play(["bash", "-c"], page, tmp_path, dict(os.environ))
    assert [code for code, _ in seen] == [0, 0, 1, 0]
    assert all(re.fullmatch(pattern(step.printed), said) for step, (_, said) in zip(page, seen, strict=True))
    assert not re.fullmatch(pattern(["one", "two"]), "one\n")
    assert not re.fullmatch(pattern(["o...e"]), "two\n")
