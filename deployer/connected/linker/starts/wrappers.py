"""Programs that start another command from their own arguments: env, nice, timeout..."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import own_data
from deployer.connected.linker.starts.words import UnknownWord

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class Options(NamedTuple):
    """The options and operands of a wrapper.

    Attributes:
        flags: letters of options without a value.
        valued: letters of options with a value, in the same word or the next.
        long: long options without a value, and those with ``=VALUE``.
        long_valued: long options with a value, in the same word or the next.
        operands: the number of its own words before the command.
    """

    flags: str = ""
    valued: str = ""
    long: Sequence[str] = ()
    long_valued: Sequence[str] = ()
    operands: int = 0


#: A wrapper is followed only if its options are listed here.
WRAPPERS = {name: Options(**known) for name, known in own_data.load_yaml(Path(__file__).with_suffix(".yaml")).items()}


class Inner(NamedTuple):
    """The command that a wrapper starts.

    Attributes:
        words: its words; empty if it is unclear.
        unclear: why it is unclear.
        environment: variables that are set; variables with the value None are unset.
        cleared: whether it starts with an empty environment.
        folder: the folder that it starts in, if different.
    """

    words: Sequence[str]
    unclear: str = ""
    environment: Mapping[str, str | None] = {}
    cleared: bool = False
    folder: str = ""


def inner(words: Sequence[str]) -> Inner | None:
    """Return the command that a wrapper starts; None if the first word is not a wrapper."""
    name = posixpath.basename(words[0])
    if name == "env":
        return _env(list(words[1:])) if words[1:] else Inner(())  # prints the variables
    options = WRAPPERS.get(name)
    if options is None:
        return None
    rest = _command(list(words[1:]), options)
    return Inner(rest) if rest else _not_understood(name, words[1:])


def _not_understood(name: str, words: Sequence[str]) -> Inner:
    return Inner((), f"{name} {' '.join(words)[:60]}: the words of {name} are not understood")


def _env(words: list[str]) -> Inner:
    """Return the command that ``env`` starts."""
    rest = list(words)
    environment: dict[str, str | None] = {}
    cleared, folder = False, ""
    while rest and rest[0].startswith("-") and not isinstance(rest[0], UnknownWord):
        word = rest.pop(0)
        name, value = _env_option(word, rest)
        if name == "-i":
            cleared = True
        elif name == "-u":
            environment[value] = None
        elif name == "-C":
            folder = value
        elif name == "-S":
            rest = value.split() + rest
        elif word == "--":
            break
        elif word not in ("-v", "--debug"):
            return _not_understood("env", words)
    while rest and (match := _ASSIGNMENT.match(rest[0].prefix if isinstance(rest[0], UnknownWord) else rest[0])):
        word, value = rest.pop(0), match.string[match.end() :]
        if not _is_one(word):
            return _not_understood("env", words)
        environment[match[0][:-1]] = UnknownWord(word, value) if isinstance(word, UnknownWord) else value
    return Inner(rest, "", environment, cleared, folder) if rest else _not_understood("env", words)


def _env_option(word: str, rest: list[str]) -> tuple[str, str]:
    """Return an option of ``env`` as its letter and value, which is taken from ``rest`` if it is the next word."""
    if word in ("-i", "-", "--ignore-environment"):
        return "-i", ""
    for letter, long in (("-u", "--unset"), ("-C", "--chdir"), ("-S", "--split-string")):
        value = ""
        if word in (letter, long) and rest and not isinstance(rest[0], UnknownWord):
            value = rest.pop(0)
        elif word.startswith(f"{long}="):
            value = word.partition("=")[2]
        elif word.startswith(letter):
            value = word[2:]
        if value and (letter != "-S" or re.fullmatch(r"[\w ./=:,+@-]+", value)):
            return letter, value
    return "", ""


def _command(words: list[str], options: Options) -> list[str]:
    """Return the words after a wrapper's own options and operands; empty if any of these is unknown."""
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if isinstance(word, UnknownWord):  # --name=$VALUE
            name, equal, _ = word.prefix[2:].partition("=")
            if not (word.single and equal and word.prefix.startswith("--") and name in options.long_valued):
                return []
            continue
        if word == "--":
            break
        name, equal, _ = word[2:].partition("=")
        if word.startswith("--"):
            if name not in (*options.long, *options.long_valued) or (equal and name in options.long):
                return []
            takes = name in options.long_valued and not equal
        else:
            letters = word[1:].lstrip(options.flags)
            if letters and letters[0] not in options.valued:
                return []
            takes = len(letters) == 1
        if takes and not _is_one(words.pop(0) if words else UnknownWord("")):
            return []
    own = words[: options.operands]
    if len(own) < options.operands or not all(map(_is_one, own)):
        return []
    return words[options.operands :]


def _is_one(word: str) -> bool:
    return not isinstance(word, UnknownWord) or word.single
