import os
from pathlib import Path

import pytest

from deployer.contract.base.errors import IntegrityError
from deployer.contract.site.plan import Bind
from deployer.site.container import container
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.install import install as installing
from deployer.site.storage.store import Store
from deployer.system.observe import observations
from tests import bundles, running
from tests.wheels import file_name, wheel


def install(tmp_path, store, *members):
    """Install a bundle with wheels, (folder, name, bytes) each, and return its image."""
    extra = [("deployer/%s/%s" % (folder, name), data) for folder, name, data in members]
    path = bundles.write(tmp_path / "b.tar", extra=extra)
    return installing.install(str(path), store, jobs=2).image


def paths(folder):
    return sorted(
        os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names
    )


def read(*parts):
    return Path(os.path.join(*parts)).read_bytes()


def test_variants_stand_apart(tmp_path, store):
    name = file_name("horovod", "0.28.1")
    members = [
        ("variants/%s" % abi, name, wheel({"horovod/abi.py": abi.encode()}, "horovod", "0.28.1"))
        for abi in ("mpich-abi", "openmpi")
    ]
    image = install(tmp_path, store, *members)
    for abi in ("mpich-abi", "openmpi"):
        assert read(image.variant(abi), "lib/horovod/abi.py") == abi.encode()
    assert not os.path.exists(image.wheels)


def test_an_overlay_is_installed_beside_the_image(tmp_path, store):
    image = install(tmp_path, store, ("wheels", file_name(), wheel({"demo/__init__.py": b"x = 1\n"})))
    info = ["lib/demo-1.0.dist-info/" + name for name in ("METADATA", "RECORD", "WHEEL")]
    assert paths(image.wheels) == [*info, "lib/demo/__init__.py"]
    assert image.receipt.files == len(bundles.ENTRIES) + 4 + 3  # with the folders
    assert sorted(os.listdir(image.folder)) == ["bundle.json", "inventory", "receipt.json", "rootfs", "wheels"]


@pytest.mark.parametrize(
    "name", ["rootfs", "app", "wheels/x", "variants", "variants/..", "variants/A", "../wheels", ""]
)
def test_only_overlays_with_their_names_are_installed(tmp_path, store, name):
    path = tmp_path / "b.tar"
    data = bundles.build(extra=[("deployer/wheels/" + file_name(), wheel({}))])
    path.write_bytes(bundles.reseal(data, lambda record: record["overlays"][0].update(name=name)))
    with pytest.raises(IntegrityError, match="invalid name of an overlay"):
        installing.install(str(path), store)


@pytest.mark.parametrize("change", [lambda found: found.append(found[0]), lambda found: found[0].update(name="engine")])
def test_each_overlay_is_one_member(tmp_path, store, change):
    path = tmp_path / "b.tar"
    data = bundles.build(extra=[("deployer/wheels/" + file_name(), wheel({}))])
    path.write_bytes(bundles.reseal(data, lambda record: change(record["overlays"])))
    with pytest.raises(IntegrityError, match=r"an overlay is missing, or is listed twice|stray segment"):
        installing.install(str(path), store)


def test_room_counts_files_and_bytes_as_they_will_be(tmp_path, store, monkeypatch):
    asked = []
    monkeypatch.setattr(installing.space, "check", lambda folder, size, entries: asked.append((size, entries)))
    install(tmp_path, store)
    data = wheel({"demo/zeros": bytes(10**6)})
    other = Store(str(tmp_path / "other"))  # the first has the layer already
    install(tmp_path, other, ("wheels", file_name(), data))
    (size, entries), (more, others) = asked
    assert others - entries == 4 + 3 + 1  # its files and folders, and the overlay as a member
    assert 10**6 <= more - size < 10**6 + 1000


# ------------------------------------------------------------------------------------------------ in the container


def made(store, plan=running.PLAN, **options):
    image = store.find("hello")
    return container.make(image, image.manifest().image, plan, RUNTIMES["charliecloud"], [], {}, **options)


def test_overlays_come_before_the_images_own_packages(tmp_path):
    store = running.store(tmp_path)
    image = store.find("hello")
    assert "PYTHONPATH" not in made(store).environment
    os.makedirs(os.path.join(image.wheels, "lib"))
    only = made(store)
    assert Bind(image.wheels, "/deployer/wheels", "the bundle's wheelhouse") in only.binds
    assert (only.environment["PYTHONPATH"], only.environment["PATH"]) == ("/deployer/wheels/lib", "/usr/bin:/bin")
    for name in ("lib", "bin"):
        os.makedirs(os.path.join(image.variant("openmpi"), name))
    os.makedirs(os.path.join(image.wheels, "bin"))
    both = made(store, variant=image.variant("openmpi"))
    assert both.environment["PYTHONPATH"] == "/deployer/variant/lib:/deployer/wheels/lib"
    assert both.environment["PATH"] == "/deployer/variant/bin:/deployer/wheels/bin:/usr/bin:/bin"
    assert [bind.target for bind in both.binds][-2:] == ["/deployer/variant", "/deployer/wheels"]


def test_the_hook_of_a_rehearsal_comes_before_everything(tmp_path):
    """A sitecustomize of the bundle's packages would hide it; the rest is as without it."""
    plan = running.PLAN._replace(environment={observations.HOOK_VARIABLE: "/deployer/hook"})
    store = running.store(
        tmp_path, image=running.IMAGE._replace(env=["PYTHONPATH=/opt/own", observations.HOOK_VARIABLE + "=/evil"])
    )
    os.makedirs(os.path.join(store.find("hello").wheels, "lib"))
    found = made(store, plan).environment
    assert found["PYTHONPATH"] == "/deployer/hook:" + made(store).environment["PYTHONPATH"]
    assert observations.HOOK_VARIABLE not in found


def test_tensorflow_is_told_of_plugins_among_the_overlays(tmp_path):
    name = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
    store = running.store(tmp_path)
    os.makedirs(os.path.join(store.find("hello").wheels, "lib", "tensorflow"))
    assert name not in made(store).environment
    os.makedirs(os.path.join(store.find("hello").wheels, "lib", "tensorflow-plugins"))
    assert made(store).environment[name] == "/deployer/wheels/lib/tensorflow-plugins"


def test_a_pythonpath_of_the_image_stays_behind_the_overlays(tmp_path):
    image = running.IMAGE._replace(env=["PYTHONPATH=/opt/own"])
    store = running.store(tmp_path, image=image)
    assert made(store).environment["PYTHONPATH"] == "/opt/own"
    os.makedirs(os.path.join(store.find("hello").wheels, "lib"))
    assert made(store).environment["PYTHONPATH"] == "/deployer/wheels/lib:/opt/own"
