"""An image that lost files says which, and is installed anew."""

import os
import shutil

import pytest

from deployer.contract.base.errors import IntegrityError, Refused
from deployer.site.install import install as installing
from deployer.site.install import remove
from deployer.site.storage import inventory
from tests import bundles


@pytest.fixture
def path(tmp_path):
    return str(bundles.write(tmp_path / "b.tar", extra=[("deployer/app/train.py", b"pass")]))


def test_a_whole_image_lacks_nothing(store, path):
    image = installing.install(path, store).image
    found = inventory.check(image)
    assert found.missing == 0
    walks = [entry for folder in (image.folder, image.layers[0]) for entry in os.walk(folder)]
    here = sum(len(folders) + len(names) for _, folders, names in walks)
    assert found.entries == here - 3  # but the lists themselves: two, and that of the frames


def test_files_that_went_are_named_and_a_second_install_brings_them_back(store, path):
    image = installing.install(path, store).image
    odd = b"etc/odd\xff\nname"
    os.unlink(os.path.join(os.fsencode(image.rootfs), odd))
    os.unlink(os.path.join(image.app, "train.py"))
    with pytest.raises(IntegrityError) as error:
        inventory.check(image)
    line = error.value.lines()[0]
    assert "2 of its 13 files and folders are gone: app/train.py, rootfs/etc/odd\\xff name" in line
    assert "`install BUNDLE.tar`" in error.value.hint
    again = installing.install(path, store)
    assert (again.known, inventory.gone(again.image).missing) == (False, 0)
    assert os.listdir(store.images) == [os.path.basename(image.folder)]
    assert installing.install(path, store).known


def test_the_kept_bundle_is_named_as_the_remedy(store, path):
    image = installing.install(path, store).image
    kept = installing.keep(path, store, image)
    assert f"`install {kept}`" in inventory.remedy(image)


def test_a_folder_that_went_whole(store, path):
    image = installing.install(path, store).image
    shutil.rmtree(os.path.join(image.rootfs, "bin"))
    found = inventory.gone(image)
    assert (found.missing, list(found.first)) == (3, ["rootfs/bin", "rootfs/bin/same", "rootfs/bin/tool"])


def test_without_the_list_the_count_of_the_layer_speaks(store, path):
    image = installing.install(path, store).image
    os.unlink(os.path.join(image.folder, inventory.LIST))
    os.unlink(os.path.join(image.layers[0], inventory.LIST))
    assert inventory.gone(image) == (len(bundles.ENTRIES), 0, [])
    os.unlink(os.path.join(image.rootfs, "bin", "tool"))
    found = inventory.gone(image)
    assert found.missing == 1
    assert str(found) == "1 of its 6 files and folders are gone"


def test_an_image_of_too_many_files_has_no_list_and_is_counted(store, path, monkeypatch):
    monkeypatch.setattr(inventory, "_MAX_COUNT", 3)
    image = installing.install(path, store).image
    assert not os.path.exists(os.path.join(image.folder, inventory.LIST))
    found = inventory.gone(image)
    assert found.missing == 0
    shutil.rmtree(os.path.realpath(image.rootfs))
    assert inventory.gone(image).missing == found.entries > 0


def test_a_job_that_uses_the_image_is_not_pulled_the_ground_from_under_its_feet(store, path, monkeypatch):
    image = installing.install(path, store).image
    os.unlink(os.path.join(image.rootfs, "bin", "tool"))

    def used(*_):
        raise Refused("job x uses tiny:1.0")

    monkeypatch.setattr(remove, "check_unused", used)
    with pytest.raises(Refused):
        installing.install(path, store)
    assert os.path.isdir(image.rootfs)
