"""What is refused because of the site's MPI is offered inside-out, if the image has a launcher."""

from types import SimpleNamespace
from typing import Any

import pytest

from deployer.connected.check.rules import inside
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding
from deployer.contract.rules.verdict import MISSING_FACTS


@pytest.mark.parametrize(
    ("code", "severity", "lacks", "offered"),
    [
        ("mpi.family", ERROR, None, True),
        ("plan.refused", ERROR, None, True),
        ("mpi.mixed", MISSING_FACTS, None, True),
        ("facts.mpi", MISSING_FACTS, None, False),
        ("mpi.family", WARNING, None, False),
        ("space.size", ERROR, None, False),
        ("mpi.family", ERROR, "no Python", False),
    ],
)
def test_inside_out_is_offered(
    monkeypatch: pytest.MonkeyPatch, code: str, severity: str, lacks: str | None, offered: bool
) -> None:
    monkeypatch.setattr(inside, "image_lacks", lambda *words: lacks)
    manifest: Any = SimpleNamespace(mpi=["mpich-abi"])
    image: Any = None
    found = list(inside.suggested([Finding(code, severity, "x", "y", "z")], "lab", manifest, image))
    assert [(each.code, each.severity) for each in found] == ([("launch.inside", NOTE)] if offered else [])
