"""Make a site's output safe for this terminal: text, colours and progress bars, without other effects.

Other escape sequences could change the window's title or the clipboard, or overwrite what this program printed.
"""

import re

#: Colours (SGR), and erasing the rest of a line.
_ALLOWED = rb"\x1b\[[0-9;:]{0,30}[mK]"
#: Other control characters except backspace, tab, line end and carriage return, including those from U+0080 in UTF-8.
_FORBIDDEN = re.compile(rb"(%s)|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]" % _ALLOWED)
#: The possible beginning of such a sequence.
_BEGUN = re.compile(rb"(\x1b(\[[0-9;:]{0,30})?|\xc2)\Z")


class Harmless:
    """Shows forbidden characters of a stream as text."""

    def __init__(self) -> None:
        self._left = b""

    def shown(self, data: bytes) -> bytes:
        """Return what to print after this piece of the stream; empty bytes mark its end."""
        whole = self._left + data
        begun = _BEGUN.search(whole) if data else None
        end = begun.start() if begun else len(whole)
        self._left = whole[end:]
        return _FORBIDDEN.sub(lambda match: match.group(1) or b"\\x%02x" % match.group()[-1], whole[:end])
