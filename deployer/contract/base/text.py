"""Rules for text from outside: names of environment variables, and control characters. Pure."""

import re
from typing import Optional

#: Characters that a text of one line must not have. A line end or an escape sequence in a name, a path or a reason
#: would have an effect where it is printed, and half of a surrogate pair cannot be printed at all.
_CONTROL = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
#: Characters that no text may have, because a process cannot receive a NUL.
_NEVER = "[\x00\ud800-\udfff]"
_SHOWN = 60

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = r"[a-z0-9]+([._-][a-z0-9]+)*"
_LABEL_LENGTH = 100
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_name(text: str) -> bool:
    """Return whether ``text`` can be the name of an environment variable."""
    return _NAME.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Return whether ``text`` can be the name of a bundle or a job, for use in file names and commands."""
    return len(text) <= _LABEL_LENGTH and re.fullmatch(_LABEL, text) is not None


def fault(text: str, lines: bool = False) -> Optional[str]:
    """Return what is wrong with a text from outside, or None.

    With ``lines`` it may have several lines: a word of a command, or the value of a variable.
    """
    if text.isprintable():
        return None
    # Compiled only here, because this takes longer than all other imports of a rank together.
    match = re.search(_NEVER if lines else _CONTROL, text)
    if match is None:
        return None
    shown = printable(text[:_SHOWN])
    if "\ud800" <= match.group() <= "\udfff":
        return f"{shown} is not Unicode text: it has the half character {escaped(match.group())}"
    return f"{shown} has the control character {escaped(match.group())}"


def counted(number: int, what: str) -> str:
    """Return a number with the name of what it counts: ``1 node``, ``2 nodes``."""
    return "%d %s%s" % (number, what, "s" * (number != 1))


def printable(text: str) -> str:
    """Return a text in one line without effect on a terminal: non-printable characters are escaped."""
    return text if text.isprintable() else "".join(char if char.isprintable() else escaped(char) for char in text)


def escaped(char: str) -> str:
    """Return a character as Python and bash escape it."""
    number = ord(char)
    if number < 0x80:
        return _SHORT.get(char, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
