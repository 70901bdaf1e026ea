"""stage as job.sh calls it: a process that answers by lines, is spoken to by signals, and leaves nothing behind."""

import fcntl
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from deployer.cli.site.main import main
from deployer.contract.base.errors import Refused, SpaceError
from deployer.contract.base.tarformat import FILE, FOLDER, TarEntry
from deployer.contract.bundle import sealed_file
from deployer.contract.proof import evidence
from deployer.contract.site import plan as plans
from deployer.site.install import bytecode, kit, squash
from deployer.site.install.install import install, keep
from deployer.site.jobs import result
from deployer.site.rank import interfaces
from deployer.site.run import stage
from deployer.site.storage import space
from deployer.site.storage.store import Store
from tests import bundles, forked, running, wheels
from tests.others import NOBODY, somebody_else
from tests.unit.site.container.test_udocker import KIT

#: A root with the mount points that flatten makes, and a program that can be told from any other.
ENTRIES = [
    *((TarEntry(FOLDER, name, 0o755), b"") for name in (b"bin", b"deployer", b"deployer/app", b"deployer/wheels")),
    (TarEntry(FILE, b"bin/tool", 0o755, 9), b"#!/bin/sh"),
    (TarEntry(FILE, b"deployer/deployer.pyz", 0o644, 0), b""),
]
EXTRA = [
    ("deployer/app/train.py", b"pass"),
    ("deployer/data/faces/1", b"x" * 5000),
    ("deployer/wheels/" + wheels.file_name(), wheels.wheel({"demo/__init__.py": b"answer = 42"})),
    ("deployer/variants/openmpi/" + wheels.file_name("hvd"), wheels.wheel({"hvd.py": b"openmpi"}, "hvd")),
    ("deployer/variants/mpich-abi/" + wheels.file_name("hvd"), wheels.wheel({"hvd.py": b"mpich"}, "hvd")),
]


#: Stands in for a kit's ch-run, also as what mounts.
RUN = b"""#!/bin/sh
case $1 in
    --version) echo 0.31 ;;
    --join-pid=*) echo obeyed ;;
    *) shift; exec "$@" ;;
esac
"""
CHARLIECLOUD = [("deployer/kit/charliecloud/run", RUN, 0o755), ("deployer/kit/charliecloud/libc.so.6", b"x")]


class Job:
    """A kept and installed bundle, a node's folder, and what job.sh knows of them."""

    def __init__(self, folder, extra=EXTRA):
        self.store = Store(str(folder / "root"))
        path = folder / "b.tar"
        data = bundles.build(bundles.whole(ENTRIES), extra)
        path.write_bytes(bundles.reseal(data, lambda record: record.update(mount_points=["/lustre/p"])))
        self.image = install(str(path), self.store).image
        keep(str(path), self.store, self.image)
        Path(self.store.tool).write_bytes(b"the tool")
        self.place = folder / "node"
        self.place.mkdir()
        self.into = self.folder("77")
        self.hosts = folder / "hosts"
        self.out = folder / "ranks"
        self.out.mkdir()
        self.processes = []

    def folder(self, name):
        """Return a folder to stage into, as job.sh names it."""
        return self.place / ("deployer-stage-%d-%s" % (os.getuid(), name)) / "image"

    @property
    def bundle(self):
        return self.store.bundle(self.image.receipt)

    def start(self, into=None, source=None, mount=(), more=(), begins=True):
        """Start a node; if its facts are right and it ``begins``, it stages the image."""
        words = ["stage", "--image", self.image.folder, "--source", str(source or self.bundle), "--abi", "mpich-abi"]
        words += ["--into", str(into or self.into), "--out", str(self.out), "--tool", self.store.tool, *more]
        words += ["--hosts", str(self.hosts), *(["--", *mount] if mount else [])]
        process = forked.start(
            lambda: main(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True
        )
        self.processes.append(process)
        process.said = process.stdout.readline() if begins else ""
        if process.said.startswith("staged 0 "):
            process.send_signal(signal.SIGUSR1)
            process.said = ""
        return process

    def left(self):
        return sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*"))


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    cleared(job)


@pytest.fixture
def with_kit(tmp_path):
    job = Job(tmp_path, [*EXTRA, *KIT, *CHARLIECLOUD])
    yield job
    cleared(job)


def cleared(job):
    for process in job.processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def answer(process):
    line, process.said = process.said or process.stdout.readline(), ""
    who, status, _, *reason = line.strip().split(" ", 3)
    assert who == "staged"
    return int(status), " ".join(reason)


def end(process, number=signal.SIGUSR2):
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_the_image_stands_on_the_node_with_all_that_a_rank_reads(job):
    stubs = job.place.parent / "stubs" / "lib"
    stubs.mkdir(parents=True)
    (stubs / "libx.so").symlink_to("/usr/lib/libx.so.1")
    process = job.start(more=["--stubs", str(stubs.parent)])
    assert answer(process) == (0, "")
    assert os.readlink(str(job.into / "host" / "lib" / "libx.so")) == "/usr/lib/libx.so.1"
    rootfs = job.into / "rootfs"
    assert (rootfs / "bin/tool").read_bytes() == b"#!/bin/sh"
    assert (rootfs / "deployer/app/train.py").read_bytes() == b"pass"
    assert (rootfs / "deployer/wheels/lib/demo/__init__.py").read_bytes() == b"answer = 42"
    assert (rootfs / "deployer/variant/lib/hvd.py").read_bytes() == b"mpich"
    assert (rootfs / "deployer/deployer.pyz").read_bytes() == b"the tool"
    assert os.listdir(str(rootfs) + plans.NODE) == os.listdir(str(rootfs / "lustre/p")) == []
    assert sorted(os.listdir(str(job.into))) == ["evidence", "host", "rootfs"]  # no data, no other variant
    assert os.stat(str(job.into.parent)).st_mode & 0o777 == 0o700
    assert end(process) == (0, "")
    assert job.left() == []


def test_the_runtime_of_the_kit_is_ready_on_the_node_and_the_files_are_read_only(with_kit):
    process = with_kit.start(more=["--kit", "udocker"])
    assert answer(process) == (0, "")
    assert sorted(os.listdir(str(with_kit.into))) == ["engine", "evidence", "rootfs", "tmp"]
    assert os.stat(str(with_kit.into / "rootfs" / "lustre" / "p")).st_mode & 0o222 == 0
    run = [str(with_kit.into / "engine" / "run"), "--set-env=PATH=/usr/bin:/bin", str(with_kit.into / "rootfs"), "--"]
    script = "cat deployer/app/train.py; echo; echo $PROOT_TMP_DIR"
    # As on a site whose users have it on the shared file system.
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(with_kit.out)}
    said = subprocess.check_output([*run, "sh", "-c", script], env=environment).decode().split()
    assert (said[0], os.path.dirname(said[1])) == ("pass", str(with_kit.into / "tmp"))
    found = [with_kit.into / "rootfs", *(with_kit.into / "rootfs").rglob("*")]
    assert not [path for path in found if not path.is_symlink() and path.stat().st_mode & 0o222]
    taken = [path for path in (with_kit.into / "engine").rglob("*") if path.is_file()]
    assert len(taken) < kit.ENTRIES
    assert end(process) == (0, "")
    assert with_kit.left() == []


def test_the_ch_run_of_the_kit_is_on_the_node_alone(with_kit):
    """The bundle has udocker too, which is not made ready; only its engine takes the right to write from files."""
    process = with_kit.start(more=["--kit", "charliecloud-kit"])
    assert answer(process) == (0, "")
    assert sorted(os.listdir(str(with_kit.into))) == ["engine", "evidence", "rootfs"]
    assert os.listdir(str(with_kit.into / "engine")) == ["charliecloud"]
    run = str(with_kit.into / "engine" / "charliecloud" / "run")
    assert subprocess.check_output([run, "--version"]) == b"0.31\n"
    assert (with_kit.into / "rootfs").stat().st_mode & 0o200
    assert end(process) == (0, "")
    assert with_kit.left() == []


def test_the_ch_run_of_the_kit_is_beside_a_squashfs_file(with_kit, tmp_path):
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    engine = with_kit.into / "engine" / "charliecloud"
    mount = [str(engine / "run"), str(with_kit.into / "image.sqfs")]
    process = with_kit.start(source=squashed, mount=mount, more=["--kit", "charliecloud-kit"])
    assert answer(process) == (0, "")
    assert sorted(os.listdir(str(engine))) == ["libc.so.6", "run"]
    process.kill()


def test_a_runtime_of_the_site_needs_no_kit_on_the_node(with_kit):
    process = with_kit.start()
    assert answer(process) == (0, "")
    assert sorted(os.listdir(str(with_kit.into))) == ["evidence", "rootfs"]
    assert (with_kit.into / "rootfs").stat().st_mode & 0o200
    assert end(process) == (0, "")


def test_evidence_is_collected_into_one_file_when_asked_and_at_the_end(job):
    process = job.start()
    answer(process)
    (job.into / "evidence" / "probe-0.json").write_text("{}")
    (job.into / "evidence" / ".half.part").write_text("{")
    process.send_signal(signal.SIGUSR1)
    assert answer(process) == (0, "")
    (path,) = job.out.iterdir()
    assert evidence.read(evidence.NodeRecord, path.read_bytes(), "n").files == {"probe-0.json": "{}"}
    (job.into / "evidence" / "probe-0.log").write_text("a\n" * 10000)
    (job.into / "evidence" / "payload-0.json").write_text("{}")
    assert end(process)[0] == 0
    collected = result.texts(str(job.out))
    assert list(collected) == [path.name]
    found = evidence.read(evidence.NodeRecord, path.read_bytes(), "n").files
    assert sorted(found) == ["payload-0.json", "probe-0.json", "probe-0.log"]
    assert len(found["probe-0.log"]) <= 4096


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_slurms_end_takes_the_image_away_as_well(job, number):
    process = job.start()
    answer(process)
    assert end(process, number)[0] == 0
    assert job.left() == []
    assert len(list(job.out.iterdir())) == 1


@pytest.mark.thorough
def test_who_says_goodbye_is_waited_for(job):
    process = job.start()
    answer(process)
    tool = job.into / "rootfs" / "bin" / "sleep"
    tool.write_bytes(Path("/bin/sleep").read_bytes())
    tool.chmod(0o755)
    payload = subprocess.Popen([str(tool), "600"])
    try:
        root = stage.RankRoot(os.stat(str(job.into / "rootfs")))
        assert stage.users(str(job.into), root) == [payload.pid]
        assert stage.users(str(job.into), root._replace(holders=(1, payload.pid))) == []
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        assert tool.exists()
    finally:
        payload.kill()
        payload.wait()
    assert process.wait(60) == 0
    assert job.left() == []


def test_a_signal_while_it_unpacks_is_enough(job, monkeypatch):
    monkeypatch.setattr(stage.signal, "sigpending", lambda: {signal.SIGTERM})
    with pytest.raises(stage.JobFailed, match="asked to stop"):
        stage._stop_if_asked(1, 2)


@pytest.mark.thorough
def test_what_a_killed_job_left_is_reaped_and_what_lives_is_not(job):
    living = job.start(job.folder("1"))
    answer(living)
    killed = job.start(job.folder("2"))
    answer(killed)
    killed.kill()
    killed.wait()
    waiting, forgotten = job.folder("3").parent, job.folder("4").parent  # for what the scheduler sends
    for folder in (waiting, forgotten):
        folder.mkdir(0o700)
        (folder / "sent").write_bytes(b"half")
    os.utime(str(forgotten), (time.time() - 4000, time.time() - 4000))
    assert (job.folder("2") / "rootfs" / "bin" / "tool").exists()
    process = job.start()
    assert answer(process) == (0, "")
    alive = [job.folder("1").parent, waiting, job.into.parent]
    assert sorted(job.place.iterdir()) == sorted(alive)
    assert (job.folder("1") / "rootfs" / "bin" / "tool").exists()
    assert end(process)[0] == 0
    assert end(living)[0] == 0
    assert list(job.place.iterdir()) == [waiting]


def test_one_job_has_one_image_a_node(job):
    first = job.start()
    answer(first)
    second = job.start()
    code, reason = answer(second)
    assert (code, "in use" in reason) == (3, True)
    assert second.wait(60) == 0
    assert (job.into / "rootfs").exists()
    assert end(first)[0] == 0


def test_another_bundle_under_the_name_is_refused(job):
    Path(job.bundle).write_bytes(bundles.build(bundles.whole(ENTRIES), version="2.0"))
    process = job.start()
    code, reason = answer(process)
    assert (code, "is not the bundle of" in reason) == (4, True)
    assert process.wait(60) == 0
    assert job.left() == []


@pytest.mark.thorough
def test_a_damaged_bundle_leaves_nothing(job):
    data = bytearray(Path(job.bundle).read_bytes())
    at = data.index(b"answer = 42") if b"answer = 42" in data else data.index(b"\x1f\x8b") + 20
    data[at] ^= 1
    Path(job.bundle).write_bytes(bytes(data))
    process = job.start()
    assert answer(process)[0] == 4
    assert process.wait(60) == 0
    assert job.left() == []


def test_no_room_is_one_line_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "in_memory", lambda folder: True)
    monkeypatch.setattr(space, "available_memory", lambda: 999)
    request = stage.StageRequest("i", "b", str(tmp_path / "private" / "into"), "o", "t", "h")
    with pytest.raises(stage.SpaceError, match=r"999 B of memory free; the image takes 1\.0 kB") as caught:
        stage._check_room(request, 1000, 1)
    assert caught.value.exit_code == 6
    with pytest.raises(stage.SpaceError, match="free;"):
        stage._check_room(request, 10**18, 1)
    monkeypatch.setattr(space, "available_memory", lambda: None)
    stage._check_room(request, 1000, 1)


@pytest.mark.parametrize("kind", ["link", "open", "theirs", "file"])
def test_a_folder_that_somebody_else_prepared_is_not_taken(job, tmp_path, kind):
    parent, other = job.into.parent, tmp_path / "other"
    other.mkdir(0o700)
    if kind == "link":
        parent.symlink_to(other)
    elif kind == "file":
        parent.write_bytes(b"")
    else:
        parent.mkdir()
        parent.chmod(0o711 if kind == "open" else 0o700)
    if kind == "theirs":
        with somebody_else(0):
            os.chown(str(parent), NOBODY, NOBODY)
    with pytest.raises(Refused, match="not this user's own"), stage.claimed(str(job.into)):
        pass
    assert os.path.lexists(str(parent))
    assert list(other.iterdir()) == []


def test_a_folder_of_another_user_is_neither_reaped_nor_in_the_way(job):
    theirs = job.folder("theirs").parent
    theirs.mkdir(0o700)
    (theirs / "lock").write_bytes(b"")
    with somebody_else(0):
        os.chown(str(theirs), NOBODY, NOBODY)
        (job.place / ("deployer-%d" % os.getuid())).write_bytes(b"")  # the name that earlier versions had
        with stage.claimed(str(job.into)):
            assert job.into.is_dir()
    assert theirs.is_dir()


def test_a_place_where_every_user_can_rename_is_refused(job):
    job.place.chmod(0o777)
    with pytest.raises(Refused, match="its sticky bit is not set"), stage.claimed(str(job.into)):
        pass
    job.place.chmod(0o1777)
    with stage.claimed(str(job.into)):
        pass


def test_an_image_whose_folder_leads_elsewhere_is_refused(tmp_path):
    rootfs = tmp_path / "rootfs"
    rootfs.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (rootfs / "deployer").symlink_to(tmp_path / "elsewhere")
    request = stage.StageRequest("i", "b", str(tmp_path), "o", "t", "h")
    with pytest.raises(stage.IntegrityError, match="leads elsewhere"):
        stage._merge(request)


def test_what_is_needed_is_counted_without_data(job):
    manifest = job.image.manifest()
    need = stage.need(job.image, manifest, 500)
    assert (need.sizes, need.ranks_mb) == ({"memory": 1, "disk": 1}, 500)
    assert sorted(need.objections) == ["mounted", "sif", "squashfs"]
    assert "no SquashFS file" in need.objections["squashfs"].reason
    receipt = job.image.receipt._replace(bytes=100 * 2**20 + 5000, files=1024)
    counted = stage.need(job.image._replace(receipt=receipt), manifest, 0)
    assert counted.sizes["memory"] == 103
    os.unlink(job.bundle)
    Path(squash.path(job.image.folder)).write_bytes(b"x" * (2**20 + 1))
    need = stage.need(job.image, manifest, 0)
    assert (need.sizes["squashfs"], need.sizes["mounted"]) == (2, 0)
    assert sorted(need.objections) == ["disk", "memory", "sif"]
    assert "--keep" in need.objections["memory"].remedy


def test_bytecode_is_kept_in_one_file_and_comes_back(tmp_path):
    cache = tmp_path / "image" / "wheels" / "lib" / "demo" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "demo.cpython-36.pyc").write_bytes(b"compiled")
    (cache.parent / "demo.py").write_bytes(b"source")
    folder = str(tmp_path / "image")
    assert bytecode.size(folder) == 0
    bytecode._keep(folder, [folder + "/wheels"])
    assert bytecode.size(folder) > 0
    copy = tmp_path / "copy"
    (copy / "wheels/lib/demo").mkdir(parents=True)
    bytecode.restore(folder, str(copy))
    assert [path.name for path in copy.rglob("*") if path.is_file()] == ["demo.cpython-36.pyc"]
    assert (copy / "wheels/lib/demo/__pycache__/demo.cpython-36.pyc").read_bytes() == b"compiled"


def test_a_lock_is_the_living_ones(tmp_path):
    """Reaping looks at locks alone: a number of a process would be another's on the next day."""
    into = tmp_path / ("deployer-stage-%d-x" % os.getuid()) / "image"
    with stage.claimed(str(into)):
        with open(str(into.parent / "lock")) as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stage.reap(str(tmp_path))
        assert into.is_dir()
    assert not into.parent.exists()


@pytest.fixture
def short_grace(monkeypatch):
    """Shorten the wait for payloads: the stand-in shares this machine's root, so that all processes look like ones."""
    monkeypatch.setattr(stage.payload_monitor, "GRACE", 0.5)


@pytest.mark.thorough
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(("mounts", "name"), [("exit 1", "image.sqfs"), (None, "image.sqfs"), ("exit 1", "image.sif")])
def test_ranks_start_the_file_if_it_cannot_be_mounted_once(job, tmp_path, monkeypatch, mounts, name):
    """squashfuse_ll fails, or there is none, or folders are forbidden; on the lab, it mounts."""
    fails = str(running.program(tmp_path, "squashfuse_ll", f"echo called >>{tmp_path}/log; {mounts}"))
    monkeypatch.setattr(stage.apptainer, "mounter", lambda *_: mounts and fails)
    packed = tmp_path / name
    packed.write_bytes(b"compressed")
    process = job.start(source=packed, more=["--once", "apptainer"])
    assert answer(process) == (0, "")
    assert os.readlink(str(job.into / "image")) == name
    assert (tmp_path / "log").exists() is (mounts is not None and name == "image.sqfs")
    assert end(process) == (0, "")
    assert job.left() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("short_grace")
def test_ranks_start_the_file_if_the_mounted_folder_does_not_start(job, tmp_path, monkeypatch):
    """The first reading is of the folder."""
    monkeypatch.setattr(stage.apptainer, "mounter", lambda *_: str(running.program(tmp_path, "fuse", "sleep 60")))
    monkeypatch.setattr(stage.os.path, "ismount", lambda path: path.endswith("/rootfs"))
    packed = tmp_path / "image.sqfs"
    packed.write_bytes(b"compressed")
    reads = f'readlink {job.into}/image >>{tmp_path}/log; [ "$(wc -l <{tmp_path}/log)" = 1 ] || printf "%s" "$0"'
    process = job.start(
        source=packed, mount=["sh", "-c", reads, plans.CANARY_TEXT], more=["--once", "a", "--reader", "4"]
    )
    assert answer(process) == (0, "")
    assert (tmp_path / "log").read_text().split() == ["rootfs", "image.sqfs"]


@pytest.mark.thorough
@pytest.mark.usefixtures("short_grace")
def test_a_squashfs_file_is_taken_to_the_node_and_held_mounted(job, tmp_path):
    """With a stand-in for what mounts: it becomes its words but for the file, as ch-run does in the container."""
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    held = job.into / "image.sqfs"
    process = job.start(source=squashed, mount=["sh", "-c", 'shift; exec "$@"', "sh", str(held)])
    assert answer(process) == (0, "")
    assert held.read_bytes() == b"compressed"
    assert (job.into / "deployer.pyz").read_bytes() == b"the tool"
    number = int((job.into / "pid").read_text())
    assert os.path.exists("/proc/%d" % number)
    os.kill(number, signal.SIGTERM)  # as Slurm asks all processes of a step
    process.send_signal(signal.SIGUSR1)
    assert answer(process) == (0, "")
    assert end(process) == (0, "")
    assert not os.path.exists("/proc/%d" % number)
    assert job.left() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("short_grace")
def test_a_squashfs_file_in_place_is_not_copied_and_its_other_readers_live(job, tmp_path):
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    with squashed.open() as opened, subprocess.Popen(["sleep", "60"], stdin=opened) as reader:  # of another job
        mount = ["sh", "-c", 'shift; exec "$@"', "sh", str(job.into / "image.sqfs")]
        process = job.start(source=squashed, mount=mount, more=["--in-place"])
        assert answer(process) == (0, "")
        assert os.readlink(str(job.into / "image.sqfs")) == str(squashed)
        assert end(process) == (0, "")
        assert reader.poll() is None
        reader.kill()
    assert squashed.read_bytes() == b"compressed"
    assert job.left() == []


@pytest.mark.parametrize(("said", "noted"), [("obeyed", ""), ("", " bare")])
def test_the_holder_asks_whether_those_who_join_get_the_environment(job, tmp_path, said, noted):
    """The stand-in for what mounts is asked by --join-pid, and says what the payload would see."""
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    script = f'case $1 in --join-pid=*) echo "{said}" ;; *) shift; exec "$@" ;; esac\n'
    process = job.start(source=squashed, mount=[running.program(tmp_path, "ch-run", script), "file"])
    assert answer(process) == (0, "")
    number, _, rest = (job.into / "pid").read_text().rstrip("\n").partition(" ")
    assert (number.isdigit(), rest) == (True, noted.strip())
    process.kill()


@pytest.mark.thorough
def test_what_is_mounted_goes_with_its_holder(job, tmp_path):
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    process = job.start(source=squashed, mount=["sh", "-c", 'shift; exec "$@"', "sh", "file"])
    answer(process)
    number = int((job.into / "pid").read_text())
    process.kill()
    process.wait()
    until = time.time() + 30
    while os.path.exists("/proc/%d" % number) and time.time() < until:
        time.sleep(0.05)
    assert not os.path.exists("/proc/%d" % number)


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [("no bundle", 2, "No such file"), ("no room", 6, "free;"), ("no runtime", 3, "does not show the image's root")],
)
def test_what_a_node_lacks_is_known_with_its_facts(job, tmp_path, monkeypatch, fault, code, reason):
    hosts = tmp_path / "hosts"
    if fault == "no bundle":
        os.unlink(job.bundle)
    elif fault == "no room":
        monkeypatch.setattr(space, "in_memory", lambda folder: True)
        monkeypatch.setattr(space, "available_memory", lambda: 999)
    words = ["/nowhere/ch-run", "image"] if fault == "no runtime" else ["sh", "-c", "exit 1"]
    process = job.start(mount=words, more=["--reader", str(len(words))], begins=False)
    found = answer(process)
    assert found[0] == code
    assert reason in found[1]
    assert process.wait(60) == 0  # without a signal
    assert [path.suffix for path in sorted(hosts.iterdir())] == [".json"] + [".root"] * (fault == "no runtime")
    if fault == "no runtime":
        (root,) = hosts.glob("*.root")
        assert root.read_text().startswith("cannot start /nowhere/ch-run: No such file or directory")
    assert job.left() == []


def test_the_facts_of_a_node_come_before_its_image(job, tmp_path):
    hosts = tmp_path / "hosts"
    process = job.start(begins=False)
    assert answer(process) == (0, "")
    (record,) = hosts.iterdir()
    assert evidence.read(evidence.HostRecord, record.read_bytes(), "it").identity is None
    assert os.listdir(str(job.into)) == []  # nothing is staged before all nodes are known to be right
    process.send_signal(signal.SIGUSR1)
    assert answer(process) == (0, "")
    assert (job.into / "rootfs/bin/tool").exists()
    assert end(process)[0] == 0
    assert job.left() == []


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_node_that_is_not_wanted_stages_nothing(job, tmp_path, number):
    home = "/tmp/deployer-home-%d-stage-%d" % (os.getuid(), os.getpid())
    process = job.start(more=["--hosts", str(tmp_path / "hosts"), "--home", home])
    assert answer(process) == (0, "")
    assert os.path.isdir(home)
    assert end(process, number)[0] == 0
    assert (job.left(), os.path.exists(home)) == ([], False)


def test_a_node_without_a_place_for_its_facts_says_so(job, tmp_path):
    (tmp_path / "hosts").write_text("a file")
    process = job.start()
    status, reason = answer(process)
    assert (status, process.wait(60)) == (1, 0)
    assert "cannot write" in reason
    assert job.left() == []


@pytest.mark.parametrize(("text", "status"), [(plans.CANARY_TEXT, 0), ("cat: no such file\n", 3)])
def test_a_node_that_shows_another_root_is_not_ready(job, tmp_path, text, status):
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    words = ["printf", "%s", text, "sh", "-c", 'exec "$@"', "sh"]  # the reader's, then what mounts
    process = job.start(source=squashed, mount=words, more=["--reader", "3"])
    assert answer(process)[0] == status
    (said,) = (tmp_path / "hosts").glob("*.root")
    assert said.read_text() == text
    if status:
        assert process.wait(60) == 0
        assert job.left() == []
    else:  # the root of what stands in for a mount is that of all processes: its end would wait for them
        process.kill()


def test_an_error_of_the_operating_system_is_an_answer_too(job, tmp_path, monkeypatch):
    def broken():
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(interfaces, "addresses", broken)
    process = job.start()
    assert answer(process) == (1, "cannot stage the image: Input/output error")
    assert process.wait(60) == 0
    assert job.left() == []


def test_a_mount_that_fails_is_said_in_a_line(job, tmp_path):
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    process = job.start(source=squashed, mount=["sh", "-c", "exit 1"])
    assert answer(process) == (7, "the SquashFS image could not be mounted")
    assert process.wait(60) == 0
    assert job.left() == []


@pytest.mark.thorough
def test_a_squashfs_file_that_each_rank_mounts_is_only_copied(job, tmp_path):
    squashed = tmp_path / "image.sqfs"
    squashed.write_bytes(b"compressed")
    process = job.start(source=squashed)
    assert answer(process) == (0, "")
    assert sorted(os.listdir(str(job.into))) == ["deployer.pyz", "evidence", "image.sqfs", "rootfs"]
    assert (job.into / "image.sqfs").read_bytes() == b"compressed"
    with (job.into / "image.sqfs").open() as stream:  # as what serves the mount of a rank that was killed
        server = subprocess.Popen(["sleep", "600"], stdin=stream)
    assert end(process) == (0, "")
    assert server.wait(10) == -signal.SIGKILL
    assert job.left() == []


class Pair:
    """Two nodes, of which the first sends what it reads on to the second."""

    def __init__(self, job, monkeypatch, sources):
        self.into = [job.folder(name) for name in ("n0", "n1")]
        self.nodes = []
        for number, (into, source) in enumerate(zip(self.into, sources)):
            monkeypatch.setattr(socket, "gethostname", lambda number=number: "n%d" % number)
            self.nodes.append(job.start(into, source, more=["--relay"], begins=False))
        assert [answer(node) for node in self.nodes] == [(0, "")] * 2
        lines = ["n%d 127.0.0.1 %d\n" % (number, interfaces.free_port()) for number in range(2)]
        (job.hosts / "meet").write_text("2,1,127.0.0.1,1000,\n%s\n%s" % ("ab" * 32, "".join(lines)))

    def begin(self, *numbers):
        for number in numbers:
            self.nodes[number].send_signal(signal.SIGUSR1)

    def answers(self):
        return [answer(node)[0] for node in self.nodes]

    def image(self, job, number):
        """Return how a node got the image, by its record."""
        return evidence.read(evidence.NodeRecord, (job.out / ("node-n%d.json" % number)).read_bytes(), "it").image


def damaged(path, copy):
    """Write a copy of a bundle of which only the manifest and the seal are whole."""
    data = path.read_bytes()
    begin = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data)).offset
    copy.write_bytes(b"x" * begin + data[begin:])
    return copy


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [0, 2])
def test_a_node_takes_the_bundle_from_the_node_before_it(job, tmp_path, monkeypatch, processes):
    monkeypatch.setattr(stage.workers, "suitable", lambda size: processes)
    path = Path(job.bundle)
    pair = Pair(job, monkeypatch, [path, damaged(path, tmp_path / "b.tar")])
    pair.begin(1, 0)
    assert pair.answers() == [0, 0]
    for into in pair.into:
        assert (into / "rootfs/bin/tool").read_bytes() == b"#!/bin/sh"
        assert not (into.parent / "arrived").exists()
    assert [end(node)[0] for node in pair.nodes] == [0, 0]
    first, second = (pair.image(job, number) for number in (0, 1))
    assert (first.node, first.from_node, second.node, second.from_file) == (None, 0, "n0", 0)
    assert first.from_file == second.from_node > 0
    assert job.left() == []


@pytest.mark.thorough
def test_a_damaged_bundle_is_not_used_by_whomever_it_was_sent(job, tmp_path, monkeypatch):
    path = Path(job.bundle)
    pair = Pair(job, monkeypatch, [damaged(path, tmp_path / "b.tar"), path])
    pair.begin(0, 1)
    assert pair.answers()[0] == 4
    assert [end(node)[0] for node in pair.nodes] == [0, 0]
    assert job.left() == []


@pytest.mark.thorough
def test_a_node_whose_neighbour_dies_reads_the_bundle_itself(job, monkeypatch):
    """It has begun to wait; the neighbour is killed before it sends anything."""
    monkeypatch.setattr(stage.relay, "_SILENCE", 1.0)
    pair = Pair(job, monkeypatch, [None, None])
    pair.begin(1)
    pair.nodes[0].kill()
    assert answer(pair.nodes[1]) == (0, "")
    assert (pair.into[1] / "rootfs/bin/tool").read_bytes() == b"#!/bin/sh"
    assert end(pair.nodes[1])[0] == 0
    came = pair.image(job, 1)
    assert (came.node, came.from_node, came.from_file > 0, came.reason) == ("n0", 0, True, "it does not connect")
    stage.reap(str(job.place))  # the neighbour's folder
    assert job.left() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("short_grace")
def test_a_node_takes_a_squashfs_file_from_the_node_before_it(job, tmp_path, monkeypatch):
    sources = [tmp_path / name / "image.sqfs" for name in "ab"]
    for source, content in zip(sources, (b"compressed", b"x" * 10)):
        source.parent.mkdir()
        source.write_bytes(content)
    pair = Pair(job, monkeypatch, sources)
    pair.begin(0, 1)
    assert pair.answers() == [0, 0]
    assert [(into / "image.sqfs").read_bytes() for into in pair.into] == [b"compressed"] * 2
    assert [end(node)[0] for node in pair.nodes] == [0, 0]
    assert job.left() == []


@pytest.mark.thorough
def test_a_node_without_room_for_a_second_file_reads_the_first(job, monkeypatch):
    """The size of both files together is more than that of the unpacked image."""
    sizes = []

    def check(request, size, entries):
        sizes.append(size)
        if size > sizes[0]:
            raise SpaceError("too small")

    def relay(*_):
        raise AssertionError("no room")

    monkeypatch.setattr(stage, "_check_room", check)
    monkeypatch.setattr(stage.relay, "Relay", relay)
    pair = Pair(job, monkeypatch, [None, None])
    pair.begin(0, 1)
    assert pair.answers() == [0, 0]
    assert (pair.into[1] / "rootfs/bin/tool").exists()
    assert [end(node)[0] for node in pair.nodes] == [0, 0]
    assert job.left() == []
