"""Rules for definitions: their codes are in rules.yaml, and each kind of rule has a module."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from deployer.connected.ground import own_data
from deployer.contract.base.errors import Refused
from deployer.contract.base.text import counted
from deployer.contract.rules.findings import Finding, Rule, errors

#: The codes of ``lint``.
RULES: dict[str, Rule] = {
    code: Rule(**texts) for code, texts in own_data.load_yaml(Path(__file__).with_name("rules.yaml")).items()
}


def finding(code: str, subject: str, **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``. ``values`` are inserted into its message and remedy."""
    return RULES[code].about(code, subject, **values)


def is_own(word: str) -> bool:
    """Return whether a word of ``--accept`` is one of our codes, or ``CODE:SUBJECT``."""
    return word.partition(":")[0] in RULES


def kept(findings: Iterable[Finding], accept: Collection[str] = ()) -> list[Finding]:
    """Return the findings whose code, or ``CODE:SUBJECT``, is not accepted."""
    return [item for item in findings if not {item.code, f"{item.code}:{item.subject}"} & {*accept}]


def refuse_errors(findings: Iterable[Finding], accept: Collection[str] = ()) -> None:
    """Raise Refused if there are errors that are not accepted. Several errors are listed one per line."""
    refused = errors(kept(findings, accept))
    lines = [f"{item.subject}: {item.code}: {item.message}" for item in refused]
    if len(refused) == 1:
        raise Refused(lines[0], refused[0].remedy)
    if refused:
        hint = "`deployer explain CODE` has a page for each code"
        raise Refused(f"{counted(len(refused), 'error')} in the definition or its image", hint, lines)
