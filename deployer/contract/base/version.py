"""Compare versions with one rule for all bundles, whatever scheme their makers use.

A version is split into numbers and words. All other characters separate, and anything after a ``+`` is ignored. Numbers
compare as numbers, words as text. A word sorts before the end, and the end before a number. Thus
``1.0-beta < 1.0rc1 < 1.0 < 1.0.1 < 1.2 < 1.10``. The aim is to agree with Semantic Versioning and PEP 440 on versions
that both allow.
"""

import re
from typing import List, Tuple

_WORD, _END, _NUMBER = 0, 1, 2

_Part = Tuple[int, int, str]


def key(version: str) -> List[_Part]:
    """Return the sort key of a version."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.partition("+")[0].lower())
    return [_part(part) for part in parts] + [(_END, 0, "")]


def is_older(version: str, other: str) -> bool:
    """Return whether ``version`` is older than ``other``."""
    return key(version) < key(other)


def _part(text: str) -> _Part:
    if not text.isdigit():
        return (_WORD, 0, text)
    digits = text.lstrip("0")
    return (_NUMBER, len(digits), digits)  # sorts like numbers, and is cheap for numbers of any length
