"""Output for people: colour, ``--quiet``, hints, and the width of a terminal.

Results go to standard output, everything else to standard error. Everything is printed with the functions of this
module: a line may quote text from outside, which has no effect on the terminal. Colour is added only to deployer's own
words and never carries information: without it, the text is the same.
"""

import json
import os
import re
import sys
from contextlib import contextmanager
from typing import IO, Any, Dict, Iterator, List, Optional

from deployer.contract.base.dialogue import COLOUR, TERMINAL
from deployer.contract.base.text import printable

#: Parameters of ANSI's SGR sequence: bold red, ...
RED, GREEN, YELLOW, CYAN, BOLD, DIM = "1;31", "32", "33", "36", "1", "2"

#: Begins a style within a line. Text from outside cannot contain it, so it never has a style.
_STYLE = f"\x1b{os.urandom(8).hex()}"

#: The words of deployer that have a colour.
_WORDS = {
    **dict.fromkeys(("error", "REFUSE", "broken"), RED),
    **dict.fromkeys(("warning", "WARN", "unknown", "UNKNOWN"), YELLOW),
    **dict.fromkeys(("note", "hint", "remedy", "next"), CYAN),
    **dict.fromkeys(("RUN", "ok", "done"), GREEN),
    **dict.fromkeys(("more", "unchanged", "skipped"), DIM),
}
#: States of jobs and of partitions in a capture; more words have a colour where a state is printed.
_STATES = {
    "COMPLETED": GREEN, "RUNNING": CYAN, "CANCELLED": YELLOW,
    **dict.fromkeys(("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"), RED),
}  # fmt: skip
_ANY = "({})".format("|".join(_WORDS))
#: Deployer's own lines begin with such a word or end with a verdict.
_BEGIN = re.compile(rf"(?:deployer: | +)?{_ANY}(?=[: ])")
_END = re.compile(rf": {_ANY}\Z")
#: The width of prose that is not shown on a terminal.
_COLUMNS = 80


class _Manners:
    """The user's output settings in this process.

    Attributes:
        quiet: print only errors, warnings and results.
        plain: a program reads the output: no colour and no hints.
    """

    quiet = False
    plain = False


_manners = _Manners()


@contextmanager
def manners(quiet: bool, plain: bool) -> Iterator[None]:
    """Obey ``--quiet`` and ``--json`` while the block runs."""
    before = _manners.quiet, _manners.plain
    _manners.quiet, _manners.plain = quiet, plain
    try:
        yield
    finally:
        _manners.quiet, _manners.plain = before


def is_quiet() -> bool:
    """Return whether only errors, warnings and results are printed."""
    return _manners.quiet


def is_watched() -> bool:
    """Return whether a person watches standard error, on this terminal or the laptop's."""
    return is_shown(sys.stderr)


def is_shown(stream: IO[str]) -> bool:
    """Return whether a person watches a stream, on this terminal or the laptop's."""
    return stream.isatty() or os.environ.get(TERMINAL) == "1"


def shows_progress() -> bool:
    """Return whether progress is shown: a person watches standard error without ``--quiet``."""
    return not _manners.quiet and is_watched()


def coloured(stream: IO[str]) -> bool:
    """Return whether a stream shows colour.

    ``NO_COLOR`` forbids it; then, if the laptop shows our streams, it has decided; ``FORCE_COLOR`` and
    ``CLICOLOR_FORCE`` demand it; each counts if it is not empty, ``0`` demands nothing. Otherwise the stream must be a
    terminal that is not dumb.
    """
    known = os.environ
    if _manners.plain or known.get("NO_COLOR"):
        return False
    if COLOUR in known:  # the laptop shows our streams; it is empty if neither has colour there
        return (stream is sys.stdout and "1" in known[COLOUR]) or (stream is sys.stderr and "2" in known[COLOUR])
    if any(known.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return known.get("TERM") != "dumb" and known.get("CLICOLOR") != "0" and stream.isatty()


def for_the_site() -> Dict[str, str]:
    """Return the environment that lets a command of the site print as this process would."""
    shown = "".join(number for number, stream in (("1", sys.stdout), ("2", sys.stderr)) if coloured(stream))
    environment = {COLOUR: shown}  # also if it is empty: the site's login files may demand colour
    if room():
        environment["COLUMNS"] = str(room())
    return environment


def painted(text: str, style: str, stream: Optional[IO[str]] = None) -> str:
    """Return a text in a style if the stream (default: standard output) shows colour."""
    if not (text and style and coloured(stream or sys.stdout)):
        return text
    return f"{_STYLE}{style}m{text}{_STYLE}0m"


def safe(line: str) -> str:
    """Return a line as a terminal may receive it: with the styles of this module, and no other effect."""
    plain, *styled = line.split(_STYLE)
    parts = [part.partition("m") for part in styled]
    return printable(plain) + "".join(f"\x1b[{style}m{printable(text)}" for style, _, text in parts)


def word(text: str, stream: Optional[IO[str]] = None) -> str:
    """Return one of deployer's words, such as a state, in its colour; it may have spaces around it."""
    return painted(text, _WORDS.get(text.strip()) or _STATES.get(text.strip(), ""), stream)


def heading(text: str, stream: Optional[IO[str]] = None) -> str:
    """Return the heading of a table or a paragraph."""
    return painted(text, BOLD, stream)


def marked(text: str, stream: Optional[IO[str]] = None) -> str:
    """Return a line with its first word or its final verdict in colour."""
    match = _BEGIN.match(text) or _END.search(text)
    if not match:
        return text
    start, end = match.span(1)
    return text[:start] + word(text[start:end], stream) + text[end:]


def show(*lines: str, stream: Optional[IO[str]] = None) -> None:
    """Print lines of the result."""
    out = stream or sys.stdout
    out.write("".join(safe(marked(line, out)) + "\n" for line in lines))


def show_text(text: str) -> None:
    """Print a file that is the result, such as YAML or a script: exactly, unless a person watches."""
    if is_shown(sys.stdout):
        show(*text.expandtabs().splitlines())
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()


def show_json(record: Any, indent: Optional[int] = None, mark: str = "") -> None:
    """Print the result for a program, after ``mark``: one JSON object, in one line unless it is indented."""
    sys.stdout.write(mark + json.dumps(record, indent=indent).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def tell(*lines: str) -> None:
    """Print lines about the current action, unless the user wants quiet."""
    if not _manners.quiet:
        _write(*lines)


def warn(text: str) -> None:
    """Print a warning of one line: the command continues, but a person should know."""
    _write(f"deployer: warning: {text}")


def complain(lines: List[str]) -> None:
    """Print the lines of an error. The command that explains it is left out if the user wants quiet."""
    _write(*(line for line in lines if not (_manners.quiet and line.startswith("more: "))))


def hint(kind: str, text: str) -> None:
    """Print a line such as ``next: COMMAND``, unless only results are wanted."""
    if not (_manners.quiet or _manners.plain):
        sys.stdout.flush()  # both may be the same terminal, or the same file
        _write(f"{kind}: {text}")


def _write(*lines: str) -> None:
    show(*lines, stream=sys.stderr)
    sys.stderr.flush()


# --- the width ---


def columns() -> int:
    """Return the width of the output in columns; 80 if it is not limited."""
    return room() or _COLUMNS


def room() -> int:
    """Return the width of the terminal in columns; 0 if the output is not a terminal: its width is not limited."""
    import shutil  # only here: every start imports this module

    return shutil.get_terminal_size((0, 0)).columns
