"""What a rank writes about its payload. ``payload`` reads it; apart, because it imports ``typing`` and ``json``.

Each rank of a job makes its record anew, and importing those two takes longer than the rest of a rank's start.
"""

MYPY = False
if MYPY:
    from typing import Any, Dict

#: The exit code of a payload that was warned of the time limit, saved its state, and wants to be continued.
SAVED = 85
#: Seconds before the time limit at which ranks are warned, if the user does not say.
WARN = 300

_ESCAPED = {'"': '\\"', "\\": "\\\\"}


def begun(task: int, host: str) -> "Dict[str, Any]":
    """Return the record (``payload.PayloadRecord``) of a payload of which nothing is known yet."""
    return {
        "schema": "deployer.payload",
        "format": 1,
        "min_reader": 1,
        "task": task,
        "host": host,
        "libraries": [],
        "exit_code": None,
        "signal": None,
        "ended": None,
        "shm": None,
        "itex": None,
        "oom_group": None,
        "oom_node": None,
        "communication": None,
    }


def pretty(value: "Any", begin: str = "\n") -> str:
    """Return the JSON text of a record of texts and whole numbers, indented as ``json_records.pretty`` does.

    Args:
        begin: what begins a line on the level of ``value``.
    """
    inner = begin + "  "
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return "%d" % value
    if isinstance(value, str):
        return '"%s"' % "".join(map(_escaped, value))
    if isinstance(value, list):
        items = [pretty(item, inner) for item in value]
        return "[%s%s]" % (inner + ("," + inner).join(items), begin) if items else "[]"
    items = ["%s: %s" % (pretty(name), pretty(item, inner)) for name, item in value.items()]
    return "{%s%s}" % (inner + ("," + inner).join(items), begin) if items else "{}"


def _escaped(character: str) -> str:
    """Return a character of a JSON text, in ASCII."""
    number = ord(character)
    if 0x20 <= number < 0x7F:
        return _ESCAPED.get(character, character)
    if number < 0x10000:
        return "\\u%04x" % number
    number -= 0x10000
    return "\\u%04x\\u%04x" % (0xD800 + (number >> 10), 0xDC00 + (number & 0x3FF))
