"""Where a profile's name leads, and whose file it must not lead to."""

import os
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile import search
from deployer.contract.base.errors import UsageError
from tests.others import somebody_else

HERE, OWN, TEAM = "work/site_profiles", "config/deployer/profiles", "team"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (HERE, OWN, TEAM):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DEPLOYER_PROFILES", f"{tmp_path / 'missing'}:{tmp_path / TEAM}")
    return tmp_path


def write(folder: Path, name: str, text: str = "extends: lab", title: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"format: 1\nname: {title}\n{text}\n")
    return path


def test_the_first_folder_wins_and_the_hidden_one_is_named(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search.find("lab") == search.CURATED / "lab.yaml"
    assert capsys.readouterr().err == ""
    for folder in (TEAM, OWN, HERE):
        write(places / folder, "lab", title=folder.partition("/")[0])
        assert profiles.load("lab").name == folder.partition("/")[0]
    assert profiles.load("lab").workspace == "~/deployer"  # each "extends: lab" leads to the next folder
    assert (places / HERE / "lab.yaml").samefile(search.find("lab"))
    assert f"deployer: profile lab: site_profiles/lab.yaml is used, not {places / OWN}" in capsys.readouterr().err
    (places / HERE / "lab.yaml").unlink()
    assert search.find("lab") == places / OWN / "lab.yaml"


def test_show_prints_the_origin_of_each_file(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(places / OWN, "mine", "extends: group")
    write(places / TEAM, "group")
    assert main(["profile", "show", "mine"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [
        "# ../config/deployer/profiles/mine.yaml: the user's profiles",
        "# ../team/group.yaml: $DEPLOYER_PROFILES",
        f"# {os.path.relpath(search.CURATED / 'lab.yaml')}: came with deployer",
    ]


def test_list_has_all_and_a_broken_one_does_not_hide_the_others(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(places / HERE, "mine")
    write(places / HERE, "mine-captured")
    write(places / HERE, "schema")
    write(places / TEAM, "broken", "nonsense: 1")
    assert main(["profile", "list"]) == 0
    said = capsys.readouterr()
    named = {line.split()[0] for line in said.out.splitlines()[1:] if line[0] != " "}
    assert named == {"mine", *search.names(skip_own=True)}
    assert "site_profiles/mine.yaml" in said.out
    assert "broken.yaml" in said.err


def test_a_profile_that_came_with_deployer_extends_only_such(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(places / HERE, "lab")
    assert search.find("lab", search.CURATED / "other.yaml") == search.CURATED / "lab.yaml"
    assert search.is_curated(search.CURATED / "lab.yaml")
    assert not search.is_curated(places / HERE / "lab.yaml")


def test_what_everyone_can_write_is_not_found_by_its_name(places: Path) -> None:
    path = write(places / HERE, "mine")
    for each in (path, path.parent):
        mode = each.stat().st_mode
        each.chmod(mode | 0o1002)
        with pytest.raises(UsageError, match="can be written by everyone") as caught:
            profiles.load("mine")
        assert "if you trust it, give its path: ./site_profiles/mine.yaml" in caught.value.hint
        assert profiles.load("./site_profiles/mine.yaml").name == "mine"
        each.chmod(mode)
    assert profiles.load("mine").name == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chown")
def test_what_belongs_to_another_is_not_found_by_its_name(places: Path) -> None:
    path = write(places / HERE, "mine")
    os.chown(path, 2002, 2002)
    with pytest.raises(UsageError, match=r"mine\.yaml belongs to another user \(uid 2002\)"):
        profiles.load("mine")
    path.unlink()
    os.chown(path.parent, 2002, 2002)
    assert "lab" in search.names()
    os.chown(write(places / TEAM, "group"), 2002, 2002)  # a folder that the user named
    assert profiles.load("group").name == "mine"


def test_a_name_that_leads_nowhere_names_the_folders(places: Path) -> None:
    write(places / TEAM, "group")
    with pytest.raises(UsageError, match="no site profile is called 'grop', perhaps you meant 'group'") as caught:
        profiles.load("grop")
    assert str(places / TEAM) in caught.value.hint
    assert "missing" not in caught.value.hint


def test_a_name_of_a_file_in_this_folder_suggests_its_path() -> None:
    write(Path(), "cluster")
    with pytest.raises(UsageError, match=r"but here is a file cluster\.yaml") as caught:
        profiles.load("cluster")
    assert caught.value.hint == "give its path: cluster.yaml"
    with pytest.raises(UsageError, match="no site profile is called 'cluster'"):
        profiles.load(str(write(Path(), "mine", "extends: cluster")))


def test_a_folder_that_cannot_be_read_is_an_error(places: Path) -> None:
    write(places / OWN, "mine")
    with somebody_else(), pytest.raises(UsageError, match=r"cannot access .*/config/deployer/profiles/mine"):
        profiles.load("mine")
