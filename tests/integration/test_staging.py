"""The image in the memory, or on a disk, of two real nodes: it runs there, and nothing is left however it ends."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import PYTHON, WORKSPACE, Site
from tests.lab import Lab
from tests.lab.disks import disk

NODES = ("cn1", "cn2")
STAGED = ("--plan", "lab", "--nodes", "2", "--staging", "memory")
#: The image of hello-mpi without its definition: the words after -- are the command.
NAME = "hello-staged"

#: The nodes' own disk, and the lab as a site whose nodes have one.
PLACE = "/mnt"
PROFILE = """\
{format: 1, name: lab-disk, extends: lab, source: {kind: document, where: this test},
 filesystems: {/mnt: {type: ext4, shared: false, size_mb: 1000}}}
"""
DISK = ("--plan", "lab-disk", "--nodes", "2", "--staging", "disk")

#: Says goodbye when it is asked to stop, with a module that it had not imported before.
SLOW = (
    "import signal, sys, time\n"
    "def bye(*_):\n"
    "    time.sleep(1); import wave; print('goodbye', wave.__file__, flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, bye)\n"
    "print('training', flush=True); time.sleep(120)\n"
)


#: Says what its root is on, and that it has MPI from the host and a folder of the node's own.
CODE = (
    "import mpi4py, os; from mpi4py import MPI; "
    "root = [line.split()[4:] for line in open('/proc/self/mountinfo') if line.split()[4] == '/'][-1]; "
    "print('root on', root[root.index('-') + 1]); print(os.listdir('/deployer/node') != [], mpi4py.__file__)"
)


def left(site: Site) -> list[str]:
    """Return what is in the memory of the nodes and in their /tmp."""
    return [name for node in NODES for name in site.lab.sh(node, "root", "ls -A /dev/shm /tmp").stdout.split()[:]]


def bare(site: Site) -> bool:
    return left(site) == ["/dev/shm:", "/tmp:"] * len(NODES)


def cancelled(site: Site, options: tuple[str, ...]) -> dict[str, Any]:
    """Cancel a job in training, see it say goodbye on both nodes, and return its result."""
    script = site.lab.home / "alice" / "slow.py"
    script.write_text(SLOW)
    script.chmod(0o644)
    site.tool("run", NAME, *options, "--bind", "$HOME:/mnt", "--", "python3", "/mnt/slow.py")
    log = f"$(ls -td {WORKSPACE}/jobs/* | head -n 1)/output.log"
    site.alice(f"until grep -c training {log} 2>/dev/null | grep -qx 2; do sleep 0.2; done")
    site.tool("cancel")
    until = time.monotonic() + 60
    while site.alice("squeue -h").strip() and time.monotonic() < until:
        time.sleep(0.2)
    assert site.alice(f"cat {log}").count("goodbye") == 2
    return site.result()


def squashed(site: Site, path: str) -> dict[str, Any]:
    """Have the SquashFS file made on login1 with ``path`` as PATH; return what is said of it."""
    install = f"install {WORKSPACE}/bundles/{NAME}-1.tar --squashfs --json"
    python = f"python=$(command -v {PYTHON}) && PATH={path} $python {WORKSPACE}/deployer.pyz"
    record: dict[str, Any] = json.loads(site.alice(f"{python} {install}"))["squashfs"]
    return record


@pytest.fixture(scope="module")
def pushed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    bundle = tmp_path_factory.mktemp("bundle") / "hello.tar"
    profile = bundle.with_name("lab-disk.yaml")
    profile.write_text(PROFILE)
    image = ("--image", "deployer/hello-mpi:1.0.0", "--name", NAME, "--version", "1")
    site.cli("pack", *image, "--site", "lab", "--site", profile, "--kit", "squashfs-tools", "-o", bundle)
    site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config)
    yield site
    site.cli("remove", *site.options, NAME)


@pytest.fixture
def clean(pushed: Site) -> Iterator[Site]:
    """Yield the site when nothing is left in the nodes by other tests."""
    for node in NODES:
        pushed.lab.sh(node, "root", "find /dev/shm /tmp -mindepth 1 -delete")
    yield pushed
    for node in NODES:
        pushed.lab.sh(node, "root", "mount -o remount,size=50% /dev/shm; rm -rf /dev/shm/*")


def test_a_job_in_the_nodes_memory_leaves_nothing_behind(clean: Site) -> None:
    # What a job that died left on a node goes when the next one stages there.
    left_over = "/dev/shm/deployer-stage-2001-dead"
    clean.lab.sh("cn2", "alice", f"mkdir -m 700 {left_over} && touch {left_over}/lock").check("leave something")
    result = clean.run(*STAGED, "--", "python3", "-c", CODE, bundle=NAME)
    assert (result["variant"], result["exit_code"], result["findings"]) == ("charliecloud-memory", 0, [])
    assert {rank["host"] for rank in result["ranks"]} == set(NODES)
    assert {rank["mpi_seen_in"] for rank in result["ranks"]} == {"payload"}
    log = clean.tool("logs")
    assert log.count("root on tmpfs") == 2
    assert log.count("True ") == 2
    assert bare(clean), left(clean)
    newest = clean.alice(f"ls -td {WORKSPACE}/jobs/* | head -n 1").strip()
    assert clean.alice(f"ls {newest}/ranks").split() == ["node-cn1.json", "node-cn2.json"]


def test_a_failing_payload_and_a_cancelled_one_leave_nothing_behind(clean: Site) -> None:
    result = clean.run(*STAGED, "--", "python3", "-c", "raise SystemExit(7)", bundle=NAME, code=1)
    assert result["exit_code"] == 7
    assert bare(clean), left(clean)
    assert cancelled(clean, STAGED)["exit_code"] == 143
    assert {rank["exit_code"] for rank in clean.result()["ranks"]} == {0}  # collected though the job was over
    assert bare(clean), left(clean)


@pytest.fixture(scope="module")
def wide(site: Site, bundle: Path) -> Iterator[Site]:
    """Yield a lab of four nodes, of which only the first can read the whole bundle. Four count as many."""
    lab = Lab(f"pytest-wide-{os.getpid()}")
    try:
        lab.up(nodes=4, cores=1)
        site.cli("push", bundle, "lab", "--ssh-config", lab.ssh_config)
        four = Site(site.cli, lab)
        change = r"sed -i 's/\"broadcast\": *[0-9][0-9]*/\"broadcast\":4/'"
        four.alice(f"{change} {WORKSPACE}/images/*/plans/lab.json")
        # The manifest at the end is the true one.
        damage = "cp $bundle bad && dd if=/dev/zero of=bad bs=1k count=$(($(stat -c %s bad) / 2048)) conv=notrunc"
        path = four.alice(f"bundle=$(ls {WORKSPACE}/bundles/*.tar); {damage} status=none; echo $bundle").strip()
        for node in ("cn2", "cn3", "cn4"):
            lab.sh(node, "root", ["mount", "--bind", "/home/alice/bad", path]).check("cover the bundle")
        yield four
    finally:
        lab.down(purge=True)


WIDE = ("--plan", "lab", "--nodes", "4", "--ranks-per-node", "1", "--staging", "memory", "--force")


def test_nodes_send_the_bundle_on_to_each_other(wide: Site) -> None:
    result = wide.run(*WIDE)
    assert (result["exit_code"], result["variant"], len(result["ranks"])) == (0, "charliecloud-memory", 4)
    log = wide.tool("logs")
    assert log.count(": sum 6") == 4
    assert (result["image"]["readers"], result["image"]["from_node"]) == (1, 3 * result["image"]["from_file"])
    for node in wide.lab.definition().site.compute:
        assert wide.lab.sh(node, "root", "ls -A /dev/shm").stdout == ""
    newest = wide.alice(f"ls -td {WORKSPACE}/jobs/* | head -n 1").strip()
    assert " --relay " in wide.alice(f"cat {newest}/job.sh")


def test_a_node_that_nothing_reaches_reads_the_bundle_itself_and_sends_it_on(wide: Site) -> None:
    """Nothing comes to the ports of the relay, which are below those of Slurm and MPI."""
    rule = "INPUT -p tcp --dport 10000:32767 -j DROP"
    wide.lab.sh("cn3", "root", f"umount {WORKSPACE}/bundles/*.tar && iptables -I {rule}").check("close the ports")
    try:
        result = wide.run(*WIDE)
    finally:
        wide.lab.sh("cn3", "root", f"iptables -D {rule}").check("open the ports")
    assert (result["exit_code"], len(result["ranks"])) == (0, 4)
    assert [item["subject"] for item in result["findings"] if item["code"] == "stage.read"] == ["cn3"]
    assert result["image"]["readers"] == 2


@pytest.mark.needs("squashfs")
def test_a_squashfs_image_by_the_kit_s_tool_is_mounted_once_a_node_and_outlives_a_goodbye(clean: Site) -> None:
    made = squashed(clean, "$PATH")
    assert made["mksquashfs"]["path"] == "/usr/bin/mksquashfs"
    clean.alice(f"rm {made['path']}")
    made = squashed(clean, "/nothing")
    assert made["mksquashfs"]["whose"] == "kit"
    assert made["mksquashfs"]["path"].endswith("/kit/mksquashfs")
    mounted = ("--plan", "lab", "--nodes", "2", "--staging", "squashfs")
    result = clean.run(*mounted, "--", "python3", "-c", CODE, bundle=NAME)
    assert (result["variant"], result["exit_code"], result["findings"]) == ("charliecloud-squashfs", 0, [])
    assert {rank["mpi_seen_in"] for rank in result["ranks"]} == {"payload"}
    assert clean.tool("logs").count("root on fuse") == 2
    assert bare(clean), left(clean)
    assert cancelled(clean, mounted)["exit_code"] == 143
    assert bare(clean), left(clean)


@pytest.mark.needs("squashfs")
def test_small_nodes_mount_a_squashfs_file_that_is_made_for_them_where_it_is_installed(clean: Site) -> None:
    """Two nodes are many, and have no memory for the image."""
    clean.alice(f"rm -f {WORKSPACE}/images/*/image.sqfs")
    clean.alice(rf"sed -i 's/\"max_nodes\": *4/\"max_nodes\":1/' {WORKSPACE}/images/*/plans/lab.json")
    small = ("--plan", "lab", "--nodes", "2", "--ranks-per-node", "1", "--memory", "7999")
    result = clean.run(*small, "--", "python3", "-c", CODE, bundle=NAME)
    assert (result["variant"], result["exit_code"], result["findings"]) == ("charliecloud-mounted", 0, [])
    log = clean.tool("logs")
    assert log.count("root on fuse") == 2
    assert log.count("True /") == 2
    assert bare(clean), left(clean)
    assert cancelled(clean, small)["exit_code"] == 143
    assert bare(clean), left(clean)
    assert clean.alice(f"ls {WORKSPACE}/images/*/image.sqfs").strip()


def test_a_node_without_room_ends_the_job_before_the_payload(clean: Site) -> None:
    clean.lab.sh("cn2", "root", "mount -o remount,size=20m /dev/shm").check("make it small")
    result = clean.run(*STAGED, "--", "python3", "-c", "print('trained')", bundle=NAME, code=1)
    assert result["exit_code"] == 6
    (finding,) = (item for item in result["findings"] if item["severity"] == "error")
    assert finding["code"] == "stage.failed"
    assert "/dev/shm has 21.0 MB free" in finding["message"]
    log = clean.tool("logs")
    assert "trained" not in log
    assert log.count("/dev/shm has 21.0 MB free") == 1
    assert bare(clean), left(clean)


def test_a_node_without_python_ends_the_job_at_once(clean: Site) -> None:
    """The other node has answered, and waits for a signal of job.sh: nobody may wait for this one."""
    python = clean.alice(f"readlink -f $(command -v {PYTHON})").strip()
    clean.lab.sh("cn2", "root", ["mount", "--bind", "/usr/bin/false", python]).check("cover it")
    try:
        result = clean.run(*STAGED, "--", "python3", "-c", "print('trained')", bundle=NAME, code=1)
    finally:
        clean.lab.sh("cn2", "root", ["umount", "-l", python])
    (finding,) = (item for item in result["findings"] if item["severity"] == "error")
    assert finding["code"] == "hosts.failed"
    assert finding["message"].endswith("1 of 2 nodes reported: cn2 ended with exit code 1")
    assert result["seconds"] < 30
    assert bare(clean), left(clean)


@pytest.fixture
def disks(clean: Site) -> Iterator[Site]:
    """Yield the site with a disk of its own on each node."""
    with ExitStack() as stack:
        for node in NODES:
            stack.enter_context(disk(clean.lab, [node], PLACE, 1000))
        yield clean


def on_disks(site: Site) -> str:
    """Return what is on the nodes' disks, beside what a new one has."""
    return "".join(site.lab.sh(node, "root", f"ls -A {PLACE} | grep -v lost+found").stdout for node in NODES)


@pytest.mark.needs("loop")
def test_a_job_on_the_nodes_disks_leaves_nothing_behind(disks: Site) -> None:
    result = disks.run(*DISK, "--", "python3", "-c", CODE, bundle=NAME)
    assert (result["variant"], result["exit_code"], result["findings"]) == ("charliecloud-disk", 0, [])
    assert {rank["host"] for rank in result["ranks"]} == set(NODES)
    assert disks.tool("logs").count("root on ext4") == 2
    assert on_disks(disks) == ""
    assert bare(disks), left(disks)


@pytest.mark.slow
@pytest.mark.needs("loop")
def test_a_cancelled_job_on_the_nodes_disks_leaves_nothing_behind(disks: Site) -> None:
    result = disks.run(*DISK, "--", "python3", "-c", "raise SystemExit(7)", bundle=NAME, code=1)
    assert result["exit_code"] == 7
    assert on_disks(disks) == ""
    assert cancelled(disks, DISK)["exit_code"] == 143
    assert on_disks(disks) == ""


@pytest.mark.slow
@pytest.mark.needs("loop")
def test_a_full_disk_of_a_node_ends_the_job_before_the_payload(disks: Site) -> None:
    free = f"$(df --output=avail -k {PLACE} | tail -n 1)"
    disks.lab.sh("cn2", "root", f"fallocate -l $(({free} - 10240))K {PLACE}/fill").check("fill it")
    result = disks.run(*DISK, "--", "python3", "-c", "print('trained')", bundle=NAME, code=1)
    assert result["exit_code"] == 6
    (finding,) = (item for item in result["findings"] if item["severity"] == "error")
    assert finding["code"] == "stage.failed"
    assert f"{PLACE} has " in finding["message"]
    assert on_disks(disks) == "fill\n"


def test_an_image_that_cannot_fit_is_refused_with_the_arithmetic(clean: Site) -> None:
    said = clean.tool("run", NAME, *STAGED, "--memory", "7990", "--", "true", code=3)
    assert "MiB for the image + 7990 MiB for the ranks" in said
    assert "a job may use 8000 MiB per node" in said
