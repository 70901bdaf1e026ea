"""Output of a site as this terminal may receive it: text, colours and progress bars, and no other effect.

Other escape sequences could change the window's title or the clipboard, or overwrite what this program printed.
"""

import re

#: Colours (SGR), and the erasing of a line's rest.
_ALLOWED = rb"\x1b\[[0-9;:]{0,30}[mK]"
#: Other control characters but backspace, tab, line end and carriage return; in UTF-8 those from U+0080 on too.
_FORBIDDEN = re.compile(rb"(%s)|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]" % _ALLOWED)
#: What may be the beginning of one of these.
_BEGUN = re.compile(rb"(\x1b(\[[0-9;:]{0,30})?|\xc2)\Z")


class Harmless(object):
    """Shows forbidden characters of a stream as text."""

    def __init__(self) -> None:
        self._left = b""

    def shown(self, data: bytes) -> bytes:
        """Return what to print after this piece of the stream; empty bytes are the end of it."""
        whole = self._left + data
        begun = _BEGUN.search(whole) if data else None
        end = begun.start() if begun else len(whole)
        self._left = whole[end:]
        return _FORBIDDEN.sub(lambda found: found.group(1) or _escaped(found.group()), whole[:end])


def _escaped(char: bytes) -> bytes:
    return b"\\x%02x" % char[-1]
