import os
import stat
import subprocess
import sys

import pytest

from deployer.contract.base.errors import IntegrityError
from deployer.contract.site.plan import Bind
from deployer.site.container import container
from deployer.site.install import install as installing
from deployer.site.install import wheels
from deployer.site.storage.store import Store
from deployer.system.observe import observations
from tests import bundles, running
from tests.wheels import file_name, wheel

SCRIPTS = b"[console_scripts]\ndemo-tool = demo:main\n"
FILES = {
    "demo/__init__.py": b"def main():\n    print('it works')\n    return 5\n",
    "demo/native.so": b"\x7fELF",
    "demo-1.0.data/scripts/given": b"#!python -E\nimport demo\ndemo.main()\n",
    "demo-1.0.data/data/share/demo.txt": b"data\n",
    "demo-1.0.dist-info/entry_points.txt": SCRIPTS,
}


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "root"))


def install(tmp_path, store, *members):
    """Install a bundle with wheels, (folder, name, bytes) each, and return its image."""
    extra = [(f"deployer/{folder}/{name}", data) for folder, name, data in members]
    path = tmp_path / "b.tar"
    path.write_bytes(bundles.build(extra=extra))
    return installing.install(str(path), store, jobs=2).image


def paths(folder):
    return sorted(
        os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names
    )


def read(*parts):
    with open(os.path.join(*parts), "rb") as stream:
        return stream.read()


def test_a_wheel_becomes_an_overlay(tmp_path, store):
    image = install(tmp_path, store, ("wheels", file_name(), wheel(FILES, modes={"demo/native.so": 0o100755})))
    info = "lib/demo-1.0.dist-info/"
    assert paths(image.wheels) == sorted(
        ["bin/demo-tool", "bin/given", "lib/demo/__init__.py", "lib/demo/native.so", "share/demo.txt"]
        + [info + name for name in ("INSTALLER", "METADATA", "RECORD", "WHEEL", "entry_points.txt")]
    )
    executable = {name for name in paths(image.wheels) if os.access(os.path.join(image.wheels, name), os.X_OK)}
    modes = {stat.S_IMODE(os.stat(os.path.join(image.wheels, name)).st_mode) for name in executable}
    assert (executable, modes) == ({"bin/demo-tool", "bin/given", "lib/demo/native.so"}, {0o755 & ~umask()})
    assert read(image.wheels, "bin/given").startswith(b"#!/usr/bin/env python3 -E\n")
    assert image.receipt.files == len(bundles.ENTRIES) + 10
    assert sorted(os.listdir(image.folder)) == ["bundle.json", "inventory", "receipt.json", "rootfs", "wheels"]


def umask():
    current = os.umask(0)
    os.umask(current)
    return current


def test_the_scripts_run_and_record_is_the_installed_one(tmp_path, store):
    image = install(tmp_path, store, ("wheels", file_name(), wheel(FILES)))
    script = os.path.join(image.wheels, "bin/demo-tool")
    lib = os.path.join(image.wheels, "lib")
    environment = dict(os.environ, PYTHONPATH=lib, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment)
    assert (done.communicate()[0], done.returncode) == (b"it works\n", 5)
    record = read(lib, "demo-1.0.dist-info/RECORD").decode().splitlines()
    assert {line.split(",")[0] for line in record} == {os.path.relpath(os.path.join(image.wheels, name), lib)
        for name in paths(image.wheels)}  # fmt: skip
    assert [line for line in record if line.endswith(",,")] == ["demo-1.0.dist-info/RECORD,,"]


def test_variants_stand_apart(tmp_path, store):
    name = file_name("horovod", "0.28.1")
    members = [
        (f"variants/{abi}", name, wheel({"horovod/abi.py": abi.encode()}, "horovod", "0.28.1"))
        for abi in ("mpich-abi", "openmpi")
    ]
    image = install(tmp_path, store, *members)
    for abi in ("mpich-abi", "openmpi"):
        assert read(image.variant(abi), "lib/horovod/abi.py") == abi.encode()
    assert not os.path.exists(image.wheels)


def test_two_wheels_may_bring_the_same_file_with_the_same_bytes(tmp_path, store):
    one = wheel({"space/__init__.py": b"same", "space/one.py": b"1"}, "one")
    two = wheel({"space/__init__.py": b"same", "space/two.py": b"2"}, "two")
    image = install(tmp_path, store, ("wheels", file_name("one"), one), ("wheels", file_name("two"), two))
    assert sorted(os.listdir(os.path.join(image.wheels, "lib/space"))) == ["__init__.py", "one.py", "two.py"]
    other = wheel({"space/__init__.py": b"else"}, "two")
    with pytest.raises(IntegrityError, match=r"both contain lib/space/__init__.py, with different content"):
        install(tmp_path, store, ("wheels", file_name("one"), one), ("wheels", file_name("two"), other))
    assert len(os.listdir(store.images)) == 1


@pytest.mark.parametrize("first", [{"demo": b"a file"}, {"demo": b"a file", "many": b"x" * 100000}])
def test_a_file_of_one_wheel_is_no_folder_of_another(tmp_path, store, first):
    members = [
        ("wheels", file_name("one"), wheel(first, "one")),
        ("wheels", file_name("two"), wheel({"demo/x.py": b"x"}, "two")),
    ]
    with pytest.raises(IntegrityError, match="demo"):
        install(tmp_path, store, *members)
    assert os.listdir(store.images) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wheel(FILES)[:-40], "not a complete wheel"),
        (wheel(FILES, extra=[("../../../escaped", b"x")]), "not plain"),
        (wheel(FILES, extra=[("/tmp/escaped", b"x")]), "not plain"),
        (wheel(FILES, modes={"demo/native.so": 0o120777}), "not a regular file"),
        (wheel(FILES, extra=[("demo/evil.py", b"x")]), "RECORD does not list"),
        (wheel(dict(FILES, **{"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../x = a:b\n"})), "script"),
    ],
)
def test_a_bad_wheel_leaves_nothing(tmp_path, store, data, reason):
    with pytest.raises(IntegrityError, match=reason):
        install(tmp_path, store, ("wheels", file_name(), data))
    assert os.listdir(store.images) == []
    assert sorted(os.listdir(str(tmp_path))) == ["b.tar", "root"]


def test_names_that_the_file_system_takes_for_one(tmp_path, store):
    tools = {"demo-1.0.data/scripts/mpicc": b"1", "demo-1.0.data/scripts/mpiCC": b"2"}
    image = install(tmp_path, store, ("wheels", file_name(), wheel(tools)))
    assert sorted(os.listdir(os.path.join(image.wheels, "bin"))) == ["mpiCC", "mpicc"]
    # Where case makes no difference the second finds the first in its way, and has no other owner.
    with pytest.raises(IntegrityError, match="bin/mpicc already exists"):
        wheels._check_same("bin/mpicc", [(file_name(), "aa")])


def test_only_wheels_in_their_folders_are_unpacked():
    assert wheels.overlay("deployer/wheels/demo-1.0-py3-none-any.whl") == "wheels"
    assert wheels.overlay("deployer/variants/mpich-abi/horovod-1-py3-none-any.whl") == "variants/mpich-abi"
    for name in ("deployer/wheels/x.txt", "deployer/wheels/a/b.whl", "deployer/variants/x.whl",
                 "deployer/variants/../x.whl", "deployer/variants/A/x.whl", "deployer/app/x.whl"):  # fmt: skip
        assert wheels.overlay(name) is None


def test_room_counts_files_and_bytes_as_they_will_be(tmp_path, store, monkeypatch):
    asked = []
    monkeypatch.setattr(installing.space, "check", lambda folder, size, entries: asked.append((size, entries)))
    install(tmp_path, store)
    data = wheel({"demo/zeros": bytes(10**6)})
    other = Store(str(tmp_path / "other"))  # the first has the layer already
    install(tmp_path, other, ("wheels", file_name(), data))
    (size, entries), (more, others) = asked
    assert others - entries == 4 + 1  # its files, and the wheel as a member
    assert 10**6 + len(data) <= more - size < 10**6 + len(data) + 1000


# ------------------------------------------------------------------------------------------------ in the container


def made(store, plan=running.PLAN, **options):
    image = store.find("hello")
    return container.make(image, image.manifest().image, plan, [], {}, **options)


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
