"""What a deploy remembers: a bundle is used again only while nothing that went into it has changed."""

from pathlib import Path

import pytest

from deployer.connected.bundle.contents import Contents
from deployer.connected.deploy import last_deploy
from deployer.connected.deploy.last_deploy import LastDeploy, inputs_of
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import UsageError

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    app, data, wheel = tmp_path / "app", tmp_path / "data", tmp_path / "a.whl"
    for folder in (app, data):
        folder.mkdir()
        (folder / "file").write_text("one")
    wheel.write_text("wheel")
    carried = {"deployer/wheels/a.whl": wheel}
    return Contents("x", "1", None, app=app, data={"digits": data}, carried=carried, identity=lambda: "image 1")


@pytest.mark.thorough
def test_the_same_inputs_have_the_same_digest(contents: Contents) -> None:
    profile = load("lab")
    assert inputs_of(contents, None, [profile], []) == inputs_of(contents, None, [load("lab")], [])


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["app/file", "data/file", "a.whl", "app/new", "data/new"])
def test_each_changed_file_changes_the_inputs(contents: Contents, tmp_path: Path, place: str) -> None:
    profile = load("lab")
    before = inputs_of(contents, None, [profile], [])
    (tmp_path / place).write_text("two")  # of the same size
    assert inputs_of(contents, None, [profile], []) != before


@pytest.mark.thorough
def test_mode_image_profile_and_options_change_the_inputs(contents: Contents, tmp_path: Path) -> None:
    profile = load("lab")
    archive = tmp_path / "base.tar"
    archive.write_text("base")
    (tmp_path / "app" / "file").chmod(0o755)
    found = [inputs_of(contents, None, [profile], [])]
    (tmp_path / "app" / "file").chmod(0o644)
    found += [
        inputs_of(contents, None, [profile], []),
        inputs_of(contents._replace(identity=lambda: "image 2"), None, [profile], []),
        inputs_of(contents, archive, [profile], []),
        inputs_of(contents, None, [load("lab-openmpi")], []),
        inputs_of(contents, None, [profile.model_copy(update={"workspace": "/elsewhere"})], []),
        inputs_of(contents, None, [profile], ["mpi.cxx"]),
        inputs_of(contents._replace(mpi=None), None, [profile], []),
        inputs_of(contents._replace(lean=True), None, [profile], []),
        inputs_of(contents._replace(version="2"), None, [profile], []),
    ]
    assert len(set(found)) == len(found)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar"
    assert last_deploy.recorded(bundle) == LastDeploy()
    last = LastDeploy("inputs", [1, 2, 3, 4], "sha256:00", "x-2026", ["--nodes=2", "--", "two\nlines"])
    last_deploy.write(bundle, last)
    assert last_deploy.recorded(bundle) == last
    assert last_deploy.recorded(tmp_path / "other" / "b.tar") == LastDeploy()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "file": "x"}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    bundle = tmp_path / "b.tar"
    last_deploy.write(bundle, LastDeploy("inputs", [1], "sha256:00"))
    last_deploy.record_of(bundle).write_text(text)
    assert last_deploy.recorded(bundle) == LastDeploy()


def test_two_deploys_into_one_bundle_exclude_each_other(tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar"
    with last_deploy.alone(bundle):
        with last_deploy.alone(tmp_path / "other.tar"):
            pass
        with pytest.raises(UsageError, match=r"another deploy into .*b\.tar runs"), last_deploy.alone(bundle):
            pass
    with last_deploy.alone(bundle):
        pass


def test_a_file_that_is_replaced_has_another_state(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    assert list(last_deploy.state_of(path)) == []
    path.write_text("one")
    before = last_deploy.state_of(path)
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(path)
    assert last_deploy.state_of(path) != before
