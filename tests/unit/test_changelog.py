"""The changelog: the version that the package states is the newest one in it, in the form of Keep a Changelog."""

import datetime as dt
import re
from pathlib import Path

import deployer

CHANGELOG = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text()
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def test_the_newest_version_is_the_package_s_and_has_a_date_of_the_past() -> None:
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    versions = [heading for heading in headings if heading != "[Unreleased]"]
    assert headings[-len(versions) :] == versions, "what is not released is on top"
    newest = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})", versions[0])
    assert newest[1] == deployer.__version__
    assert dt.date.fromisoformat(newest[2]) <= dt.datetime.now(tz=dt.timezone.utc).date()


def test_a_version_has_only_the_sections_of_keep_a_changelog_each_once_and_in_order() -> None:
    for version in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert found == [name for name in SECTIONS if name in found]
