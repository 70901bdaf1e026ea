"""What a rehearsed job reached for: records that its processes and the node's observers write, a line of JSON each.

They come from the side of the payload, so nothing in them is trusted: sizes and numbers are limited, texts are escaped
when they are printed, and no path in them is ever opened. A line that is not a record is counted, not reported.

Times are seconds since the epoch, all of one machine's clock.
"""

import json
import math
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from deployer.contract.json_records import Record
from deployer.contract.text import printable

#: The end of the name of a file of observations.
SUFFIX = ".jsonl"
#: Bytes that are read of a file, and of a line in it; files of one rehearsal that are read.
MAX_FILE, MAX_LINE, MAX_FILES = 4_000_000, 64_000, 4_000
#: Observations of one rehearsal that are kept.
MAX_KEPT = 20_000
_MAX_TEXT, _MAX_PATH = 500, 1_000
_MAX_FRAMES, _MAX_ABOUT = 40, 20
#: The latest time that a record can have: the year 3000.
MAX_TIME = 32_503_680_000.0

# Kinds of observations. A process begins with PROCESS: ``about`` has ``pid`` and ``python``.
PROCESS = "process"
#: A host name was looked up; an address was connected to; a URL was requested (with the name of what was wanted).
HOST, ADDRESS, URL = "host", "address", "url"
#: A socket file of this machine was connected to.
DAEMON = "daemon"
#: A file or folder would have been written that cannot be.
WRITE = "write"
#: A file, a program or a shared library was looked for. For a program that is not Python, a missing file is a guess at
#: the reason why it failed.
MISSING, PROGRAM, LIBRARY = "missing", "program", "library"
#: A program asked whether a file or folder exists that does not.
ASKED = "asked"
#: An exception ended a thread or the process; ``about`` has ``after`` (the ones that led to it) and ``thread``.
UNCAUGHT = "uncaught"
#: A process that could not be observed, and why; an observer that reached its limit.
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
    """What a program reached for.

    Attributes:
        kind: one of ``KINDS``.
        what: a host name, an address, a URL, a path, a program, or the text of an exception.
        time: when it happened.
        stack: where the program did it, the innermost frame first; empty for programs that are not Python.
        about: what more is known: ``program`` and ``pid`` of a native one, and local variables of a library.
        process: who did it: the name of the file without its suffix. A file of a node is of many processes.
    """

    kind: str
    what: str
    time: float
    stack: Tuple[CodeFrame, ...] = ()
    about: Mapping[str, str] = {}
    process: str = ""

    def record(self) -> Record:
        """Return the observation as the JSON object that ``read`` reads."""
        return {
            "kind": self.kind,
            "what": self.what,
            "time": self.time,
            "stack": [list(frame) for frame in self.stack],
            "about": dict(self.about),
        }


class Observed(NamedTuple):
    """The observations of a rehearsal, in the order of time.

    Attributes:
        observations: those that could be read.
        unreadable: how many lines could not be.
        cut: a file or the whole was larger than its limit.
    """

    observations: Tuple[Observation, ...] = ()
    unreadable: int = 0
    cut: bool = False

    @property
    def has_python(self) -> bool:
        """Return whether the hook started in a Python of the job: a program can start one without it."""
        return any(item.kind == PROCESS for item in self.observations)


def read(files: Iterable[Tuple[str, bytes]]) -> Observed:
    """Return the observations in files.

    Args:
        files: the name and the first ``MAX_FILE + 1`` bytes of each. The name tells whose they are.
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


def _observation(line: bytes, process: str) -> Optional[Observation]:
    """Return the observation of a line, or None if it is none: a program may have written it in our place."""
    if len(line) > MAX_LINE:
        return None
    try:
        record = json.loads(line.decode("utf-8"), parse_int=_number)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        return None
    what, time, stack = (record.get(name) for name in ("what", "time", "stack"))
    if not isinstance(what, str) or not what or time is None or not _is_time(time) or not isinstance(stack, list):
        return None
    frames = [_frame(item) for item in stack[:_MAX_FRAMES]]
    about = record.get("about", {})
    if None in frames or not isinstance(about, dict):
        return None
    known = tuple(frame for frame in frames if frame is not None)
    return Observation(record["kind"], what[:_MAX_TEXT], float(time), known, _about(about), process)


def _number(digits: str) -> int:
    if len(digits) > 20:  # as in json_records: a long one keeps older Pythons busy for hours
        raise ValueError("a number has %d digits" % len(digits))
    return int(digits)


def _is_time(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value <= MAX_TIME


def _frame(item: Any) -> Optional[CodeFrame]:
    if not isinstance(item, list) or len(item) != 3:
        return None
    file, line, function = item
    if not isinstance(file, str) or not isinstance(function, str) or isinstance(line, bool):
        return None
    if not isinstance(line, int):
        return None
    return CodeFrame(file[:_MAX_PATH], max(line, 0), function[:_MAX_TEXT])


def _about(found: Dict[Any, Any]) -> Dict[str, str]:
    texts = [(key[:_MAX_TEXT], value) for key, value in found.items() if isinstance(value, str) and value]
    # The exceptions that led to the last one are several lines.
    return {key: value[: 10 * _MAX_TEXT] for key, value in texts[:_MAX_ABOUT]}
