"""Rules for definitions: their codes in rules.yaml, and one module per kind."""

from pathlib import Path
from typing import Any

from deployer.connected.ground import own_data
from deployer.contract import findings
from deployer.contract.findings import Finding, Rule

#: The codes of ``lint``.
RULES: dict[str, Rule] = {
    "command.missing": findings.RULES["command.missing"],
    **{code: Rule(**texts) for code, texts in own_data.read(Path(__file__).with_name("rules.yaml")).items()},
}


def finding(code: str, subject: str, **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``. ``values`` are inserted in message and remedy."""
    return RULES[code].about(code, subject, **values)
