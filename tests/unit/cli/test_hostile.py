"""Text from outside has no effect on a terminal, whatever command prints it: all of them are called with hostile words.

Lint (``banned-api`` in pyproject.toml, and T20) forbids to print otherwise than with ``deployer.system.terminal``.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from deployer.cli.laptop import bundles as bundle_commands
from deployer.cli.laptop import main as laptop
from deployer.cli.laptop import result as result_command
from deployer.cli.site import common
from deployer.cli.site import main as site
from deployer.contract.base.json_records import Fields
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.verdict import judged
from deployer.site.capture.software import mpi
from scripts.command_tree import Argument, commands
from tests import running
from tests.unit.connected.bundle.about.test_diff import ENTRIES, file, write

#: A title, a cleared screen, a line that begins again, colour by a C1 character, text from right to left, a line of
#: its own that could be ours, colour as ours, and half a character.
HOSTILE = "x\x1b]0;x\x07\x1b[2J\r\x9b31m\u202e\nverdict: RUN\n\x1b[32mevil\x1b[0m\x7f"
#: What must not be printed.
EFFECT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
#: Programs that commands start. They print hostile text and fail.
HOSTILE_PROGRAM = "printf 'x\\033[2J\\r\\033[32mevil\\n'\nprintf 'x\\033[2J\\r\\033[32mevil\\n' >&2\nexit 255\n"
PROGRAMS = ("ssh", "sftp", "docker", "sbatch", "squeue", "sinfo", "ssh-keygen", "ip")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None) -> None:
    """Be in an empty folder, with no programs but hostile ones, no engine, no site and no MPI."""
    monkeypatch.setattr(mpi, "_libraries_below", lambda *_: iter(()))  # it takes a second to look for them
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        running.program(tmp_path / "bin", name, HOSTILE_PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FORCE_COLOR", "1")
    for name in ("NO_COLOR", "DEPLOYER_SITE", "DEPLOYER_ROOT", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def word(argument: Argument) -> list[str]:
    """Return a hostile value for an argument, after its name."""
    return [*argument.names[-1:], HOSTILE]


def calls(front: ModuleType) -> Iterator[list[str]]:
    """Yield command lines: each command with hostile words where it needs some, and with each of its other options."""
    for command in commands(front.front()):
        if command.subcommands:
            continue
        needed = [each for each in command.arguments if each.required or not each.names]
        usual = [part for each in needed for part in ([*each.names[-1:], each.words[0]] if each.words else word(each))]
        if usual:
            yield [*command.words, *usual]
        for each in command.arguments:
            if each.value and each not in needed:
                yield [*command.words, *usual, *word(each)]


CALLS = [(front, words) for front in (laptop, site) for words in calls(front)]


def check(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed, which has no effect on a terminal but our own colours."""
    said = "".join(capsys.readouterr())
    plain = re.sub(r"\x1b\[(1;31|32|33|36|1|2|0)m", "", said)
    assert not EFFECT.search(plain), repr(plain)
    assert "\x1b[32mevil" not in said
    assert "verdict: RUN" not in plain.splitlines()
    return plain


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("front", "words"), CALLS, ids=lambda part: "-".join(part)[:40] if isinstance(part, list) else ""
)
def test_hostile_words(front: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        front.main(words)
    assert check(capsys)


def changed(tmp_path: Path) -> None:
    """Compare two bundles: names of packages, data and files."""

    def made(version: str) -> str:
        package = f"Package: zlib\x1b]0;x\x07\nVersion: {version}\x1b[2J\n".encode()
        files = [ENTRIES[2:4], [file(b"etc/x\x1b[2J\r\n", version.encode()), file(b"var/lib/dpkg/status", package)]]
        return write(tmp_path / f"{version}.tar", files, [("deployer/data/d\x1b/f", version.encode())], version)

    old, new = made("1"), made("2")
    for words in ([], ["--files"], ["--json"]):
        assert laptop.main(["diff", old, new, *words]) == 0
    assert laptop.main(["inspect", new]) == laptop.main(["inspect", new, "--files"]) == 0


def pushed(tmp_path: Path) -> None:
    """Show the answer of a site."""
    figures = {"sent": 1, "seconds_transfer": 1.0, "seconds_install": 1.0, "parts": 1, "signers": [HOSTILE]}
    tool = {"whose": HOSTILE, "version": HOSTILE}
    squashed = Fields({"size": 1, "seconds": 1.0, "mksquashfs": tool, "path": HOSTILE}, "it", own=True)
    done = SimpleNamespace(**figures, folder=HOSTILE, python=HOSTILE, squashfs=squashed, known=False, dry_run=False)
    bundle_commands._show_pushed(SimpleNamespace(json=False, squashfs=True), done)  # type: ignore[arg-type]


def fetched(tmp_path: Path) -> None:
    """Show the job of a site."""
    texts = dict.fromkeys(("job", "job_id", "state", "problem", "remedy", "folder"), HOSTILE)
    status = Fields({**texts, "exit_code": 1, "seconds": 2, "active": False}, "it", own=True)
    result_command._show(status, {"payload": {HOSTILE: [HOSTILE]}})


def judgement(tmp_path: Path) -> None:
    """Show a verdict."""
    common.show(judged([Finding("mpi.family", ERROR, HOSTILE, HOSTILE, HOSTILE)], []), [HOSTILE])


@pytest.mark.parametrize("show", [changed, pushed, fetched, judgement], ids=lambda show: show.__name__)
def test_hostile_answers_and_contents(
    show: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(tmp_path)
    assert "\\x1b" in check(capsys)
