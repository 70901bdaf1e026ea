"""Mount points: which paths an image can have, and what is in the way of one."""

import json

import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import manifest
from deployer.contract.site import mount_points
from tests.unit.contract.test_outside_texts import MANIFEST

IMPOSSIBLE = {
    "": "not an absolute path",
    "lustre": "not an absolute path",
    "/a:b": "not an absolute path",
    "/a\nb": "not an absolute path",
    "/": "it is /, or has an empty part",
    "/lustre/": "empty part",
    "//lustre": "empty part",
    "/a/../etc": "empty part, . or ..",
    "/a/./b": "empty part, . or ..",
    "/tmp": "/tmp is the node's own",
    "/dev/shm/x": "/dev is the node's own",
    "/proc/1": "/proc is the node's own",
    "/deployer/app": "/deployer is deployer's own",
}


@pytest.mark.parametrize("path", list(IMPOSSIBLE))
def test_what_no_image_can_have_is_refused_everywhere(path):
    for check in (mount_points.check, mount_points.check_site):
        with pytest.raises(UsageError, match=IMPOSSIBLE[path]) as error:
            check(path)
        assert error.value.message.isprintable()
    assert mount_points.possible([path, "/lustre"]) == ["/lustre"]
    record = dict(MANIFEST.record(), mount_points=["/lustre", path])
    with pytest.raises(IntegrityError):
        manifest.read(json.dumps(record).encode(), "it")


@pytest.mark.parametrize("path", ["/usr", "/etc", "/opt", "/var", "/usr/local", "/lib64"])
def test_a_site_s_folder_hides_nothing_of_the_image(path):
    assert mount_points.check(path) == path  # an MPI's prefix may be there
    with pytest.raises(UsageError, match="which it would hide"):
        mount_points.check_site(path)


@pytest.mark.parametrize(
    "path", ["/lustre/p", "/home", "/opt/site", "/usr/local/share/data", "/dev2", "/tmpfs", "/p/a b"]
)
def test_folders_of_sites(path):
    assert mount_points.check_site(path) == path


def test_a_bundle_lists_them():
    asking = MANIFEST._replace(jobs=[], mount_points=("/lustre/p",))
    record = asking.record()
    assert record["mount_points"] == ["/lustre/p"]
    assert manifest.read(json.dumps(record).encode(), "it").mount_points == ("/lustre/p",)


def test_what_is_in_the_way_is_found():
    kinds = {"/": True, "/a": True, "/a/link": False, "/file": False}

    def found(path):
        return mount_points.in_the_way(path, kinds.get)

    assert (found("/a"), found("/a/b/c"), found("/x/y")) == (None, None, None)
    assert (found("/a/link"), found("/a/link/c"), found("/file/x/y")) == ("/a/link", "/a/link", "/file")
