"""Placeholders in a site profile: variables of the user's login shell, in folders and accounts. Pure.

This module, never a shell, replaces ``$NAME`` and ``${NAME}`` on the site. A value that is empty or could be more than
a part of a path or a name is an error.
"""

import re
from typing import Collection, Dict, Iterable, List, Mapping

from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import is_name, printable

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_PLACEHOLDER = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})\}})")
#: Characters without special meaning in a shell, in a batch system's options, or in a bind.
_SAFE = re.compile(r"[A-Za-z0-9_./@%+=-]+")
_SHOWN = 60
#: Begins each line of a login shell's answer, because the shell may print other text too.
_MARK = "deployer-variable "


def names(text: str) -> List[str]:
    """Return the variables that a text refers to, each once."""
    return list(dict.fromkeys(match.group(1) or match.group(2) for match in _PLACEHOLDER.finditer(text)))


def check(text: str) -> str:
    """Return ``text`` if each ``$`` in it begins a placeholder. Raises UsageError."""
    if "$" in _PLACEHOLDER.sub("", text):
        raise UsageError(
            f"{printable(text[:_SHOWN])}: a $ is not followed by a variable's name",
            "write $NAME or ${NAME}; defaults (${NAME:-x}) and commands are not expanded",
        )
    return text


def sample(text: str) -> str:
    """Return a text with plain words in place of its placeholders, to check its form."""
    return _PLACEHOLDER.sub(lambda match: "x" if match.start() else "/x", text)


def expand(text: str, environment: Mapping[str, str], key: str) -> str:
    """Return a text with the values of its placeholders.

    Args:
        environment: the variables of the user's login shell.
        key: the profile's key for the text, for errors.

    Raises:
        UsageError: a variable is unset or empty, or its value is unsafe.
    """
    return _PLACEHOLDER.sub(lambda match: _value(match.group(1) or match.group(2), environment, key, text), check(text))


def question(wanted: Iterable[str]) -> str:
    """Return commands for the standard input of any login shell (even csh) that print the values of variables.

    Raises:
        ValueError: a name is not a valid variable name.
    """
    lines = []
    for name in wanted:
        if not is_name(name):
            raise ValueError(name)
        lines.append(f'echo "{_MARK}{name}=`printenv {name}`"\n')
    return "".join(lines)


def answers(said: str, wanted: Collection[str]) -> Dict[str, str]:
    """Return the non-empty values in a login shell's answer."""
    lines = [line[len(_MARK) :].partition("=") for line in said.splitlines() if line.startswith(_MARK)]
    return {name: value for name, _, value in lines if name in wanted and value}


def _value(name: str, environment: Mapping[str, str], key: str, text: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise UsageError(
            f"{key} of the site's profile is {text}, and ${name} is empty or not set in your login shell",
            "set it in the file that your login shell reads (~/.bash_profile), or ask the site for its value",
        )
    if not _SAFE.fullmatch(value) or value.startswith("-") or ".." in value.split("/"):
        raise UsageError(
            f"{key} of the site's profile is {text}, and the value of ${name} is unsafe: '{printable(value[:_SHOWN])}'",
            "a value has letters, digits and _ . / @ % + = -, does not begin with -, and has no part ..",
        )
    return value
