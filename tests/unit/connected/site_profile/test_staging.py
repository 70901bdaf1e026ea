"""The ways to stage, out of what a profile says of file systems."""

from deployer.connected.site_profile.machine import Filesystem
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import load
from deployer.connected.site_profile.staging import FEW_NODES, MANY_NODES, Staging, stagings

SHARED = Filesystem(type="lustre", shared=True)
MEMORY = Filesystem(type="tmpfs", shared=False, size_mb=1000)


def test_where_nothing_of_the_nodes_is_known_the_folder_serves_all() -> None:
    unknown = Filesystem(type="ext4")  # one node may export it
    assert stagings("charliecloud", {"/work": SHARED, "/scratch": unknown}, True) == [Staging("folder")]
    assert stagings("charliecloud", {}, False) == [Staging("folder")]


def test_a_disk_comes_before_memory_and_the_folder_is_for_few_nodes() -> None:
    small, large = (Filesystem(type="xfs", shared=False, size_mb=size) for size in (10, 20))
    table = {"/work": SHARED, "/tmp": small, "/local": large, "/dev/shm": MEMORY, "/aaa": MEMORY}
    assert stagings("charliecloud", table, False) == [
        Staging("folder", max_nodes=FEW_NODES),
        Staging("disk", "/local", 20, broadcast=MANY_NODES),
        Staging("memory", "/dev/shm", 1000, broadcast=MANY_NODES),
    ]
    assert stagings("charliecloud", {"/tmp": MEMORY}, False)[1] == Staging("memory", "/tmp", 1000, broadcast=MANY_NODES)


def test_udocker_mounts_nothing() -> None:
    assert [each.staging for each in stagings("udocker", {"/dev/shm": MEMORY}, True)] == ["folder", "memory"]


def test_a_runtime_that_keeps_images_itself_stages_nothing() -> None:
    assert stagings("docker", {"/dev/shm": MEMORY}, True) == [Staging("folder")]


def test_the_plan_for_the_lab_has_all() -> None:
    plan = make_plan(load("lab"), "tiny:1.0")
    assert [(each.name, each.place, each.max_nodes) for each in plan.start_options] == [
        ("charliecloud-folder", None, FEW_NODES),
        ("charliecloud-memory", "/dev/shm", None),
        ("charliecloud-squashfs", "/dev/shm", None),  # users can mount there
        ("native-folder", None, None),
    ]
