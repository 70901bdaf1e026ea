"""The common part of both command lines: from words to a call, and from errors to exit codes.

Modules that only some commands need are imported where they are used, because imports here delay every start.
"""

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

from deployer import __version__
from deployer.contract.base.dialogue import CALLER, OWN_KEY
from deployer.contract.base.errors import EXIT_INTERRUPTED, DeployerError, SpaceError, UsageError
from deployer.contract.base.guess import guess
from deployer.system import terminal

if TYPE_CHECKING:
    from deployer.contract.rules.verdict import Checked

_T = TypeVar("_T")

#: The help text of --root.
ROOT = "the root folder, which has images and jobs (default: $DEPLOYER_ROOT, or the folder of deployer.pyz)"
#: The help text of --signers.
SIGNERS = "require a signature by one of these allowed signers (ssh-keygen format)"
#: Spaces between the columns of a table, and the minimum width at which its last column is wrapped.
_GAP, _NARROWEST = 2, 24


class Parser(argparse.ArgumentParser):
    """An argument parser with deployer's errors: one line, a hint, exit code 2.

    Attributes:
        example: a command line at the end of ``--help``; may be empty.
    """

    example = ""

    def format_help(self) -> str:
        return super().format_help() + (f"\nexample:\n  {self.example}\n" if self.example else "")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self._unknown_command(str(value))
        known = [str(choice) for choice in action.choices]
        name = "/".join(action.option_strings) or str(action.metavar or action.dest)
        self.error("{}: {!r} is not one of: {}{}".format(name, value, ", ".join(known), guess(str(value), known)))

    def _unknown_command(self, word: str) -> NoReturn:
        self.error(f"unknown command: {word!r}{guess(word, self._commands())}")

    def _commands(self) -> List[str]:
        """Return the command names to suggest, without those that only deployer itself calls."""
        return [str(name) for action in verbs(self) for name in action.choices]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse; ``parser`` in the result is the parser of the innermost command."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if not hasattr(parsed, "parser"):
            parsed.parser = self
        return parsed, unknown

    def explain(self, words: Sequence[str], unknown: Sequence[str], rest: Sequence[str]) -> UsageError:
        """Return the error for words that a command's parser does not know.

        Args:
            words: all words before a bare ``--``.
            unknown: the unknown ones.
            rest: the words after ``--``.
        """
        from deployer.contract.base.shell import quoted

        problem = "unknown words: " if len(unknown) > 1 else "unknown word: "
        near = guess(unknown[0].partition("=")[0], self._option_string_actions) if unknown[0].startswith("--") else ""
        kind = self.get_default("after_dashes")
        if kind and not near and not rest:
            at = len(words)
            for word in reversed(unknown):
                at = max((number for number in range(at) if words[number] == word), default=0)
            line = [*self.prog.split(" "), *words[1:at], "--", *words[at:]]
            hint = f"write: {quoted(line)} (see: {self.prog} --help)"
            return UsageError(f"{problem}{quoted(unknown)}: {kind} go after --", hint)
        return UsageError(problem + quoted(unknown) + near, f"see: {self.prog} --help")


def verbs(parser: argparse.ArgumentParser) -> "List[argparse._SubParsersAction[Any]]":
    """Return a parser's argument for its subcommands, if it has any."""
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


class Command(NamedTuple):
    """A command in the list of ``--help``.

    Attributes:
        name: the command.
        module: the module of ``deployer.cli`` that registers it.
        summary: one line.
        example: the words after the command in the example of its ``--help``
    """

    name: str
    module: str
    summary: str
    example: str = ""


class _NoParser:
    """A stand-in for the parser of a command that was not requested; it accepts all calls that describe a command."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class _WantedOnly(argparse._SubParsersAction):  # type: ignore[type-arg]
    """An action that makes only the requested command's parser: argparse takes longer than most commands."""

    wanted: Optional[str] = None

    def add_parser(self, name: str, **kwargs: Any) -> Any:
        if self.wanted in (None, name):
            return super().add_parser(name, **kwargs)
        return _NoParser()


class Front(Parser):
    """The parser of a command line, with its commands grouped by task.

    Only the module of the requested command is imported, because some imports are slow and a job starts the site's
    command line several times.

    Attributes:
        internal: commands that people do not call, with their modules.
        elsewhere: how to call the commands of the other command line.
        paths: users' goals, each with the commands to reach it.
    """

    def __init__(
        self,
        prog: str,
        text: str,
        groups: Mapping[str, Sequence[Command]],
        internal: Mapping[str, str] = {},
        elsewhere: Mapping[str, str] = {},
        paths: Sequence[Tuple[str, Sequence[str]]] = (),
    ) -> None:
        super().__init__(
            prog=prog,
            usage="%(prog)s [-h] [--version] [-q] COMMAND ...",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="".join(
                "{}:\n{}\n".format(goal, "".join(f"  {_line(prog, words)}\n" for words in commands))
                for goal, commands in paths
            )
            + "%(prog)s COMMAND --help shows the arguments of a command.",
        )
        self.add_argument("--version", action="version", version=__version__, help="show the version and exit")
        _add_quiet(self)
        self.text, self.groups, self.internal, self.elsewhere = text, groups, internal, elsewhere
        self.paths = paths
        self.set_defaults(front=self)
        self.table = {command.name: command for listed in groups.values() for command in listed}
        self._sub: Any = self.add_subparsers(
            dest="command", help=argparse.SUPPRESS, parser_class=Parser, prog=prog, action=_WantedOnly
        )

    def add_wanted(self, words: Sequence[str]) -> None:
        """Register the command that ``words`` request, if any."""
        wanted = next((word for word in words if not word.startswith("-")), "")
        command = self.table.get(wanted)
        module = command.module if command else self.internal.get(wanted)
        if module is None:
            return
        self._sub.wanted = wanted
        importlib.import_module("deployer.cli." + module).add_parsers(self._sub)
        if command:
            parser = self._sub.choices[wanted]
            _add_quiet(parser)
            parser.description = parser.description or command.summary
            parser.example = _line(self.prog, wanted, command.example)

    def command_parsers(self) -> List[Parser]:
        """Return the parsers of all commands in ``--help``, in the same order."""
        # Use a new front for each command, because a module may register several commands.
        fronts = {name: Front(self.prog, self.text, self.groups) for name in self.table}
        for name, front in fronts.items():
            front.add_wanted([name])
        return [front._sub.choices[name] for name, front in fronts.items()]

    def format_help(self) -> str:
        width = max(map(len, self.table))
        self.description = self.text
        for title, listed in self.groups.items():
            lines = [f"  {command.name:{width}}  {command.summary}" for command in listed]
            self.description += "\n\n" + "\n".join([title + ":", *lines])
        return super().format_help()

    def _commands(self) -> List[str]:
        return list(self.table)

    def _unknown_command(self, word: str) -> NoReturn:
        if word in self.elsewhere:
            raise UsageError(f"{word!r} is not a command of {self.prog}", self.elsewhere[word])
        super()._unknown_command(word)


def _line(prog: str, *words: str) -> str:
    """Return a command line of a program."""
    return " ".join(filter(None, ("python3 " + prog if prog.endswith(".pyz") else prog, *words)))


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option to a parser and its verbs' parsers, none of which overrides a value that another has read."""
    text = "print only errors, warnings and results: no progress, no `next:`"
    parser.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=text)
    for action in verbs(parser):
        for verb in () if isinstance(action, _WantedOnly) else action.choices.values():
            _add_quiet(verb)


def add(parser: Any, *words: str, **more: Any) -> None:
    """Add an argument to a parser or a group: its names, the name of its value, and its help."""
    *names, value, text = words
    parser.add_argument(*names, metavar=value, help=text, **more)


def flag(parser: Any, *words: str) -> None:
    """Add an option without a value: its names and its help."""
    parser.add_argument(*words[:-1], action="store_true", help=words[-1])


def repeated(parser: Any, name: str, value: str, text: str, **more: Any) -> None:
    """Add an option that may be given several times; its values are a list."""
    parser.add_argument(name, action="append", default=[], metavar=value, help=text, **more)


def add_launch(parser: argparse.ArgumentParser, overridden: str = "the profile's") -> None:
    """Add the option that overrides the way to start ranks of a site profile or a plan."""
    from deployer.contract.site.plan import LAUNCHES

    text = "how ranks start. outside: the site's launcher starts a container per rank; inside: the image's "
    text += f"own launcher and MPI, in one container per node (default: {overridden})"
    parser.add_argument("--launch", choices=LAUNCHES, help=text)


def add_plan_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose for a plan among what its site profile has."""
    add(parser, "--mpi", "NAME", "use this MPI of the profile in partitions that have several")
    add_launch(parser)


def add_capturing(parser: argparse.ArgumentParser, jobs: str = "") -> None:
    """Add the options of both commands that capture a site; ``jobs`` says when the one for login nodes submits any."""
    add(parser, "--account", "NAME", jobs + "charge the jobs to this account")
    text = "a further word for the batch system, as --directive=--qos=test; may be repeated"
    repeated(parser, "--directive", "WORD", jobs + text)
    repeated(parser, "--mpi", "PREFIX", "also capture the MPI installed here; may be repeated")
    parser.add_argument("--name", help="the site's name (default: the cluster's)")
    flag(parser, "--redact", "replace hosts, users and addresses by placeholders")
    repeated(parser, "--hide", "TEXT", "also replace this path or name by a placeholder; may be repeated")


def add_command(
    subparsers: Any,
    name: str,
    function: Callable[[argparse.Namespace], Optional[int]],
    text: Optional[str] = None,
    has_record: bool = True,
) -> Any:
    """Register a command and return its parser.

    Args:
        function: returns the exit code; None means 0.
        text: the description; default: the summary in the command line's list.
        has_record: whether it can also print a record for programs.
    """
    command = subparsers.add_parser(name, help=text, description=text)
    if has_record:
        flag(command, "--json", "print a record for programs")
    command.set_defaults(run=function)
    return command


def add_store_command(subparsers: Any, *words: Any, **keywords: Any) -> Any:
    """Register a command on the store under --root, like ``add_command``, and return its parser."""
    command = add_command(subparsers, *words, **keywords)
    add(command, "--root", "DIR", ROOT)
    return command


def from_options(kind: Type[_T], args: argparse.Namespace, **known: Any) -> _T:
    """Return a NamedTuple whose fields come from ``known``, or else from the options with the same names."""
    given = {name: value for name, value in vars(args).items() if name in kind._fields}  # type: ignore[attr-defined]
    return kind(**{**given, **known})


def count(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to stderr. That the user's own key signed is printed as a note, not as a warning."""
    for warning in warnings:
        (terminal.tell if warning.endswith(OWN_KEY) else terminal.warn)(warning)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> List[str]:
    """Return the lines of a table; the columns in ``right`` are right-aligned.

    If the table is wider than the terminal, the last column is wrapped. If that column would be too narrow, it moves to
    separate lines; if that is not enough, each cell does. Without a terminal, the table has one line per row.
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    whole, room = sum(widths) + _GAP * (len(head) - 1), terminal.room()
    before = whole - widths[-1]
    if room and before - _GAP > room:
        return _records(head, rows)
    longest = max(len(word) for row in [head, *rows] for word in (row[-1].split() or [""]))
    wraps = room and whole > room >= before + max(longest, _NARROWEST)
    moved = room and whole > room and not wraps
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in list(zip(head, row, widths))[: len(head) - bool(moved)]
        ]
        line = (" " * _GAP).join(cells).rstrip()
        first, *others = wrapped(line[before:], " " * before, " " * before) if wraps else [line]
        if wraps:
            first = line[:before] + first[before:]
        lines.append(terminal.heading(first) if row is head else _coloured(first, cells))
        lines += [*others, *(wrapped(row[-1], "    ", "    ") if moved and row[-1] else [])]
    return lines


def _coloured(line: str, cells: Sequence[str]) -> str:
    """Return the line of a row, with colour in the cells that are one of deployer's words, such as a state."""
    start, coloured = 0, ""
    for cell in cells:
        part = line[start : start + len(cell) + _GAP]
        text = part.strip()
        coloured += part.replace(text, terminal.word(text)) if text else part
        start += len(cell) + _GAP
    return coloured


def _records(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Return the lines of a table that is too wide, with one line per cell."""
    lines = []
    for row in rows:
        lines += [terminal.heading(line) for line in wrapped(row[0])]
        for name, cell in zip(head[1:], row[1:]):
            lines += wrapped(f"{name}: {cell}", "    ", "      ") if cell else []
    return lines


def wrapped(text: str, first: str = "", others: str = "  ") -> List[str]:
    """Wrap a text into lines that fit the terminal, with the prefixes ``first`` and ``others``.

    Longer words, such as paths, and commands in backticks are not split, so that people can paste them.
    """
    import textwrap

    whole = re.sub("`[^`]*`", lambda match: match[0].replace(" ", "\0"), text)
    wrapper = textwrap.TextWrapper(terminal.columns(), initial_indent=first, subsequent_indent=others)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return [line.replace("\0", " ") for line in wrapper.wrap(whole) or [""]]


def shortened(text: str, taken: int, is_name: bool = True) -> str:
    """Shorten a text to fit beside ``taken`` columns; ``...`` replaces the middle of a name, or the last words.

    Without a terminal, the text is not shortened.
    """
    room = terminal.room() - taken
    if len(text) <= room or not terminal.room():
        return text
    if not is_name:
        return text[: room - 3].rpartition(" ")[0] + "..."
    head = (room - 3) // 2
    return text[:head] + "..." + text[len(text) - (room - 3 - head) :]


def show(checked: "Checked", ways: Sequence[str] = (), stream: Optional[IO[str]] = None) -> None:
    """Print the meaning of a verdict and its reasons: each finding once, and each remedy once, after its findings.

    On a terminal, long lines are wrapped. ``ways`` are sentences that describe how ranks would run.
    """
    out = stream or sys.stdout

    def fit(text: str) -> None:
        fits = terminal.room() and terminal.is_shown(out)
        terminal.show(*(wrapped(text, "", "    ") if fits else [text]), stream=out)

    for line in filter(None, (checked.meaning, *ways)):
        terminal.show(*wrapped(line, "  "), stream=out)
    for remedy in dict.fromkeys(finding.remedy for finding in checked.findings):
        for finding in dict.fromkeys(other for other in checked.findings if other.remedy == remedy):
            accepted = " (accepted)" if finding.code in checked.accepted else ""
            fit(f"{finding}{accepted}")
        fit(f"  remedy: {remedy}")
    if checked.findings and not terminal.is_quiet():
        terminal.show(more(finding.code for finding in checked.against or checked.findings), stream=out)


def as_json(args: argparse.Namespace, record: Any, indent: Optional[int] = None) -> bool:
    """Print a result as a record if --json requests that, and return whether it does."""
    if args.json:
        terminal.show_json(record, indent)
    return bool(args.json)


def show_result(args: argparse.Namespace, record: Any, *lines: str) -> None:
    """Print a result: the record with --json, otherwise the lines."""
    if not as_json(args, record):
        terminal.show(*lines)


def more(codes: Iterable[str], prog: str = "") -> str:
    """Return the line with the command that explains codes; ``prog`` is the program's name."""
    first, *others = dict.fromkeys(codes)
    ours = prog or os.path.basename(sys.argv[0])
    at_laptop = CALLER in os.environ or not ours.endswith(".pyz")
    words = "deployer" if at_laptop else "python3 " + ours
    return f"more: {words} explain {first}{', or another of these codes' if others else ''}"


def run(parser: argparse.ArgumentParser, argv: List[str], log_folder: Optional[str]) -> int:
    """Parse ``argv``, call the command, and return its exit code; errors are printed, never raised.

    Words after a bare ``--`` are the user's own command or arguments. They are not parsed, but passed to the command as
    ``args.rest``. ``args.words`` has the other words as typed.
    """
    log = None
    with contextlib.ExitStack() as held:
        held.enter_context(terminal.manners(bool({"-q", "--quiet"} & {*argv}), False))  # for the parser's errors
        try:
            if isinstance(parser, Front):
                parser.add_wanted(argv)  # inside the try block, because Ctrl-C may interrupt its imports
            mark = argv.index("--") if "--" in argv else len(argv)
            args, unknown = parser.parse_known_args(argv[:mark])
            args.words, args.rest = argv[:mark], argv[mark + 1 :]
            if unknown:
                raise args.parser.explain(args.words, unknown, args.rest)
            held.enter_context(terminal.manners(getattr(args, "quiet", False), getattr(args, "json", False)))
            if not hasattr(args, "run"):
                parser.print_help()
                return UsageError.exit_code
            if log_folder is not None:
                from deployer.cli.site.logs import start_log

                log = start_log(log_folder, args.command)
            exit_code = args.run(args) or 0
            sys.stdout.flush()
            return int(exit_code)
        except KeyboardInterrupt:
            terminal.complain(["deployer: interrupted"])
            return EXIT_INTERRUPTED
        except BrokenPipeError:  # the reader of the output has ended: `deployer logs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (DeployerError, OSError, MemoryError) as raised:
            error = raised if isinstance(raised, DeployerError) else _named(raised)
            if log:
                import logging

                logging.getLogger("deployer").debug("%s", "\n".join(error.lines()), exc_info=True)
            terminal.complain(error.lines())
            if isinstance(parser, Front) and not (argv and argv[0] in parser.internal):
                from deployer.system.tool.documents import topic

                code = topic(" ".join([error.message, *error.details]), error.exit_code)
                terminal.complain([more([code], parser.prog)])
            _debug()
            return error.exit_code
        except Exception as error:  # a bug in deployer: still print one line, and the facts needed to fix it
            import logging

            logging.getLogger("deployer").debug("defect", exc_info=True)
            what = f"deployer: error: unexpected {type(error).__name__}: {error}"
            report = "hint: this is a defect; report it with %s" % (log or "the output of DEPLOYER_DEBUG=1")
            terminal.complain([what, report])
            _debug()
            return DeployerError.exit_code


def command(args: argparse.Namespace, *words: str) -> str:
    """Return a command of this program in the form to type, with `deployer` if a laptop called this program."""
    from deployer.contract.base.shell import quoted

    name, rest = words[0], list(words[1:])
    if getattr(args, "root", None):
        rest[:0] = ["--root", args.root]
    caller = os.environ.get(CALLER)
    if caller is not None:
        return " ".join([f"deployer {name}", *filter(None, [caller, quoted(rest)])])
    prog = args.front.prog
    if prog.endswith(".pyz"):
        return quoted(["python3", sys.argv[0] if sys.argv[0].endswith(".pyz") else prog, name, *rest])
    return quoted([prog, name, *rest])


def suggest(args: argparse.Namespace, *words: str) -> None:
    """Print the command that usually follows this one."""
    terminal.hint("next", command(args, *words))


def _debug() -> None:
    """Print the current exception if a developer requested it."""
    if os.environ.get("DEPLOYER_DEBUG") == "1":
        import traceback

        traceback.print_exc()


def show_anything() -> None:
    """Let standard output accept any text, by escaping characters that the locale cannot show.

    Python 3.6 uses ASCII in the C locale, which is the locale of a login without settings.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors != "backslashreplace":
        encoding, by_line = out.encoding, out.line_buffering
        sys.stdout = io.TextIOWrapper(out.detach(), encoding, "backslashreplace", line_buffering=by_line)


def _named(error: Exception) -> DeployerError:
    """Convert an unexpected error of the operating system, such as an unreadable folder, into a DeployerError."""
    if not isinstance(error, OSError):  # a MemoryError
        return SpaceError("there is not enough memory for this command", "see `ulimit -v`; use a node with more memory")
    from deployer.system import files

    what = "continue" if error.filename is None else f"use {error.filename}"
    try:
        files.raise_named(error, what, "see the command's log in ROOT/logs" if error.filename is None else "")
    except DeployerError as named:
        return named
