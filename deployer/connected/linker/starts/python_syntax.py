"""Which texts a Python 3 certainly cannot read: those of Python 2, and those with newer syntax than its own. Pure."""

import ast
import io
import re
import sys
import tokenize
from typing import NamedTuple

#: What the parser says of statements and numbers of Python 2, which no Python 3 reads.
_OF_PYTHON_2 = re.compile(r"^Missing parentheses in call to '(?:print|exec)'|^leading zeros in decimal")
#: What the parser says of syntax that is newer than the version that it is asked for. It reports parentheses after
#: ``with`` also where they are a tuple, which older versions read.
_NEWER = re.compile(r"^(?!Parenthesized context).* only supported in Python 3\.\d+ and greater")
#: Python reads what 3.7 to its own version read; 3.6 has names that are keywords since.
_OWN, _OLDEST = sys.version_info[1], 7
_FREE_QUOTES = 12  # since 3.12 an f-string may have its own quotes within its braces
_QUOTES = re.compile(r"^[A-Za-z]*(\"\"\"|'''|[\"'])")
#: How files begin that Python runs and that are not texts: archives and compiled modules.
_NOT_TEXT = re.compile(rb"^PK|^..\r\n", re.DOTALL)


class Unreadable(NamedTuple):
    """A text that a program reads, and that its Python cannot read: the file and the line, and why."""

    place: str
    reason: str


def refused(text: bytes, error: SyntaxError, minor: int) -> bool:
    """Return whether Python 3.``minor`` certainly cannot read a text that deployer's own Python cannot read."""
    if b"\0" in text or _NOT_TEXT.match(text):
        return False
    return _OLDEST <= minor <= _OWN or (minor > _OWN and _OF_PYTHON_2.match(error.msg) is not None)


def newer(text: bytes, minor: int) -> SyntaxError | None:
    """Return the syntax in a text that Python 3.``minor`` certainly does not have; None if nothing is certain."""
    if not 0 < minor < _OWN:
        return None
    try:
        ast.parse(text, feature_version=(3, minor))
    except SyntaxError as error:
        return error if _NEWER.match(error.msg) else None
    line = _free_quotes(text) if minor < _FREE_QUOTES <= _OWN else 0
    reason = f"its own quotes within an f-string are only supported in Python 3.{_FREE_QUOTES} and greater"
    return SyntaxError(reason, ("", line, 0, "")) if line else None


def _free_quotes(text: bytes) -> int:
    """Return the line of an f-string that has its own quotes within its braces; 0 if there is none."""
    starts, ends = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
    open_quotes: list[str] = []
    for token in tokenize.tokenize(io.BytesIO(text).readline):
        quotes = _QUOTES.match(token.string) if token.type in (starts, tokenize.STRING) else None
        if quotes and quotes[1] in open_quotes:
            return token.start[0]
        if quotes and token.type == starts:
            open_quotes.append(quotes[1])
        elif token.type == ends:
            open_quotes.pop()
    return 0
