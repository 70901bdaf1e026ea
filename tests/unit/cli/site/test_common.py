import argparse
import errno
import importlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from deployer.cli.laptop import main
from deployer.cli.site import common, logs
from deployer.cli.site import main as site
from deployer.connected.ground import xdg
from deployer.contract.base import errors
from deployer.contract.base.dialogue import TERMINAL
from deployer.contract.base.errors import DeployerError
from deployer.contract.rules.findings import ERROR, WARNING, Finding
from deployer.contract.rules.verdict import MISSING_FACTS, judged


@pytest.fixture(autouse=True)
def _no_handlers_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DEPLOYER_DEBUG", raising=False)
    yield
    logger = logging.getLogger("deployer")
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)


def command(function: object) -> common.Parser:
    parser = common.Parser(prog="deployer")
    verb = parser.add_subparsers(dest="command", parser_class=common.Parser).add_parser("verb")
    verb.set_defaults(run=function)
    return parser


def raising(error: BaseException) -> common.Parser:
    def function(_: object) -> int:
        raise error

    return command(function)


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DeployerError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_one_line_a_hint_and_its_code(
    kind: type[DeployerError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert common.run(raising(kind("two\nlines", "do this")), ["verb"], None) == kind.exit_code
    assert capsys.readouterr().err == "deployer: error: two lines\nhint: do this\n"


def test_a_defect_is_one_line_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert common.run(raising(ZeroDivisionError("x")), ["verb"], str(tmp_path / "log")) == 1
    said = capsys.readouterr().err
    assert said.startswith("deployer: error: unexpected ZeroDivisionError: x\nhint: this is a defect")
    log = next((tmp_path / "log").iterdir())
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (MemoryError(), "there is not enough memory for this command", 6),
        (PermissionError(errno.EACCES, "Permission denied", "/x/jobs"), "cannot use /x/jobs: Permission denied", 1),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "cannot use /x: No space left on device", 6),
        (OSError(errno.EIO, "Input/output error"), "cannot continue: Input/output error", 1),
    ],
)
def test_what_the_machine_denies_is_no_defect(
    error: Exception, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert common.run(raising(error), ["verb"], None) == code
    assert capsys.readouterr().err.splitlines()[0] == "deployer: error: " + said


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYER_DEBUG", "1")
    common.run(raising(DeployerError("x")), ["verb"], None)
    assert "Traceback" in capsys.readouterr().err


def test_interrupted() -> None:
    assert common.run(raising(KeyboardInterrupt()), ["verb"], None) == 130


def test_interrupted_in_the_imports_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert site.main(["list"]) == 130


def test_words_after_the_dashes_are_not_parsed() -> None:
    seen = []
    parser = command(lambda args: seen.append(args.rest) or 0)
    assert common.run(parser, ["verb", "--", "--nodes", "--", "x"], None) == 0
    assert seen == [["--nodes", "--", "x"]]


@pytest.mark.parametrize(
    "words", [["nothing"], ["pack", "--codec", "lz4"], ["verify"], ["verify", "a", "--surprise"], []]
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    assert site.main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_log_on_a_full_disk_is_lost_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`gc` on a full disk printed a traceback of the logging for each line."""
    for _ in range(2):  # the next command of a process closes the log of the first
        assert logs.start_log(str(tmp_path), "gc")
        (handler,) = [each for each in logging.getLogger("deployer").handlers if isinstance(each, logging.FileHandler)]
        handler.stream.close()
        handler.stream = Path("/dev/full").open("w")
        logging.getLogger("deployer").debug("a line")
    handler.close()
    assert capfd.readouterr().err == ""


def test_a_line_for_the_log_that_is_a_defect_of_ours_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert logs.start_log(str(tmp_path), "gc")
    (handler,) = (each for each in logging.getLogger("deployer").handlers if isinstance(each, logging.FileHandler))
    handler.handle(logging.LogRecord("deployer", logging.DEBUG, "x.py", 1, "%d", ("not a number",), None))
    assert "TypeError" in capfd.readouterr().err


def test_logs_are_kept_and_capped(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"20200101-{number:06}-1-x.log").write_text("")
    assert common.run(command(lambda _: 0), ["verb"], str(tmp_path)) == 0
    assert len(list(tmp_path.iterdir())) == 51
    assert logs.start_log("/proc/nowhere", "x") is None


def test_the_log_folder_follows_xdg(tmp_path: Path) -> None:
    assert xdg.state_folder("logs") == tmp_path / "state" / "deployer" / "logs"


FRONTS = [main, site]
COMMANDS = [(front, command) for front in FRONTS for command in front.front().table]


@pytest.mark.parametrize(("front", "command"), COMMANDS)
def test_each_command_is_registered_by_the_module_that_the_table_names(
    front: ModuleType, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        front.main([command, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert shown.startswith(f"usage: {front.front().prog} {command} ")
    assert front.front().table[command].summary.split()[0] in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def undescribed(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from undescribed(verb)
        elif not action.help:
            yield f"{parser.prog}: {'/'.join(action.option_strings) or action.metavar}"


@pytest.mark.parametrize("front", FRONTS)
def test_help_describes_every_argument_and_the_ways_of_users_are_commands(front: ModuleType) -> None:
    ours = front.front()
    parsers = ours.command_parsers()
    assert [lacking for parser in parsers for lacking in undescribed(parser)] == []
    assert all("quiet" in {action.dest for action in parser._actions} for parser in parsers)
    for _, commands in ours.paths:
        for line in commands:
            words = line.partition("  #")[0].split()
            fresh = front.front()
            fresh.add_wanted(words)
            assert fresh.parse_known_args(words)[1] == [], line


@pytest.mark.parametrize("front", FRONTS)
def test_help_lists_the_commands_by_task_in_80_columns_and_imports_none(
    front: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"--help imports {name}"))
    with pytest.raises(SystemExit):
        front.main(["--help"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for title, commands in front.GROUPS.items():
        block = shown.split(f"{title}:\n")[1].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in block] == [command.name for command in commands]
    internal = set(site.INTERNAL) - ({"result", "notebook"} if front is main else set())  # the laptop has them
    assert not internal & {line.split()[0] for line in shown.splitlines() if line.startswith("  ")}


@pytest.mark.parametrize("front", FRONTS)
def test_every_command_of_a_module_is_listed_or_internal(front: ModuleType) -> None:
    parser = front.front()
    for module in {command.module for command in parser.table.values()}:
        subparsers = common.Parser(prog="x").add_subparsers(parser_class=common.Parser)
        importlib.import_module(f"deployer.cli.{module}").add_parsers(subparsers)
        theirs = set(subparsers.choices) - set(site.INTERNAL) - set(site.front().table if front is main else ())
        assert theirs <= set(parser.table), module


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runn"], "unknown command: 'runn', perhaps you meant 'run'"),
        (["lst", "--json"], "unknown command: 'lst', perhaps you meant 'list'"),
        (["--bla", "lst"], "unknown command: 'lst', perhaps you meant 'list'"),
        (["prbe"], "unknown command: 'prbe'"),
        (["knwn"], "unknown command: 'knwn'"),
    ],
)
def test_an_unknown_command_is_guessed_and_internal_ones_are_never_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for front in FRONTS:
        assert front.main(words) == 2
        shown = capsys.readouterr().err
        assert shown.splitlines()[0] == f"deployer: error: {said}"
        assert not any(f"'{name}'" in shown for name in site.INTERNAL)


def test_a_command_of_the_site_is_explained_on_the_laptop(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(main._ELSEWHERE) == set(site.front().table) - set(main.front().table)
    assert main.main(["exec", "hello", "--", "ls"]) == 2
    assert "python3 deployer.pyz exec" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (
            ["exec", "hello", "hello", "-c", "x y", "--bind", "/a", "hello"],
            "unknown words: hello -c 'x y' hello: the command and its arguments go after --",
            "write: deployer.pyz exec hello -- hello -c 'x y' --bind /a hello (see: deployer.pyz exec --help)",
        ),
        (
            ["run", "hello", "train", "--epochs", "3"],
            "unknown words: --epochs 3: arguments of the job's command go after --",
            "write: deployer.pyz run hello train -- --epochs 3 (see: deployer.pyz run --help)",
        ),
        (
            ["run", "hello", "--nods", "2"],
            "unknown words: --nods 2, perhaps you meant '--nodes'",
            "see: deployer.pyz run --help",
        ),
        (
            ["exec", "hello", "ls", "--", "-l"],
            "unknown word: ls",
            "see: deployer.pyz exec --help",
        ),
        (
            ["install", "b.tar", "--jobs", "0"],
            "argument --jobs: must be at least 1",
            "see: deployer.pyz install --help",
        ),
        (
            ["run", "hello", "--staging", "squash"],
            "--staging: 'squash' is not one of: folder, memory, disk, squashfs, mounted, perhaps you meant 'squashfs'",
            "see: deployer.pyz run --help",
        ),
    ],
)
def test_unknown_words_are_explained(
    words: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"deployer: error: {error}",
        f"hint: {hint}",
        "more: python3 deployer.pyz explain 2",
    ]


def test_the_options_of_the_sites_commands_are_shown_and_checked_on_the_laptop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, option in ((["run"], "--ranks-per-node"), (["remove"], "--force"), (["logs"], "--follow")):
        with pytest.raises(SystemExit):
            main.main([*words, "--site", "lab", "--help"])
        shown = capsys.readouterr().out
        assert option in shown
        assert "--ssh-config" in shown
    # Nothing is connected to: the words are wrong.
    assert main.main(["run", "--site", "lab", "hello", "--nods", "2"]) == 2
    assert "perhaps you meant '--nodes'" in capsys.readouterr().err


def test_unknown_explains_itself_and_details_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Two programs that lack the same facts are two findings with one remedy; one that is there twice is one."""
    first = Finding("facts.mpi", MISSING_FACTS, "a", "nobody has captured it", "capture it")
    second = first._replace(subject="b")
    other = Finding("fabric.tcp", WARNING, "c", "it is slow", "accept it")
    common.show(judged([first, other, second, first]), ["with MPICH 4.2, srun (pmi2), charliecloud"])
    assert capsys.readouterr().out.splitlines() == [
        "  not enough facts to decide; the job may still run, and push continues",
        "  with MPICH 4.2, srun (pmi2), charliecloud",
        "unknown facts.mpi: a: nobody has captured it",
        "unknown facts.mpi: b: nobody has captured it",
        "  remedy: capture it",
        "warning fabric.tcp: c: it is slow",
        "  remedy: accept it",
        "more: deployer explain facts.mpi",
    ]
    common.show(judged([first._replace(code="facts.plan")]))
    assert capsys.readouterr().out.startswith("  not enough facts for a plan; without one, no job can run\n")
    common.show(judged([]), ["with it"])
    assert capsys.readouterr().out == "  with it\n"


def test_findings_are_wrapped_on_a_terminal_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "`sinfo -o '%P %s %D'`"
    path = "/opt/" + "long/" * 20 + "libgone.so.3"
    finding = Finding(
        "link.missing", ERROR, path, "it needs libgone.so.3, which nobody has, here or there", f"add it {command} " * 20
    )
    monkeypatch.delenv("COLUMNS", raising=False)
    common.show(judged([finding]))
    whole = capsys.readouterr().out
    assert whole.splitlines()[0] == str(finding)
    monkeypatch.setenv("COLUMNS", "60")
    common.show(judged([finding]))
    assert capsys.readouterr().out == whole  # COLUMNS is exported, and the output is a pipe
    monkeypatch.setenv(TERMINAL, "1")
    common.show(judged([finding]))
    first, second, third, *rest = capsys.readouterr().out.splitlines()
    assert (first, second) == ("error link.missing:", f"    {path}:")  # a path is not split
    assert third.startswith("    it needs")
    assert rest[0].startswith("  remedy: add it")
    assert max(map(len, [first, third, *rest])) <= 60
    assert sum(line.count(command) for line in rest) == 20  # a command is pasted as it is


def test_the_lines_of_the_readme_have_the_words_that_their_commands_need() -> None:
    """Parsed as they are, up to the remark beside them."""
    text = (Path(__file__).parents[4] / "README.md").read_text()
    lines = re.findall(r"^    (deployer [a-z].*?)(?: +#|$)", text, re.MULTILINE)
    assert {line.split()[1] for line in lines} >= {"init", "build", "pack", "check", "push", "run"}
    for line in lines:
        words = line.split()[1:]
        parser = main.front()
        parser.add_wanted(words)
        args, unknown = parser.parse_known_args(words)
        assert not unknown, line
        assert args.run
        assert words[0] in ("init", "build", "fetch", "rehearse", "report") or args.site in ("SITE", ["SITE"]), line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--site", "lab", "--to", "folder"], "push requires either a SITE or --to DIR"),
        (["lab", "--site", "dgx"], "push accepts one site, not two: lab and --site dgx"),
        (["--site", "lb"], "no site profile is called 'lb', perhaps you meant 'lab'"),
    ],
)
def test_push_takes_its_site_as_the_other_commands_do(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["push", "b.tar", *words]) == 2
    assert said in capsys.readouterr().err
