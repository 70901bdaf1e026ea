"""What both front ends share: words to a call, errors to exit codes, a log file a command."""

import argparse
import io
import logging
import os
import sys
import time
import traceback
from typing import IO, Any, Callable, List, NoReturn, Optional

from deployer.contract.errors import EXIT_INTERRUPTED, DeployerError, UsageError
from deployer.contract.verdict import Checked
from deployer.system import files

_KEPT_LOGS = 50


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one line, a hint, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "see: %s --help" % self.prog)


def add_command(subparsers: Any, name: str, function: Callable[[argparse.Namespace], int], text: str) -> Any:
    """Register a command that also prints a record for programs, and return its parser."""
    command = subparsers.add_parser(name, help=text, description=text)
    command.add_argument("--json", action="store_true", help="print a record for programs")
    command.set_defaults(run=function)
    return command


def show(checked: Checked, stream: Optional[IO[str]] = None) -> None:
    """Print what a verdict follows from, each finding with its remedy."""
    for finding in checked.findings:
        accepted = " (accepted)" if finding.code in checked.accepted else ""
        print("%s%s\n  remedy: %s" % (finding, accepted, finding.remedy), file=stream or sys.stdout)


def run(parser: argparse.ArgumentParser, argv: List[str], log_folder: Optional[str]) -> int:
    """Parse ``argv``, call the command and return its exit code; errors are printed, never raised.

    Words after a bare ``--`` are the user's own command or arguments: the parser never sees them, and the command
    finds them as ``args.rest``. A command that sets ``forwards`` gets the words that it does not know as
    ``args.unknown``; for all others they are an error.
    """
    log = None
    try:
        mark = argv.index("--") if "--" in argv else len(argv)
        args, unknown = parser.parse_known_args(argv[:mark])
        if unknown and not getattr(args, "forwards", False):
            words = [parser.prog, getattr(args, "command", None) or "", "--help"]
            raise UsageError("unrecognized arguments: " + " ".join(unknown), "see: " + " ".join(filter(None, words)))
        args.unknown, args.rest = unknown, argv[mark + 1 :]
        if not hasattr(args, "run"):
            parser.print_help()
            return UsageError.exit_code
        log = start_log(log_folder, args.command)
        code = args.run(args)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        print("deployer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: `deployer logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (DeployerError, OSError) as found:
        error = found if isinstance(found, DeployerError) else _named(found)
        logging.getLogger("deployer").debug("%s", "\n".join(error.lines()), exc_info=True)
        for line in error.lines():
            print(line, file=sys.stderr)
        if os.environ.get("DEPLOYER_DEBUG") == "1":
            traceback.print_exc()
        return error.exit_code
    except Exception as error:  # a defect of ours: still one line, and what is needed to mend it
        logging.getLogger("deployer").debug("defect", exc_info=True)
        print("deployer: error: unexpected %s: %s" % (type(error).__name__, error), file=sys.stderr)
        print("hint: this is a defect; report it with %s" % (log or "the output of DEPLOYER_DEBUG=1"), file=sys.stderr)
        if os.environ.get("DEPLOYER_DEBUG") == "1":
            traceback.print_exc()
        return DeployerError.exit_code


def show_anything() -> None:
    """Let standard output take any text: what the locale cannot show is escaped. Python 3.6 has ASCII in the C locale,
    which is what a login without settings gets."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors != "backslashreplace":
        encoding, by_line = out.encoding, out.line_buffering
        sys.stdout = io.TextIOWrapper(out.detach(), encoding, "backslashreplace", line_buffering=by_line)


def _named(error: OSError) -> DeployerError:
    """Return what the machine denied, and nobody foresaw, as an error of ours: a folder that may not be read."""
    what = "go on" if error.filename is None else "use %s" % error.filename
    try:
        files.raise_named(error, what, "the command's log has where: see ROOT/logs" if error.filename is None else "")
    except DeployerError as named:
        return named


class _LogFile(logging.FileHandler):
    """A log file that takes any text in any locale."""

    def _open(self) -> io.TextIOWrapper:
        return io.open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace")


def start_log(folder: Optional[str], command: str) -> Optional[str]:
    """Log to a new file in ``folder`` and return its path, or None where it cannot be written: that is no error."""
    if folder is None:
        return None
    try:
        os.makedirs(folder, exist_ok=True)
        for old in sorted(name for name in os.listdir(folder) if name.endswith(".log"))[:-_KEPT_LOGS]:
            os.unlink(os.path.join(folder, old))
        path = os.path.join(folder, "%s-%d-%s.log" % (time.strftime("%Y%m%d-%H%M%S"), os.getpid(), command))
        handler = _LogFile(path)
    except OSError:
        return None
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logger = logging.getLogger("deployer")
    for earlier in [each for each in logger.handlers if isinstance(each, _LogFile)]:  # another command of this process
        logger.removeHandler(earlier)
        earlier.close()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return path
