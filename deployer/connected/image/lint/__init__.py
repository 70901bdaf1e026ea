"""Rules for definitions: their codes are in rules.yaml, and each kind of rule has a module."""

from pathlib import Path
from typing import Any

from deployer.connected.ground import own_data
from deployer.contract.rules import findings
from deployer.contract.rules.findings import Finding, Rule

#: The codes of ``lint``.
RULES: dict[str, Rule] = {
    "command.missing": findings.RULES["command.missing"],
    **{code: Rule(**texts) for code, texts in own_data.load_yaml(Path(__file__).with_name("rules.yaml")).items()},
}


def finding(code: str, subject: str, **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``. ``values`` are inserted into its message and remedy."""
    return RULES[code].about(code, subject, **values)
