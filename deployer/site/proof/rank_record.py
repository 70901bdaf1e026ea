"""Write a rank's records about itself, without the ``typing`` import of their readers, ``payload`` and ``evidence``.

Every rank of a job writes its records, and importing ``typing`` and ``json`` takes longer than the rest of its start.

The ranks of a node append their records to one file, whose lines are ``NAME LENGTH JSON``. Each line is written with a
newline before and after it, so that a partially written line does not corrupt any other line.
"""

MYPY = False
if MYPY:
    from typing import Any, Dict, Set

#: The suffix of a file with the records of a node's ranks.
SUFFIX = ".records"

#: The exit code of a payload that was warned of the time limit, saved its state, and is to be continued.
SAVED = 85
#: Seconds before the time limit at which ranks are warned by default.
WARN = 300

#: The names of a rank's records, and of the end of its probe's output, by the rank's number.
PROBE, PROBE_LOG, PAYLOAD = "probe-%d.json", "probe-%d.log", "payload-%d.json"

#: The stage of a probe when it wrote its record; if it is not DONE, the probe ended there.
LOADING = "loading the MPI library"
STARTING = "in MPI_Init or the first MPI_Barrier"
SUMMING = "in the first MPI_Allreduce"
DONE = "done"

_ESCAPED = {'"': '\\"', "\\": "\\\\"}


def begun(task: int, host: str) -> "Dict[str, Any]":
    """Return the initial record (``payload.PayloadRecord``) of a payload."""
    unknown = ("exit_code", "signal", "ended", "shm", "itex", "oom_group", "oom_node", "communication")
    return {**_begun("payload", task, host), "libraries": [], **dict.fromkeys(unknown), "unset": [], "together": []}


def probing(task: int, host: str) -> "Dict[str, Any]":
    """Return the initial record (``evidence.ProbeRecord``) of a rank."""
    unknown = ("library", "reason", "rank", "size", "provider", "thread_level", "threads")
    known = {**_begun("probe", task, host), "stage": LOADING, **dict.fromkeys(unknown), "cpus": ""}
    return {**known, "measures": None, "shared_memory": None}


def _begun(schema: str, task: int, host: str) -> "Dict[str, Any]":
    return {"schema": "deployer." + schema, "format": 1, "min_reader": 1, "task": task, "host": host}


def line(name: str, text: str) -> bytes:
    """Return the bytes that add the record ``name`` to a node's file; ``text`` is one line of ASCII."""
    return ("\n%s %d %s\n" % (name, len(text), text)).encode("ascii")


def latest(text: str) -> "Dict[str, str]":
    """Return the last complete record of each name in the text of a node's file."""
    records = {}
    for written in text.split("\n"):
        name, _, rest = written.partition(" ")
        length, _, record = rest.partition(" ")
        if length == "%d" % len(record):
            records[name] = record
    return records


def dumps(value: "Any") -> str:
    """Return the JSON text of a record of texts and integers, in one line, as ``json.dumps`` does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return "%d" % value
    if isinstance(value, str):
        return '"{}"'.format("".join(map(_escaped, value)))
    if isinstance(value, list):
        return "[{}]".format(", ".join(map(dumps, value)))
    return "{{{}}}".format(", ".join([f"{dumps(name)}: {dumps(item)}" for name, item in value.items()]))


def _escaped(character: str) -> str:
    """Return a character of a JSON text as ASCII."""
    number = ord(character)
    if 0x20 <= number < 0x7F:
        return _ESCAPED.get(character, character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def render_numbers(numbers: "Set[int]") -> str:
    """Return numbers as the kernel writes lists: ``0-3,8``."""
    firsts = sorted([number for number in numbers if number - 1 not in numbers])
    lasts = sorted([number for number in numbers if number + 1 not in numbers])
    return ",".join(["%d" % first if first == last else "%d-%d" % (first, last) for first, last in zip(firsts, lasts)])
