"""The lab's command line and its faults' table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab, LabError, faults, host, roots
from tests.lab import __main__ as command_line
from tests.lab.cluster import SUITE_VARIABLE, Definition
from tests.lab.site import Site

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.mark.parametrize("words", [["--name", "x", "up"], ["up", "--name", "x"]])
def test_name_stands_before_or_after_the_command(words: list[str]) -> None:
    assert command_line.parse(words).name == "x"


def test_words_of_a_command_are_not_options_of_ours() -> None:
    arguments = command_line.parse(["as", "alice", "cn1", "--", "srun", "--", "--nodes", "2", "--help"])
    assert (arguments.user, arguments.node) == ("alice", "cn1")
    assert arguments.words == ["srun", "--", "--nodes", "2", "--help"]


def test_words_without_dashes() -> None:
    assert command_line.parse(["exec", "cn1", "ls", "-l"]).words == ["ls", "-l"]
    assert command_line.parse(["ssh"]).words == []


def test_up_takes_the_shape() -> None:
    arguments = command_line.parse(["up", "--nodes", "4", "--scratch", "1g", "--dir", "/d"])
    assert (arguments.nodes, arguments.scratch, arguments.dir) == (4, "1g", Path("/d"))


def test_the_suite_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What up is told, else as before, else the environment's, else this machine's."""
    monkeypatch.setattr(roots, "node", lambda suite: Path("/roots", suite))
    told = Lab("x", tmp_path, root=roots.node("sid"))
    lab = Lab("x", tmp_path)
    before = Definition(Site(2, (0,), 500, root="/roots/trixie"), "", "", "")
    monkeypatch.setenv(SUITE_VARIABLE, "sid")
    assert [told._find_root(before), lab._find_root(before), lab._find_root(None)] == [
        "/roots/sid",
        "/roots/trixie",
        "/roots/sid",
    ]
    monkeypatch.delenv(SUITE_VARIABLE)
    assert lab._find_root(None) == "/"
    assert command_line.parse(["up", "--suite", "sid"]).suite == "sid"


@pytest.mark.parametrize("words", [[], ["fly"], ["up", "--nodes", "many"], ["up", "--", "x"], ["fault", "meteor"]])
def test_wrong_usage_is_one_line_and_a_hint(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command_line.main(words)
    assert left.value.code == command_line.EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["lab", "hint"]


def test_a_lab_that_never_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--name", "never", "exec", "cn1", "--", "true"]) == command_line.EXIT_FAILED
    error = capsys.readouterr().err
    assert error == "lab: error: there is no lab 'never'\nhint: scripts/lab --name never up\n"
    assert command_line.main(["--name", "never", "down"]) == 0
    assert command_line.main(["--name", "never", "status"]) == command_line.EXIT_FAILED


def test_commands_that_only_look_leave_nothing_behind(tmp_path: Path) -> None:
    Lab("never").status()
    Lab("never").down(purge=True)
    assert list(tmp_path.iterdir()) == []


def test_every_fault_is_shown_with_its_arguments() -> None:
    for name, fault in faults.FAULTS.items():
        assert fault.text
        assert fault.least <= fault.most, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope",), "no fault 'nope'"),
        (("link-down",), "wrong arguments for link-down"),
        (("link-down", "a", "b"), "wrong arguments for link-down"),
        (("stop-sshd", "login1"), "wrong arguments for stop-sshd"),
    ],
)
def test_wrong_fault(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(LabError, match=message):
        faults.apply(Lab("never"), words[0], words[1:])


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="root is needed"):
        host.check()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(host, "NEEDED", {"sh": "dash", "no-such-program": "some-package", "/no/such/file": "other"})
    with pytest.raises(LabError) as error:
        host.check()
    assert error.value.hint == "apt-get install other some-package"


def test_purge_spares_a_folder_that_is_no_labs(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LabError, match="not the folder of a lab"):
        Lab("x", tmp_path).down(purge=True)
    assert (tmp_path / "thesis.tex").exists()
