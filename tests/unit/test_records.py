"""docs/records.md names the keys that programs find in our records: those that the code writes, all of them."""

import re

from deployer.connected.deploy.deploy import Deployed
from deployer.connected.transfer.push import FolderPush, Pushed
from deployer.connected.transfer.push_plan import PushedPlan
from deployer.contract.rehearsal.rehearsal import Rehearsal
from deployer.contract.rules.findings import Finding
from deployer.site.proof import result
from deployer.site.storage.events import Event
from tests.conftest import ROOT
from tests.unit.site.proof.test_result import LAUNCH, after, good, probe

PAGE = (ROOT / "docs" / "records.md").read_text()
_STAMP = {"schema", "format", "min_reader"}


def section(title: str) -> set[str]:
    """Return the keys in the first column of a section's table."""
    text = re.split(r"\n#+ ", PAGE.partition(f"# {title}\n")[2])[0]
    return {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


def command(name: str) -> set[str]:
    """Return the keys in the row of a command."""
    row = next(row for row in PAGE.splitlines() if row.startswith(f"| `{name}` |"))
    return set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)|: .*", "", row.split("|")[2])))


def test_result_json() -> None:
    record = result.assemble(LAUNCH, good(probes=[probe(0), probe(1)]), after())
    assert section("result.json") == set(record)
    assert section("A rank") == set(record["ranks"][0])
    assert section("A finding") == set(Finding._fields)
    assert section("An event") == {*Event._fields, *_STAMP}


def test_records_of_commands() -> None:
    assert command("deploy") - {"stages", "status"} == set(Deployed._fields)
    assert command("push") == set(Pushed("", 0, 0, 0, None, 0.0, 0.0, "").record())
    assert command("push --to") == set(FolderPush._fields)
    assert command("push --plan") == set(PushedPlan._fields)
    assert section("A rehearsal") == {*Rehearsal._fields, "verdict", *_STAMP}
