import io
import re
import sys

import pytest

from deployer.system import terminal

SGR = re.compile("\x1b\\[[0-9;]*m")


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "DEPLOYER_COLOUR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("environment", "on_a_terminal", "in_a_pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": "0"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"CLICOLOR": "0"}, False, False),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"CLICOLOR_FORCE": "0"}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "3", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_who_decides_on_colour(environment, on_a_terminal, in_a_pipe, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert terminal.coloured(Screen()) is on_a_terminal
    assert terminal.coloured(io.StringIO()) is in_a_pipe


def test_each_stream_is_judged_on_its_own(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", Screen())
    terminal.show("REFUSE: tiny on lab")
    terminal.warn("it is old")
    assert sys.stdout.getvalue() == "REFUSE: tiny on lab\n"
    assert sys.stderr.getvalue() == "deployer: \x1b[33mwarning\x1b[0m: it is old\n"
    assert terminal.for_the_site() == {"DEPLOYER_COLOUR": "2"}


def test_the_site_prints_as_the_laptop_would(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("DEPLOYER_COLOUR", "1")
    assert (terminal.coloured(sys.stdout), terminal.coloured(sys.stderr)) == (True, False)
    monkeypatch.setenv("NO_COLOR", "1")  # of the site's user
    assert not terminal.coloured(sys.stdout)


def test_login_files_of_the_site_do_not_decide_for_the_laptop(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(sys, "stderr", Screen())
    with monkeypatch.context() as laptop:
        laptop.setenv("NO_COLOR", "1")
        told = terminal.for_the_site()
    assert told == {"DEPLOYER_COLOUR": ""}
    monkeypatch.setenv("DEPLOYER_COLOUR", told["DEPLOYER_COLOUR"])
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
    assert (terminal.coloured(sys.stdout), terminal.coloured(sys.stderr)) == (False, False)


@pytest.mark.parametrize(
    "line",
    [
        "deployer: error: it failed",
        "hint: do this",
        "more: deployer explain 2",
        "next: deployer push a.tar lab",
        "error mpi.family: x: y",
        "  remedy: capture it",
        "check lab: REFUSE",
        "verdict: RUN",
        "UNKNOWN: tiny:1 on lab",
        "ok       kernel     Linux 5.10  (0.1 s)",
        "erroneous: nothing of ours",
        "the log has an error: none",
    ],
)
def test_only_words_of_ours_are_coloured_and_the_text_is_the_same(line):
    shown = terminal.safe(terminal.marked(line, Screen()))
    assert SGR.sub("", shown) == line
    assert (shown == line) is line.startswith(("erroneous", "the log"))
    assert terminal.marked(line, io.StringIO()) == line


def test_quiet_leaves_errors_warnings_and_results(capsys):
    def speak():
        terminal.show("result")
        terminal.tell("doing")
        terminal.hint("next", "deployer push")
        terminal.warn("old")
        terminal.complain(["deployer: error: x", "  detail", "hint: y", "more: z"])

    with terminal.manners(True, False):
        assert terminal.is_quiet()
        speak()
    said = capsys.readouterr()
    assert said.out == "result\n"
    assert said.err == "deployer: warning: old\ndeployer: error: x\n  detail\nhint: y\n"
    with terminal.manners(False, True):
        speak()
    assert "next" not in capsys.readouterr().err
    speak()
    assert capsys.readouterr().err.splitlines()[:2] == ["doing", "next: deployer push"]


def test_a_warning_has_no_effect_on_the_terminal(capsys):
    terminal.warn("the file \x1b[2Jx\nnext: rm")
    assert capsys.readouterr().err == "deployer: warning: the file \\x1b[2Jx\\nnext: rm\n"


def test_output_for_programs_has_no_colour():
    with terminal.manners(False, True):
        assert not terminal.coloured(Screen())


def test_the_width(monkeypatch):
    assert (terminal.room(), terminal.columns()) == (0, 80)
    monkeypatch.setenv("COLUMNS", "100")
    assert (terminal.room(), terminal.columns()) == (100, 100)
    assert terminal.for_the_site()["COLUMNS"] == "100"


@pytest.mark.parametrize(("watched", "shown"), [(False, "a\tb\x1b[2J\n"), (True, "a       b\\x1b[2J\n")])
def test_a_file_is_exact_unless_a_person_looks_at_it(watched, shown, monkeypatch, capsys):
    monkeypatch.setenv("DEPLOYER_TERMINAL", "1" if watched else "")
    terminal.show_text("a\tb\x1b[2J\n")
    assert capsys.readouterr().out == shown


def test_text_from_outside_has_no_style_of_ours(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    terminal.show("{} \x1b[31mred\x1b[0m\nok: x".format(terminal.heading("NAME")))
    assert sys.stdout.getvalue() == "\x1b[1mNAME\x1b[0m \\x1b[31mred\\x1b[0m\\nok: x\n"


def test_json_has_no_character_that_a_terminal_obeys(capsys):
    terminal.show_json({"a": "\x7f\x1b\x9b\u202e"}, mark="x:")
    assert capsys.readouterr().out == 'x:{"a": "\\u007f\\u001b\\u009b\\u202e"}\n'
