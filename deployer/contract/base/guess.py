"""A suggestion for an unknown word."""

from typing import Iterable


def guess(word: str, known: Iterable[str]) -> str:
    """Return ``, perhaps you meant 'x'`` if a known word is similar to ``word``, else an empty text."""
    import difflib  # only errors need it, and each rank of a job starts its own Python

    close = difflib.get_close_matches(word, [other for other in known if other != word], n=1)
    return f", perhaps you meant {close[0]!r}" if close else ""
