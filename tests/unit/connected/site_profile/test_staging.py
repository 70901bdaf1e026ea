"""The ways to stage, out of what a profile says of file systems."""

from deployer.connected.site_profile.machine import Filesystem
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import load
from deployer.connected.site_profile.staging import FEW_NODES, MANY_NODES, stagings
from deployer.contract.site.plan import StartOption

FOLDER = StartOption("charliecloud-folder", "charliecloud", "folder", "srun", "pmi2", None)
DISK = FOLDER._replace(name="charliecloud-disk", staging="disk", broadcast=MANY_NODES)
STAGED = FOLDER._replace(name="charliecloud-memory", staging="memory", room_mb=1000, broadcast=MANY_NODES)
SHARED = Filesystem(type="lustre", shared=True)
MEMORY = Filesystem(type="tmpfs", shared=False, size_mb=1000)


def test_where_nothing_of_the_nodes_is_known_the_folder_serves_all() -> None:
    unknown = Filesystem(type="ext4")  # one node may export it
    assert stagings(FOLDER, {"/work": SHARED, "/scratch": unknown}, True) == [FOLDER]
    assert stagings(FOLDER, {}, False) == [FOLDER]


def test_a_disk_comes_before_memory_and_the_folder_is_for_few_nodes() -> None:
    small, large = (Filesystem(type="xfs", shared=False, size_mb=size) for size in (10, 20))
    table = {"/work": SHARED, "/tmp": small, "/local": large, "/dev/shm": MEMORY, "/aaa": MEMORY}
    assert stagings(FOLDER, table, False) == [
        FOLDER._replace(max_nodes=FEW_NODES),
        DISK._replace(place="/local", room_mb=20),
        STAGED._replace(place="/dev/shm"),
    ]
    assert stagings(FOLDER, {"/tmp": MEMORY}, False)[1] == STAGED._replace(place="/tmp")


def test_udocker_mounts_nothing() -> None:
    assert [each.staging for each in stagings(FOLDER._replace(runtime="udocker"), {"/dev/shm": MEMORY}, True)] == [
        "folder",
        "memory",
    ]


def test_a_sif_file_is_only_copied_to_memory() -> None:
    sif = FOLDER._replace(name="apptainer-sif", runtime="apptainer", sif=True)
    disk = Filesystem(type="ext4", shared=False, size_mb=9)
    made = stagings(sif, {"/dev/shm": MEMORY, "/local": disk}, True)
    assert [(each.name, each.form) for each in made] == [("apptainer-sif", "sif"), ("apptainer-squashfs", "sif")]


def test_a_runtime_that_keeps_images_itself_stages_nothing() -> None:
    docker = FOLDER._replace(runtime="docker")
    assert stagings(docker, {"/dev/shm": MEMORY}, True) == [docker]


def test_the_plan_for_the_lab_has_all() -> None:
    plan = make_plan(load("lab"), "tiny:1.0")
    assert [(each.name, each.place, each.max_nodes) for each in plan.start_options] == [
        ("charliecloud-folder", None, FEW_NODES),
        ("charliecloud-memory", "/dev/shm", None),
        ("charliecloud-squashfs", "/dev/shm", None),  # users can mount there
        ("charliecloud-mounted", "/dev/shm", None),
        ("native-folder", None, None),
    ]
