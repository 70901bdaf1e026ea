import errno
import logging
from pathlib import Path

import pytest

from deployer.cli import common, main, site
from deployer.connected import xdg
from deployer.contract import errors
from deployer.contract.errors import DeployerError


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


def test_every_exit_code_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "exit-codes.md").read_text()
    for code in {kind.exit_code for kind in KINDS} | {0, errors.EXIT_INTERRUPTED}:
        assert f"| {code} |" in text


def test_a_defect_is_one_line_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert common.run(raising(ZeroDivisionError("x")), ["verb"], str(tmp_path / "log")) == 1
    said = capsys.readouterr().err
    assert said.startswith("deployer: error: unexpected ZeroDivisionError: x\nhint: this is a defect")
    log = next((tmp_path / "log").iterdir())
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x/jobs"), "cannot use /x/jobs: Permission denied", 1),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "cannot use /x: No space left on device", 6),
        (OSError(errno.EIO, "Input/output error"), "cannot go on: Input/output error", 1),
    ],
)
def test_what_the_machine_denies_is_no_defect(
    error: OSError, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert common.run(raising(error), ["verb"], None) == code
    assert capsys.readouterr().err.splitlines()[0] == "deployer: error: " + said


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYER_DEBUG", "1")
    common.run(raising(DeployerError("x")), ["verb"], None)
    assert "Traceback" in capsys.readouterr().err


def test_interrupted() -> None:
    assert common.run(raising(KeyboardInterrupt()), ["verb"], None) == 130


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


def test_logs_are_kept_and_capped(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"20200101-{number:06}-1-x.log").write_text("")
    assert common.run(command(lambda _: 0), ["verb"], str(tmp_path)) == 0
    assert len(list(tmp_path.iterdir())) == 51
    assert common.start_log("/proc/nowhere", "x") is None


def test_the_log_folder_follows_xdg(tmp_path: Path) -> None:
    assert xdg.state_folder("logs") == tmp_path / "state" / "deployer" / "logs"


def test_each_command_is_registered_by_the_module_that_is_said_to_have_it() -> None:
    for module, commands in main.COMMANDS.items():
        subparsers = common.Parser(prog="deployer").add_subparsers(dest="command", parser_class=common.Parser)
        main.add_parsers(subparsers, commands[0])
        assert tuple(subparsers.choices) == commands, module
