"""The reference that is made from the code has every command, key and code."""

import pytest

from deployer.cli.laptop import main as laptop
from deployer.cli.laptop.handbook import handbook
from deployer.contract import pages
from deployer.system import documents


@pytest.mark.thorough  # reads all parsers
def test_every_command_and_code_has_its_place() -> None:
    made = handbook(str.upper)
    for name in laptop.front().table:
        assert f"### deployer {name}\n" in made["commands-of-the-laptop.md"]
    assert "### deployer.pyz take-plan\n" in made["commands-of-the-site.md"]
    assert "| `--ranks-per-node R` |" in made["commands-of-the-site.md"]
    assert "| `jobs.NAME.command` |" in made["keys-of-definitions.md"]
    assert "| `partitions.NAME.node.cores` |" in made["keys-of-profiles.md"]
    assert "| `DEPLOYER_SITE` |" in made["variables.md"]
    assert "](../job-codes.md#MPI.VERSION" in made["codes.md"]
    assert made["codes.md"].count("\n| [`") == len(pages.pages(documents.read()))
