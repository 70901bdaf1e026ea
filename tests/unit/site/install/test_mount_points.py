"""Mount points are made in an unpacked image, once, through no link, and by install and staging alike."""

import errno
import os
import stat
from types import SimpleNamespace

import pytest

from deployer.contract.base.errors import IntegrityError
from deployer.site.install import install as installing
from deployer.site.install import kit, mount_points
from deployer.site.install.remove import remove
from deployer.site.storage.store import Store
from tests import bundles
from tests.unit.site.container.test_udocker import KIT


@pytest.fixture
def rootfs(tmp_path):
    root = tmp_path / "rootfs"
    (root / "usr").mkdir(parents=True)
    (root / "file").write_text("")
    (root / "link").symlink_to(tmp_path)
    return str(root)


def test_what_is_missing_is_made_and_nothing_else(rootfs):
    os.utime(os.path.join(rootfs, "usr"), (1, 1))
    mount_points.make(rootfs, ["/lustre/p/a", "/lustre/p", "/usr/x"])
    assert os.path.isdir(rootfs + "/lustre/p/a")
    assert os.stat(rootfs + "/usr").st_mtime == 1
    before = os.stat(rootfs + "/lustre/p/a").st_ino
    mount_points.make(rootfs, ["/lustre/p/a"])
    assert os.stat(rootfs + "/lustre/p/a").st_ino == before


def test_a_link_or_file_is_left_and_not_followed(rootfs, tmp_path):
    before = sorted(os.listdir(str(tmp_path)))
    mount_points.make(rootfs, ["/link/x", "/file/x", "/link"])
    assert sorted(os.listdir(str(tmp_path))) == before
    assert os.path.isfile(rootfs + "/file")


def test_another_s_mount_points_are_not_searched_through_links_and_files(rootfs, monkeypatch):
    monkeypatch.setattr(mount_points.inventory, "rootfs_names", lambda _: frozenset([b"usr"]))
    os.makedirs(os.path.join(rootfs, "data"))
    os.symlink("/usr", os.path.join(rootfs, "host"))
    found = mount_points.others(SimpleNamespace(rootfs=rootfs), [], ["/link/rootfs", "/host/lib", "/file/x", "/data"])
    assert found == ["/data"]


def test_a_read_only_image_stays_so(rootfs):
    kit.protect(rootfs)
    mount_points.make(rootfs, ["/lustre/p", "/usr/x"])
    for path in ("", "/usr", "/usr/x"):
        assert not stat.S_IMODE(os.stat(rootfs + path).st_mode) & 0o222, path
    assert os.path.isdir(rootfs + "/lustre/p")


def test_another_install_makes_the_folder_read_only_again_meanwhile(rootfs, monkeypatch):
    kit.protect(rootfs)
    real, refused = os.mkdir, []

    def mkdir(path, mode=0o777, dir_fd=None):
        if len(refused) < 3:
            refused.append(path)
            os.chmod(dir_fd, 0o555)
            raise PermissionError(errno.EACCES, "Permission denied", path)
        assert os.fstat(dir_fd).st_mode & stat.S_IWUSR
        real(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(mount_points.os, "mkdir", mkdir)
    mount_points.make(rootfs, ["/usr/x"])
    assert len(refused) == 3
    for path in ("/usr", "/usr/x"):
        assert not stat.S_IMODE(os.stat(rootfs + path).st_mode) & 0o222, path


def test_a_folder_that_refuses_always_is_an_error(rootfs, monkeypatch):
    def mkdir(path, mode=0o777, dir_fd=None):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(mount_points.os, "mkdir", mkdir)
    with pytest.raises(PermissionError):
        mount_points.make(rootfs, ["/usr/x"])
    mount_points.make_if_permitted(rootfs, ["/usr/x"])


def asking(*paths, **options):
    """Return a bundle with mount points."""
    return bundles.reseal(bundles.build(**options), lambda record: record.update(mount_points=list(paths)))


def install(folder, data, store):
    path = folder / "b.tar"
    path.write_bytes(data)
    return installing.install(str(path), store).image


@pytest.mark.thorough
@pytest.mark.parametrize("extra", [[], KIT], ids=["", "kit"])
def test_bundles_for_several_sites_share_their_layer(tmp_path, extra):
    store = Store(str(tmp_path / "root"))
    first = install(tmp_path, asking("/lustre/p", extra=extra), store)
    second = install(tmp_path, asking("/gpfs/q", extra=extra, name="other"), store)
    assert first.layers == second.layers
    for image in (first, second):
        assert {"lustre", "gpfs"} < set(os.listdir(image.rootfs))
    remove(store, first, force=True)
    assert os.path.isdir(second.rootfs + "/gpfs/q")


def test_a_mount_point_that_a_site_removed_is_made_again(tmp_path):
    store = Store(str(tmp_path / "root"))
    data = asking("/lustre/p")
    image = install(tmp_path, data, store)
    os.removedirs(image.rootfs + "/lustre/p")
    assert install(tmp_path, data, store) == image
    assert os.path.isdir(image.rootfs + "/lustre/p")


def test_an_unsafe_one_is_refused(tmp_path):
    with pytest.raises(IntegrityError, match="invalid mount point"):
        install(tmp_path, asking("/lustre/../../x"), Store(str(tmp_path / "root")))
