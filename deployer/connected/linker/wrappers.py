"""Programs that start the command in their own words: env, nice, timeout... Pure."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class Options(NamedTuple):
    """How a wrapper's own words are read.

    Attributes:
        flags: letters of options without a value.
        valued: letters of options with a value, in the same word or the next.
        long: long options without a value, and those with ``=VALUE``.
        long_valued: long options with a value, in the same word or the next.
        operands: words of its own before the command.
    """

    flags: str = ""
    valued: str = ""
    long: Sequence[str] = ()
    long_valued: Sequence[str] = ()
    operands: int = 0


#: Each is followed only with options that are known here.
WRAPPERS: Mapping[str, Options] = {
    "chrt": Options("abfimorv", "TPD", ("batch", "fifo", "idle", "other", "rr", "verbose", "reset-on-fork"), (), 1),
    "env": Options("i0v", "u", ("ignore-environment", "debug"), ("unset",)),
    "ionice": Options("t", "cn", ("ignore",), ("class", "classdata")),
    "nice": Options("0123456789", "n", (), ("adjustment",)),
    "nohup": Options(),
    "numactl": Options("al", "iNmpCP", ("all", "localalloc", "balancing"), (
        "interleave", "cpunodebind", "membind", "preferred", "physcpubind", "weighted-interleave", "preferred-many",
    )),
    "setsid": Options("cfw", "", ("ctty", "fork", "wait")),
    "stdbuf": Options("", "ioe", (), ("input", "output", "error")),
    "taskset": Options("ac", "", ("all-tasks", "cpu-list"), (), 1),
    "time": Options("pvaq", "fo", ("portability", "verbose", "append", "quiet"), ("format", "output")),
    "timeout": Options("v", "ks", ("foreground", "preserve-status", "verbose"), ("kill-after", "signal"), 1),
}  # fmt: skip


class Inner(NamedTuple):
    """The command that a wrapper starts, or why it is unclear."""

    words: Sequence[str]
    unclear: str = ""


def inner(words: Sequence[str]) -> Inner | None:
    """Return the command that a wrapper starts; None if the first word is not a wrapper."""
    name = posixpath.basename(words[0])
    options = WRAPPERS.get(name)
    if options is None:
        return None
    rest = _command(list(words[1:]), options)
    while rest and name == "env" and _ASSIGNMENT.match(rest[0]):
        if rest[0].startswith("PATH="):
            return Inner((), f"{name} sets PATH")
        rest = rest[1:]
    return Inner(rest) if rest else Inner((), f"{name} with words that are not understood: {words[1:]!r:.80}")


def _command(words: list[str], options: Options) -> list[str]:
    """Return what follows a wrapper's own options and operands; nothing if one of them is unknown."""
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, equal, _ = word[2:].partition("=")
        if word.startswith("--"):
            if name in options.long_valued:
                words = words if equal else words[1:]
            elif name not in options.long or equal:
                return []
            continue
        letters = word[1:].lstrip(options.flags)
        if letters:
            if letters[0] not in options.valued:
                return []
            words = words if letters[1:] else words[1:]
    return words[options.operands :]
