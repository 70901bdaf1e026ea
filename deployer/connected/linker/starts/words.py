"""Words of a command, including words that are only known at run time. Pure."""

from collections.abc import Sequence


class UnknownWord(str):
    """A word whose value is unknown; its text is the source, for messages.

    Attributes:
        prefix: the known start of its value.
        single: whether it is exactly one word.
    """

    __slots__ = ("prefix", "single")

    prefix: str
    single: bool

    def __new__(cls, source: str, prefix: str = "", single: bool = False) -> "UnknownWord":
        word = super().__new__(cls, source)
        word.prefix, word.single = prefix, single
        return word


def known_or_none(value: object) -> str | None:
    """Return a value if it is a known string, otherwise None."""
    return value if isinstance(value, str) and not isinstance(value, UnknownWord) else None


def known(words: Sequence[str]) -> bool:
    """Return whether all the words are known."""
    return not any(isinstance(word, UnknownWord) for word in words)
