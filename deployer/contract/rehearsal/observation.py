"""What a rehearsed job accessed: records from its processes and the node's observers, as lines of JSON.

They come from the payload's side, so nothing in them is trusted: sizes and numbers are limited, texts are escaped when
they are printed, and no path in them is ever opened. A line that is not a record is counted, not reported.

Times are seconds since the epoch, all from the clock of one machine.
"""

from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import printable

#: The suffix of files of observations.
SUFFIX = ".jsonl"
#: Bytes to read from a file, and from a line in it; files to read from one rehearsal.
MAX_FILE, MAX_LINE, MAX_FILES = 4_000_000, 64_000, 4_000
#: Observations to keep from one rehearsal.
MAX_KEPT = 20_000
_MAX_TEXT, _MAX_PATH = 500, 1_000
_MAX_FRAMES, _MAX_ABOUT = 40, 20
#: The latest time that a record may have: the year 3000.
MAX_TIME = 32_503_680_000.0

# Kinds of observations. A process begins with PROCESS: ``about`` has ``pid`` and ``python``.
PROCESS = "process"
#: A host name was resolved; an address was connected to; a URL was requested (with the name of the wanted content).
HOST, ADDRESS, URL = "host", "address", "url"
#: A socket file of this machine was connected to.
DAEMON = "daemon"
#: A write to a file or folder that cannot be written.
WRITE = "write"
#: A file, a program or a shared library was searched for. For a program that is not Python, a missing file is a guess
#: at the reason for its failure.
MISSING, PROGRAM, LIBRARY = "missing", "program", "library"
#: A program checked for a file or folder that does not exist.
ASKED = "asked"
#: An exception ended a thread or the process; ``about`` has ``after`` (the exceptions that led to it) and ``thread``.
UNCAUGHT = "uncaught"
#: A process that could not be observed, with the reason; an observer that reached its limit.
BLIND, MORE = "blind", "more"
KINDS = (PROCESS, HOST, ADDRESS, URL, DAEMON, WRITE, MISSING, ASKED, PROGRAM, LIBRARY, UNCAUGHT, BLIND, MORE)


class CodeFrame(NamedTuple):
    """A place in a Python program.

    Attributes:
        file: the source file's path in the container.
        line: the number of the line.
        function: the function's name.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return printable("%s:%d in %s" % self)


class Observation(NamedTuple):
    """An access by a program.

    Attributes:
        kind: one of ``KINDS``.
        what: a host name, an address, a URL, a path, a program, or the text of an exception.
        time: when it happened.
        stack: where the program did it, the innermost frame first; empty for programs that are not Python.
        about: further facts: ``program`` and ``pid`` of a native program, and local variables of a library.
        process: the source: the name of the file without its suffix. A node's file is from many processes.
    """

    kind: str
    what: str
    time: float
    stack: Tuple[CodeFrame, ...] = ()
    about: Mapping[str, str] = {}
    process: str = ""


class Observed(NamedTuple):
    """The observations of a rehearsal, sorted by time.

    Attributes:
        observations: the readable observations.
        unreadable: how many lines could not be read.
        cut: whether a file or the whole exceeded its limit.
    """

    observations: Tuple[Observation, ...] = ()
    unreadable: int = 0
    cut: bool = False

    @property
    def has_python(self) -> bool:
        """Return whether the hook started in a Python process of the job; a program can start Python without it."""
        return any(item.kind == PROCESS for item in self.observations)


def read(files: Iterable[Tuple[str, bytes]]) -> Observed:
    """Return the observations in files.

    Args:
        files: the name and the first ``MAX_FILE + 1`` bytes of each file. The name identifies the process.
    """
    found: List[Observation] = []
    unreadable, cut = 0, False
    for number, (name, data) in enumerate(files):
        if number >= MAX_FILES or len(found) >= MAX_KEPT:
            cut = True
            break
        process = name[: -len(SUFFIX)] if name.endswith(SUFFIX) else name
        lines = data[:MAX_FILE].split(b"\n")
        if len(data) > MAX_FILE:
            cut = True
            lines.pop()
        for line in lines:
            if not line.strip():
                continue
            made = _observation(line, process)
            if made is None:
                unreadable += 1
            elif len(found) < MAX_KEPT:
                found.append(made)
            else:
                cut = True
    return Observed(tuple(sorted(found, key=lambda item: item.time)), unreadable, cut)


def is_frame(item: Any) -> bool:
    """Return whether a JSON value is a list of file, line and function."""
    return isinstance(item, list) and list(map(type, item)) == [str, int, str]


def _observation(line: bytes, process: str) -> Optional[Observation]:
    """Return the observation in a line, or None if it is invalid: the job's programs can also write to the file."""
    if len(line) > MAX_LINE:
        return None
    try:
        record = json_records.parse(line, "an observation")
    except UsageError:
        return None
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        return None
    what, stack = record.get("what"), record.get("stack")
    time: Any = record.get("time")
    if not isinstance(what, str) or not what or not isinstance(stack, list):
        return None
    if type(time) not in (int, float) or not 0 <= time <= MAX_TIME:  # "not a number" is in no range
        return None
    about, stack = record.get("about", {}), stack[:_MAX_FRAMES]
    if not isinstance(about, dict) or not all(map(is_frame, stack)):
        return None
    frames = tuple(CodeFrame(file[:_MAX_PATH], max(line, 0), name[:_MAX_TEXT]) for file, line, name in stack)
    texts = [(key[:_MAX_TEXT], value) for key, value in about.items() if isinstance(value, str) and value]
    # The text of the exceptions that led to the last one has several lines.
    known = {key: value[: 10 * _MAX_TEXT] for key, value in texts[:_MAX_ABOUT]}
    return Observation(record["kind"], what[:_MAX_TEXT], float(time), frames, known, process)
