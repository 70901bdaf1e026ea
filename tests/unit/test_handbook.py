"""The reference that is made from the code has every command, key and code."""

import re

import pytest

from deployer.cli.laptop import main as laptop
from deployer.connected.image.definition import definition
from deployer.connected.site_profile import profile
from deployer.system.tool import documents
from scripts.handbook import handbook
from scripts.reference import Schema, table

#: A key, its type, what it means.
_ROW = re.compile(r"\| `(\S+)` \| (.*?): (\S.*) \| .*\|$")
#: Types whose values the type itself shows.
_SHOWN = re.compile(r"keys|list of keys|boolean|(list of )?`.*`")
#: Keys that only capture writes, and texts that their description defines.
_NO_EXAMPLE = ("facts.sha256", "base.image", "notes")


@pytest.mark.parametrize("schema", [definition.schema(), profile.schema()])
def test_every_key_has_a_description_with_unit_and_example(schema: Schema) -> None:
    rows = table(schema).splitlines()[2:]
    for row in rows:
        found = _ROW.match(row)
        assert found, row
        key, kind, text = found.groups()
        assert len(text.split()) > 1, row
        assert not key.endswith("_mb") or "MiB" in text, row
        assert not key.endswith("_days") or "days" in text, row
        assert _SHOWN.fullmatch(kind) or "`" in text or key in _NO_EXAMPLE, row


@pytest.mark.thorough  # reads all parsers
def test_every_command_and_code_has_its_place() -> None:
    made = handbook(str.upper)
    for name in laptop.front().table:
        assert f"### deployer {name}\n" in made["commands-of-the-laptop.md"]
    assert " [--accept CODE] [--mpi NAME]" in made["commands-of-the-laptop.md"]
    assert "### deployer.pyz take-plan\n" in made["commands-of-the-site.md"]
    assert "| `--ranks-per-node R` |" in made["commands-of-the-site.md"]
    assert "| `jobs.NAME.command` |" in made["keys-of-definitions.md"]
    assert "| `partitions.NAME.node.cores` |" in made["keys-of-profiles.md"]
    assert "| `DEPLOYER_SITE` |" in made["variables.md"]
    assert "](../job-codes.md#MPI.VERSION" in made["codes.md"]
    assert made["codes.md"].count("\n| [`") == len(documents.every_page())
