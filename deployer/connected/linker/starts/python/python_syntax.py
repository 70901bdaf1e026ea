"""Source text that a Python 3 certainly cannot parse: Python 2, and syntax newer than its own version. Pure."""

import ast
import io
import re
import sys
import tokenize
from typing import NamedTuple

#: The parser's messages for statements and numbers of Python 2, which no Python 3 accepts.
_OF_PYTHON_2 = re.compile(r"^Missing parentheses in call to '(?:print|exec)'|^leading zeros in decimal")
#: The parser's message for syntax that is newer than the requested version. It also reports parentheses after ``with``
#: if they form a tuple, which older versions accept.
_NEWER = re.compile(r"^(?!Parenthesized context).* only supported in Python 3\.\d+ and greater")
#: Python accepts what 3.7 up to its own version accepted; 3.6 allowed names that became keywords later.
_OWN, _OLDEST = sys.version_info[1], 7
_FREE_QUOTES = 12  # since 3.12, an f-string may reuse its quotes within its braces
_QUOTES = re.compile(r"^[A-Za-z]*(\"\"\"|'''|[\"'])")
#: The first bytes of files that Python runs but that are not text: archives and compiled modules.
_NOT_TEXT = re.compile(rb"^PK|^..\r\n", re.DOTALL)


class Unreadable(NamedTuple):
    """A file that a program needs to read but its Python cannot parse: the file and line, and the reason."""

    place: str
    reason: str


def refused(text: bytes, error: SyntaxError, minor: int) -> bool:
    """Return whether Python 3.``minor`` also certainly cannot parse a text that deployer's own Python cannot parse."""
    if b"\0" in text or _NOT_TEXT.match(text):
        return False
    return _OLDEST <= minor <= _OWN or (minor > _OWN and _OF_PYTHON_2.match(error.msg) is not None)


def newer(text: bytes, minor: int) -> SyntaxError | None:
    """Return the syntax in a text that Python 3.``minor`` certainly lacks; None if nothing is certain."""
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
    """Return the line of an f-string that reuses its own quotes within its braces; 0 if there is none."""
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
