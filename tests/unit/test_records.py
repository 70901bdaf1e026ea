"""docs/records.md names the keys that programs find in our records: those that the code writes, all of them."""

import re

from deployer.contract.rehearsal.rehearsal import Rehearsal
from deployer.contract.rules.findings import Finding
from deployer.site.proof import result
from deployer.site.storage.events import Event
from tests.checked_records import SCHEMAS
from tests.conftest import ROOT
from tests.unit.site.proof.test_result import LAUNCH, after, good, probe

PAGE = (ROOT / "docs" / "records.md").read_text()
_STAMP = {"schema", "format", "min_reader"}


def section(title: str) -> set[str]:
    """Return the keys in the first column of a section's table."""
    text = re.split(r"\n#+ ", PAGE.partition(f"# {title}\n")[2])[0]
    return {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


def test_result_json() -> None:
    record = result.assemble(LAUNCH, good(probes=[probe(0), probe(1)]), after())
    assert section("result.json") == set(record)
    assert section("A rank") == set(record["ranks"][0])
    assert section("A finding") == set(Finding._fields)
    assert section("An event") == {*Event._fields, *_STAMP}


def test_other_records() -> None:
    job = SCHEMAS["status"]["$defs"]["Status"]["properties"]
    assert section("A job") == set(job) - {
        "repeated", "own", "continued_by", "created", "fetched", "result", "task", "parameters", "figures"
    }  # fmt: skip
    assert section("A rehearsal") == {*Rehearsal._fields, "verdict", *_STAMP}
