"""A root folder uses a group's store only while nobody but its owner can change it."""

import json
import os
import time

import pytest

from deployer.cli.site import main
from deployer.contract.base import json_records
from deployer.contract.base.errors import EXIT_DONE, Refused, UsageError
from deployer.contract.proof.evidence import Launch
from deployer.site.container import caches
from deployer.site.install import install, remove
from deployer.site.jobs import result
from deployer.site.storage import group, inventory, scans
from deployer.site.storage.store import Store
from tests import bundles, running
from tests.others import NOBODY, somebody_else

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")


@pytest.fixture
def shared(tmp_path):
    """Return a group's store with an image, as with umask 022."""
    before = os.umask(0o022)
    shared = Store(str(tmp_path / "shared"))
    os.makedirs(shared.root)
    path = bundles.write(tmp_path / "b.tar", extra=[("deployer/app/train.py", b"pass")])
    install.keep(str(path), shared, install.install(str(path), shared).image)
    yield shared
    os.umask(before)


@pytest.fixture
def mine(tmp_path, shared):
    """Return the root folder of a member who joined."""
    own = Store(str(tmp_path / "own"))
    os.makedirs(own.images)
    group.join(own.root, shared.root)
    return own


def test_an_image_of_the_store_is_found_and_is_not_changed(tmp_path, shared, mine, capsys):
    image = mine.find("tiny")
    assert (image.store.root, image.bundle) == (shared.root, shared.bundle(image.receipt))
    assert mine.carrying(image.receipt.digest) == image
    assert (mine.own(), [each.folder for each in mine.installed()]) == ([], [image.folder])
    path = os.path.join(str(tmp_path), "own")
    for words in (["remove", "tiny"], ["squash", "tiny"]):
        assert main.main([*words, "--root", path]) == Refused.exit_code
        assert (
            f"tiny:1.0 is in the group's store {shared.root}: only its owner can change it" in capsys.readouterr().err
        )
    assert main.main(["gc", "--keep", "1", "--root", path]) == EXIT_DONE
    assert main.main(["remove", "--all", "--root", path]) == EXIT_DONE
    assert shared.find("tiny") == image


def test_the_newest_of_both_counts(tmp_path, shared, mine):
    old = shared.find("tiny")
    running.write(os.path.join(old.folder, "receipt.json"), old.receipt._replace(installed=1).record())
    path = bundles.write(tmp_path / "c.tar", version="2.0")
    install.install(str(path), mine)
    assert [image.receipt.version for image in mine.installed()] == ["2.0", "1.0"]
    assert (mine.find("tiny").store.root, mine.find("tiny:1.0").store.root) == (mine.root, shared.root)


@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("place", ["", "images", "layers", "image", "app", "receipt.json", "rootfs", "layer", "bundle"])
def test_nobody_else_may_be_able_to_write_to(shared, mine, place, mode):
    image = shared.find("tiny")
    paths = {"image": image.folder, "rootfs": image.layers[0] + "/rootfs", "layer": image.layers[0]}
    paths.update({"app": image.app, "receipt.json": image.folder + "/receipt.json", "bundle": image.bundle})
    path = paths.get(place) or os.path.join(shared.root, place).rstrip("/")
    os.chmod(path, os.stat(path).st_mode | mode)
    with pytest.raises(Refused) as caught:
        mine.find("tiny")
    assert f"the group's store cannot be trusted: {path}: its group or others can write to it" in caught.value.message
    with pytest.raises(Refused):
        group.join(mine.root + "2", shared.root)


def test_join_looks_at_all_files_once(shared, mine):
    deep = os.path.join(shared.find("tiny").rootfs, "bin", "tool")
    os.chmod(deep, 0o775)
    with pytest.raises(Refused, match=r"rootfs/bin/(tool|same): its group or others can write to it"):
        group.join(mine.root, shared.root)


def test_a_sticky_bit_is_enough_above_the_store_and_not_in_it(tmp_path, shared, mine):
    above = os.path.dirname(shared.root)
    os.chmod(above, 0o777)
    with pytest.raises(Refused, match="its group or others can write to it"):
        mine.find("tiny")
    os.chmod(above, 0o1777)
    assert mine.find("tiny")
    os.chmod(shared.root, 0o1777)
    with pytest.raises(Refused):
        mine.find("tiny")


@needs_root
@pytest.mark.parametrize("place", ["", "images", "image", "layer", "receipt.json"])
def test_nothing_of_another_user_is_trusted(shared, mine, place):
    image = shared.find("tiny")
    paths = {"image": image.folder, "layer": image.layers[0], "receipt.json": image.folder + "/receipt.json"}
    os.chown(paths.get(place) or os.path.join(shared.root, place).rstrip("/"), 12345, -1)
    with pytest.raises(Refused, match=r"it belongs to uid 12345, not to root or root|it belongs to uid 12345"):
        mine.find("tiny")


@needs_root
def test_an_owner_whom_the_server_hides_is_not_trusted(shared, mine):
    for top, _, names in os.walk(shared.root):
        for name in [".", *names]:
            os.lchown(os.path.join(top, name), NOBODY, -1)
    with pytest.raises(Refused):
        group.join(mine.root + "2", shared.root)


def test_a_store_that_became_another_is_refused(shared, mine):
    os.rename(shared.root, shared.root + "2")
    os.symlink(shared.root + "2", shared.root)
    with pytest.raises(Refused, match="it has become a link"):
        mine.find("tiny")
    with pytest.raises(Refused, match=r"uses .*/shared of .*, not .*/shared2") as caught:
        group.join(mine.root, shared.root)
    assert "group-store.json first" in caught.value.hint
    os.unlink(shared.root)
    with pytest.raises(Refused, match="it is gone"):
        mine.find("tiny")


@pytest.mark.parametrize("folder", ["nothing", "own"])
def test_join_wants_a_root_folder_with_images_that_is_not_ones_own(tmp_path, mine, folder, capsys):
    assert main.main(["join", str(tmp_path / folder), "--root", mine.root]) == UsageError.exit_code
    assert "is not the root folder of somebody's images" in capsys.readouterr().err


def test_scans_are_those_of_the_store_under_the_policies_of_both(shared, mine):
    digest = mine.find("tiny").receipt.digest
    scans.check_installed(mine, digest)
    for root in (shared.root, mine.root):
        path = os.path.join(root, "policy.json")
        running.write(path, json_records.stamped("policy", {"scan": {"days": 30, "severity": "critical"}}))
        with pytest.raises(Refused, match=f"{path} demands a scan of the bundle"):
            scans.check_installed(mine, digest)
        os.unlink(path)
    os.chmod(shared.images, 0o777)
    with pytest.raises(Refused, match="cannot be trusted"):
        scans.check_installed(mine, digest)


def test_a_damaged_record_is_an_error(mine):
    with open(os.path.join(mine.root, group.RECORD), "w") as stream:
        stream.write("{}")
    with pytest.raises(UsageError):
        mine.find("tiny")


def test_who_uses_an_image_keeps_it(shared, mine, capsys):
    image = mine.find("tiny")
    group.mark([image.folder])
    assert group.uses(image.folder) == {}  # without a folder for it
    os.mkdir(os.path.join(shared.root, "uses"), 0o1777)
    group.mark([image.folder])
    (who, last), *others = group.uses(image.folder).items()
    assert (who, others) == (group.user(os.getuid()), [])
    assert abs(last - time.time()) < 60
    with pytest.raises(Refused, match=f"tiny:1.0 was used in the last 14 days by {who}"):
        remove.remove(shared, image)
    assert main.main(["list", "--root", shared.root]) == EXIT_DONE
    assert f" ({who} {time.strftime('%Y')}-" in capsys.readouterr().out
    assert main.main(["list", "--json", "--root", mine.root]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["images"][0]["uses"] == {who: last}
    mark = os.path.join(shared.root, "uses", f"{os.path.basename(image.folder)}-{os.getuid()}")
    os.utime(mark, (time.time() - 15 * 86400,) * 2)
    remove.remove(shared, image)


@needs_root
def test_a_mark_in_the_name_of_another_counts_now_and_names_its_maker(shared, mine):
    image = mine.find("tiny")
    place = os.path.join(shared.root, "uses")
    os.mkdir(place, 0o1777)
    planted = os.path.join(place, os.path.basename(image.folder) + "-0")
    os.symlink("/etc/passwd", planted)
    os.lchown(planted, 12345, 12345)
    os.utime(planted, (1, 1), follow_symlinks=False)
    before = os.stat("/etc/passwd").st_mtime
    group.mark([image.folder])  # the name is taken, and no link is followed
    assert os.stat("/etc/passwd").st_mtime == before
    with pytest.raises(Refused, match="by uid 12345"):
        remove.check_unused(shared, image)


@needs_root
def test_what_is_closed_to_members_is_not_missing(tmp_path, shared, mine):
    image = mine.find("tiny")
    for folder in [tmp_path, *tmp_path.parents][:4]:
        folder.chmod(folder.stat().st_mode | 0o055)
    os.chmod(os.path.join(image.rootfs, "etc"), 0o700)
    with somebody_else():
        assert inventory.check(image).missing == 0
    os.unlink(os.path.join(image.rootfs, "bin", "tool"))
    with somebody_else():
        assert inventory.gone(image).first == ["rootfs/bin/tool"]


def test_caches_of_an_image_in_the_store_are_kept(shared, mine):
    os.makedirs(mine.caches)
    begin, *_ = caches.words(mine, mine.find("tiny"), ["numba"]) or [None]
    for name in (os.path.basename(begin or ""), "0" * 32):
        open(os.path.join(mine.caches, name + "-x.tar"), "w").close()
    assert [os.path.basename(path) for path in caches.unused(mine)] == ["0" * 32 + "-x.tar"]


def test_the_end_of_a_job_finds_its_image_in_the_store(shared, mine):
    digest = mine.find("tiny").receipt.digest
    launch = Launch("j1", "tiny", "1", digest, "lab", "v", "", "ch-run", 1, 1, 1, "1:00", ["true"], None, None, 1)
    folder = os.path.join(mine.jobs, "j1")
    assert result._image(folder, launch) == []
    assert [each.code for each in result._image(folder, launch._replace(digest="sha256:" + "0" * 64))] == ["image.gone"]
