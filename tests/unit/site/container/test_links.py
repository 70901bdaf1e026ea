"""Links of a job on the site: one for each file of the data, in folders that are real."""

import os

import pytest

from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle.manifest import DataNeed
from deployer.site.container import links
from deployer.site.storage.data import InstalledData


class Image:
    def __init__(self, folder):
        self.data, self.app = str(folder / "data"), str(folder / "app")


@pytest.fixture
def image(tmp_path):
    for path in ("image/data/keras/datasets/mnist.npz", "image/app/y.txt", "other/data/set/a/b", "other/data/set/c"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return Image(tmp_path / "image")


def test_files_are_links_and_folders_are_real(image, tmp_path):
    found = [InstalledData(DataNeed("set", "other"), Image(tmp_path / "other"))]
    asked = {"~/.keras": "data/keras", "set": "data/set", "y": "app/y.txt", "all": "app"}
    made = dict(links.resolve(image, found, asked))
    assert made == {
        "~/.keras/datasets/mnist.npz": "/deployer/data/keras/datasets/mnist.npz",
        "set/a/b": "/deployer/data/set/a/b",
        "set/c": "/deployer/data/set/c",
        "y": "/deployer/app/y.txt",
        "all/y.txt": "/deployer/app/y.txt",
    }
    (tmp_path / "home").mkdir()
    links.make(str(tmp_path / "home"), {".keras/datasets/mnist.npz": "/deployer/data/keras/datasets/mnist.npz"})
    folder = tmp_path / "home/.keras/datasets"
    assert os.path.isdir(str(folder))
    assert not os.path.islink(str(folder))
    assert os.readlink(str(folder / "mnist.npz")) == "/deployer/data/keras/datasets/mnist.npz"


def test_what_is_there_is_never_replaced(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(DeployerError, match="make the links of the job"):
        links.make(str(tmp_path), {"x": "/deployer/data/x"})
    assert (tmp_path / "x").read_text() == "mine"


def test_a_source_that_is_missing_or_odd_is_refused(image):
    with pytest.raises(UsageError, match="the bundle has no data/keras/none"):
        links.resolve(image, [], {"x": "data/keras/none"})
    os.symlink("/etc", os.path.join(image.data, "keras", "odd"))
    with pytest.raises(UsageError, match="data/keras/odd is neither a file nor a folder"):
        links.resolve(image, [], {"x": "data/keras"})


def test_too_many_files_are_refused(image, monkeypatch):
    monkeypatch.setattr("deployer.contract.site.links.MOST", 1)
    with pytest.raises(Refused, match="has over 1 files"):
        links.resolve(image, [], {"~/.keras": "data/keras", "all": "app"})


def test_the_largest_folders_become_links_where_the_files_are_too_many(image, monkeypatch):
    for path, count in (("a", 3), ("b", 2), ("c/d", 2), ("c", 1)):
        os.makedirs(os.path.join(image.data, "many", path), exist_ok=True)
        for number in range(count):
            open(os.path.join(image.data, "many", path, str(number)), "w").close()
    monkeypatch.setattr("deployer.contract.site.links.MOST", 6)
    found = [place for place, _ in links.resolve(image, [], {"x": "data/many"})]
    assert found == ["x/a", "x/b/0", "x/b/1", "x/c/0", "x/c/d/0", "x/c/d/1"]
    monkeypatch.setattr("deployer.contract.site.links.MOST", 4)
    assert dict(links.resolve(image, [], {"x": "data/many"})) == {
        "x/" + place: "/deployer/data/many/" + place for place in ("a", "b", "c/0", "c/d")
    }
    monkeypatch.setattr("deployer.contract.site.links.MOST", 3)
    with pytest.raises(Refused, match="over 3 files"):
        links.resolve(image, [], {"x": "data/many"})


@pytest.mark.thorough
def test_folders_within_folders_are_read_without_recursion_and_counted(image, monkeypatch):
    made = [os.path.join(image.app, "deep")]
    for _ in range(1100):
        os.mkdir(made[-1])
        made.append(made[-1] + "/d")
    assert links.resolve(image, [], {"x": "app/deep"}) == []
    monkeypatch.setattr(links.links, "MOST", 100)
    with pytest.raises(Refused, match="app/deep has over 1000 folders"):
        links.resolve(image, [], {"x": "app/deep"})
    for path in reversed(made[:-1]):  # pytest removes folders by recursion
        os.rmdir(path)
