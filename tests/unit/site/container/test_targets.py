"""Targets of binds in an image: what is there, what is in the way, and what a runtime may make."""

import os

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.site.plan import Bind
from deployer.site.container import container, targets
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.charliecloud import Charliecloud
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from tests import running


@pytest.fixture
def rootfs(tmp_path):
    """Return a rootfs with a folder, a file, links to each, and a link out of it."""
    root = tmp_path / "rootfs"
    (root / "data" / "own").mkdir(parents=True)
    (root / "mnt").mkdir()
    (root / "etc").mkdir()
    (root / "etc" / "conf").write_text("")
    (root / "lustre").symlink_to("/data")
    (root / "data" / "out").symlink_to("/")
    return str(root)


@pytest.mark.parametrize(
    ("target", "said", "made"),
    [
        ("/data/own", None, None),
        ("/data//own/", None, None),
        ("/p/scratch", "the image is read-only and has no /p/scratch", None),
        ("/lustre/p", "/lustre is a link in the image, to /data", "/lustre is a link in the image, to /data"),
        ("/lustre", "/lustre is a link in the image, to /data", "/lustre is a link in the image, to /data"),
        ("/data/out/etc", "/data/out is a link in the image, to /", "/data/out is a link in the image, to /"),
        ("/etc/conf/x", "/etc/conf is a file in the image", "/etc/conf is a file in the image"),
        ("/etc/conf", None, None),
    ],
)
def test_what_prevents_a_bind_is_named(rootfs, target, said, made):
    assert targets.objection(rootfs, target) == said
    assert targets.objection(rootfs, target, makes=True) == made
    assert targets.lacks(rootfs, target) is (said is not None and made is None)


def refused(rootfs, target, **options):
    with pytest.raises(UsageError) as error:
        container.parse_binds([f"{os.path.dirname(rootfs)}:{target}"], rootfs, **options)
    return error.value


def test_a_refused_bind_names_what_would_make_it_possible(rootfs):
    error = refused(rootfs, "/p/scratch", others=["apptainer"])
    assert "/data, /mnt;" in error.hint
    assert "--runtime apptainer, which makes the path" in error.hint
    assert "--runtime" not in refused(rootfs, "/p/scratch").hint
    assert "--runtime" not in refused(rootfs, "/lustre/p", others=["apptainer"]).hint  # it could not either


def test_a_runtime_that_makes_targets_needs_none(rootfs):
    source = os.path.dirname(rootfs)
    (found,) = container.parse_binds([source + ":/p/scratch"], rootfs, makes_targets=True)
    assert found == Bind(source, "/p/scratch", "--bind")
    for target in ("/lustre/p", "/etc/conf/x", "/tmp/x", "/tmp", "/dev", "/", "//", "//tmp/x", "/./proc"):
        refused(rootfs, target, makes_targets=True)
    assert "has a colon" in refused(rootfs, "/p/scratch:ro", makes_targets=True).message
    assert container.parse_binds([source + "://p/./scratch/"], rootfs, makes_targets=True) == [found]


def test_without_a_container_a_target_is_only_a_name(tmp_path):
    (found,) = container.parse_binds([f"{tmp_path}:/no/such"], None)
    assert found.target == "/no/such"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store with an image that lacks the targets of the plan's binds."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    running.program(programs, "ch-run", "exit 0")
    store = running.store(tmp_path / "root")
    (image,) = store.installed()
    os.removedirs(image.rootfs + running.PREFIX)
    return store


def test_a_runtime_s_property_is_asked(store, tmp_path, monkeypatch):
    request = RunRequest("hello", binds=[f"{tmp_path}:/p"])
    with pytest.raises(UsageError, match="has no /p"):
        run.prepare(store, request)
    with pytest.raises(Refused, match="has no " + running.PREFIX):
        run.prepare(store, request._replace(binds=[]))

    class Making(Charliecloud):
        makes_targets = True

    monkeypatch.setitem(RUNTIMES, "charliecloud", Making("charliecloud"))
    script = run.show_script(run.prepare(store, request))
    assert f"--bind={tmp_path}:/p\n" in script
    assert f"--bind={running.PREFIX}:{running.PREFIX}\n" in script
