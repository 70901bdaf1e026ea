"""What text from outside may be: the names of environment variables, and characters that do something. Pure."""

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_name(text: str) -> bool:
    """Return whether ``text`` can be the name of an environment variable."""
    return _NAME.fullmatch(text) is not None


def printable(text: str) -> str:
    """Return a text in one line that cannot do anything to a terminal: what is not printable is escaped."""
    return text if text.isprintable() else "".join(char if char.isprintable() else escaped(char) for char in text)


def escaped(char: str) -> str:
    """Return a character as Python and bash escape it."""
    number = ord(char)
    if number < 0x80:
        return _SHORT.get(char, "\\x%02x" % number)
    return "\\u%04x" % number if number < 0x10000 else "\\U%08x" % number
