"""Parts of directives, and texts from the output of commands, for all batch systems."""

import re
from typing import List, Optional, Sequence, Tuple

from deployer.contract.base.errors import UsageError
from deployer.site.capture.tools import Tools

#: Texts that every batch system reads as a single word.
_WORD = re.compile(r"[\w.+@%/=:&|*!()<>\[\]-]+$")


def printed(tools: Tools, *argv: str, any_status: bool = False) -> str:
    """Return the output of a command; empty if it is missing or failed."""
    answer = tools.ask(argv, any_status=any_status)
    return answer.out if answer else ""


def last_words(err: str) -> str:
    """Return the end of a command's error output as one line."""
    return " / ".join(err.strip().splitlines()[-3:]) or "it said nothing"


def whole_number(text: str) -> int:
    """Return a number; 0 if the text is not one."""
    return int(text) if text.isdigit() else 0


def counted(states: Sequence[str]) -> str:
    """Return how many nodes are in each state; a node without a state is free."""
    return ", ".join(f"{states.count(state)} {state or 'free'}" for state in sorted(set(states)))


def word(what: str, value: str) -> str:
    """Return ``value`` for a directive. Raises UsageError if a batch system could read it as more than one word."""
    if not _WORD.match(value):
        raise UsageError(f"{what} {value!r} cannot be in a directive", "use letters, digits and ._+@%/=:-")
    return value


def options(*wanted: Tuple[str, str, Optional[str]]) -> List[str]:
    """Return directives of an option and its value, from (option, its name for errors, value or nothing)."""
    return [f"{option} {word(what, value)}" for option, what, value in wanted if value]


def output_path(title: str, folder: str, name: str, special: str) -> str:
    """Return a file's path for a directive. Raises UsageError if it contains ``special``.

    Args:
        title: the batch system.
        special: a character to which the batch system gives a meaning.
    """
    path = f"{folder}/{name}"
    if special in path:
        raise UsageError(f"{title} cannot write to the path {path!r}", "use another --root")
    return word("the path", path)


def job_name(name: str) -> str:
    """Return a name that every batch system accepts: it begins with a letter."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    return plain if plain[:1].isalpha() else "j-" + plain
