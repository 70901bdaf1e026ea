"""A suggestion for a word that is not known."""

from typing import Iterable


def guess(word: str, known: Iterable[str]) -> str:
    """Return ``, perhaps you meant 'x'`` if a known word is similar to ``word``, else an empty text."""
    import difflib  # only an error needs it, and each rank of a job starts Python anew

    close = difflib.get_close_matches(word, [each for each in known if each != word], n=1)
    return ", perhaps you meant %r" % close[0] if close else ""
