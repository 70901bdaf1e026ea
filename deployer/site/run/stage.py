"""stage: on each node, before the ranks start, unpack the image into a local folder and hold it there.

One process per node runs in a step next to those of the ranks. It writes the facts of the node, checks what it can, and
answers with one line, ``staged EXIT HOST REASON``. After SIGUSR1, it unpacks the stored bundle, a single file to read
once instead of ten thousand files. It answers again, and stays until the end of the job. After a failure it still exits
with 0: the line informs job.sh, and srun leaves the other nodes time to clean up.

    SIGUSR1     writes the ranks' evidence on the node to one file in the job's folder; prints another line
    SIGUSR2     does the same, and ends
    SIGTERM     the same, once no process uses the image any more: Slurm ends the job (time limit, scancel)

It removes the folder when it ends. If it is killed, the next one on the node removes the folder. srun forwards SIGUSR1
and SIGUSR2 to its tasks; on SIGTERM, srun kills them (tested with Slurm 22.05).
"""

import fcntl
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, JobFailed, MissingTool, Refused, SpaceError
from deployer.contract.bundle.manifest import DATA_PREFIX, KIT_PREFIX, Manifest
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import ReceivedImage
from deployer.contract.site import plan as plans
from deployer.contract.site.choose import Obstacle, StagingNeed
from deployer.site.capture import apptainer
from deployer.site.container import caches, container, node_folder
from deployer.site.container.runtimes import charliecloud
from deployer.site.install import bytecode, content, kit, mount_points, squash
from deployer.site.jobs import relay, result
from deployer.site.rank import host_probe, payload_monitor
from deployer.site.run.job_script.staging_script import BEGIN, EVIDENCE, ROOTFS, STARTED, STUBS, TEMPORARY, TOOL
from deployer.site.storage import space
from deployer.site.storage.store import ENGINE, VARIANTS, WHEELS, InstalledImage, Store
from deployer.system import files, process, workers
from deployer.system.trust import verify

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LOCK = "lock"
_MIB = 1024 * 1024
#: A file in memory takes whole pages, with half a page lost on average, and its inode takes 1 KiB of kernel memory.
_A_FILE = 3072
#: Seconds after which a folder without a lock is a dead job's.
_UNLOCKED = 3600
_FUSERMOUNT = "fusermount3"
#: Runs a program that serves a mount at the folder $0, and unmounts when the holder ends; prints a line if it fails.
#: Both ignore what Slurm sends the whole step, because a shell's children do not inherit blocked signals.
_SERVED = f"""trap "" HUP INT TERM USR1 USR2
{{ "$@" </dev/null || echo failed; }} & read -r _; {_FUSERMOUNT} -u -z "$0" 2>/dev/null; wait"""
#: Run in a mounted image: prints the id of the process to join, and ends when this process ends.
_READY = ("/bin/sh", "-c", "echo $$; read -r _")
_NO_ROOT = "a container does not show the image's root"
_HINT = "the image is staged there: is it full, or closed to users?"
#: Seconds between two checks for bytes that have not arrived.
_LOOK = 0.02
#: Seconds to wait for a mount.
_PATIENCE = 60.0


class StageRequest(NamedTuple):
    """What to stage, and where.

    Attributes:
        image: the installed image's folder.
        source: its bundle or SquashFS file.
        into: the folder to create on the node.
        out: the folder for the evidence.
        tool: the .pyz that ranks start.
        hosts: the job's folder for the facts of this node.
        abi: the MPI family of the Horovod variant, or None.
        stubs: the folder of stubs for host files, or None.
        relay: whether the nodes send ``source`` on to each other.
        mount: words that mount the staged SquashFS file and run the following words in it; empty: nothing is mounted
            for all ranks.
        kit: the runtime if it comes from the bundle's kit, else empty.
        home: the job's home on this node, to remove at the end, or None.
        mounts: mount points that the bundle does not list.
        reader: a command that prints the canary of the image from a container; empty if there is none.
        library: the plan's MPI on the host, or None.
        keep: the beginning of the image's archives and the paths in the home that are kept there; empty: none.
        once: the program that mounts the staged file for each rank, unless it can be mounted once; None: other ways.
        in_place: whether ``source`` is mounted where it is, without a copy.
    """

    image: str
    source: str
    into: str
    out: str
    tool: str
    hosts: str
    abi: Optional[str] = None
    stubs: Optional[str] = None
    relay: bool = False
    mount: Sequence[str] = ()
    kit: str = ""
    home: Optional[str] = None
    mounts: Sequence[str] = ()
    reader: Sequence[str] = ()
    library: Optional[str] = None
    keep: Sequence[str] = ()
    once: Optional[str] = None
    in_place: bool = False

    @property
    def packed(self) -> bool:
        """Return whether the image is staged as one file."""
        return os.path.basename(self.source) in squash.NAMES.values()


class RankRoot(NamedTuple):
    """The root folder of the ranks.

    Attributes:
        stat: the status of the folder, including its inode.
        holders: the processes that keep it mounted; none if it is not mounted.
    """

    stat: os.stat_result
    holders: Tuple[int, ...] = ()


def need(installed: InstalledImage, manifest: Manifest, ranks_mb: int) -> StagingNeed:
    """Return what a node needs to stage an image, with an objection to each kind of staging whose file is missing."""
    receipt = installed.receipt
    size = receipt.bytes - sum(member.size for member in manifest.members if member.name.startswith(DATA_PREFIX))
    size += receipt.files * _A_FILE + bytecode.size(installed.folder)
    engine = kit.ROOM if files.is_folder(installed.engine) else 0
    size += engine
    objections = {}
    if not files.is_file(installed.bundle):
        unkept = Obstacle(
            f"its bundle is not under {installed.store.bundles}", "install it again with --keep, or push it again"
        )
        objections = {plans.MEMORY: unkept, plans.DISK: unkept}
    sizes = {plans.MEMORY: _mib(size), plans.DISK: _mib(size)}
    for form in squash.NAMES:
        packed = squash.path(installed.folder, form)
        if files.is_file(packed):
            copied = 0 if form == plans.MOUNTED else os.path.getsize(packed)
            sizes[form] = _mib(copied + engine)  # at most
        else:
            objections[form] = squash.absent(installed, form)
    return StagingNeed(sizes, ranks_mb, objections)


def _mib(size: int) -> int:
    return -(-size // _MIB)


def stage(request: StageRequest) -> int:
    """Unpack, answer, hold, and clean up. Return 0 even after a failure, which the answer reports."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # workers inherit it, so that they only end with this process
    try:
        with files.errors_named("stage the image"):
            _hold(request)
    except DeployerError as error:
        _answer(error.exit_code, error.message)  # not printed as well: each of a thousand nodes would
    finally:
        if request.home:
            if request.keep and files.lexists(request.home + payload_monitor.KEPT):
                caches.save(request.home, request.keep[0], request.keep[1:])
            files.remove_tree(request.home)
    return 0


def _hold(request: StageRequest) -> None:
    """Stage the image and hold it until job.sh or Slurm ends it."""
    os.access(request.source, os.R_OK)  # if its file system hangs, the node has no record, and is late
    host_probe.host(request.hosts, request.library, request.home, keep=request.keep)
    program = (*request.mount, *request.reader, "sh")[0]
    if not program.startswith(request.into) and shutil.which(program) is None:
        host_probe.read_root(request.hosts, [program])  # records the reason
        raise Refused(_NO_ROOT)
    with claimed(request.into):
        with files.errors_named("write under " + request.into, "free some there: an earlier job may have left it"):
            received: List[ReceivedImage] = []
            filling = (_fill_packed if request.packed else _fill)(request, received)
            next(filling)  # what is wrong before anything is written fails while all nodes report
            _answer(0, "")
            if signal.sigwait(_SIGNALS) != signal.SIGUSR1:
                return
            next(filling, None)
            os.mkdir(os.path.join(request.into, EVIDENCE))
            if request.stubs:
                shutil.copytree(request.stubs, os.path.join(request.into, STUBS), symlinks=True)
        with _mounted(request) as root:
            if request.reader:  # its output is evaluated later
                shown = host_probe.read_root(request.hosts, request.reader)
                if shown != plans.CANARY_TEXT and request.once:  # perhaps it starts the file, but not the folder
                    _link(request, os.path.basename(request.source))
                    shown = host_probe.read_root(request.hosts, request.reader)
                if shown != plans.CANARY_TEXT:
                    raise Refused(_NO_ROOT)
            _answer(0, "")
            while signal.sigwait(_SIGNALS) == signal.SIGUSR1:
                _publish(request, received)
                _answer(0, "")
            until = time.time() + payload_monitor.GRACE
            while users(request.into, root) and time.time() < until:
                time.sleep(0.1)
            if request.packed and not request.in_place and not os.path.ismount(os.path.join(request.into, ROOTFS)):
                end_readers(os.path.join(request.into, os.path.basename(request.source)), root)
            _publish(request, received)


def _answer(code: int, reason: str) -> None:
    """Answer job.sh, which reads one line from each node."""
    sys.stdout.write("staged %d %s %s\n" % (code, socket.gethostname(), " ".join(reason.split())))
    sys.stdout.flush()


# --- the folder: its owner and its removal ---


@contextmanager
def claimed(path: str) -> Iterator[None]:
    """Create the folder ``path`` in a private folder for the duration of the block; remove the folders of dead jobs.

    The owning process holds a lock on a file in the private folder. The kernel releases the lock when the process ends.
    File systems of nodes support locks, unlike shared ones.

    Raises:
        Refused: the place is unsafe, or this job already stages here.
        SpaceError: the node has not enough space.
        DeployerError: the folder cannot be created.
    """
    parent = os.path.dirname(path)
    place = os.path.dirname(parent)
    with files.errors_named("stage in " + place):
        noexec = os.statvfs(place).f_flag & os.ST_NOEXEC
    if noexec:
        raise Refused(f"{place} is mounted noexec: no program of an image can run from there", "--staging folder")
    reap(place)
    node_folder.check_place(place)
    if files.lexists(parent):
        node_folder.check(parent)
    else:
        node_folder.make(parent, _HINT)
    with files.errors_named("make " + path):
        lock = _lock(os.path.join(parent, _LOCK))
    try:
        with files.errors_named("make " + path):
            os.mkdir(path, 0o700)
        yield
    finally:
        files.remove_tree(parent)
        os.close(lock)


def _lock(path: str) -> int:
    """Lock a new file and then name it ``path``; an unlocked file with that name would belong to a dead process."""
    new = path + ".new"
    try:
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(new, path)
    except FileExistsError:
        raise Refused(f"{path} is in use: this job stages on this node already") from None
    os.unlink(new)
    return descriptor


def reap(place: str) -> None:
    """Remove the leftovers of this user's dead jobs in ``place``."""
    for path in node_folder.own(os.path.join(place, BEGIN)):
        try:
            descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if node_folder.age(path) > _UNLOCKED:
                files.remove_tree(path)
            continue
        try:
            with suppress(BlockingIOError):  # its job still runs
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _unmount(path)
                files.remove_tree(path)
        finally:
            os.close(descriptor)


@contextmanager
def _mounted(request: StageRequest) -> Iterator[RankRoot]:
    """Yield the root of the ranks for the duration of the block, after mounting a SquashFS file if necessary.

    The process that serves the mount blocks the same signals as this one, so that it outlives a payload that is still
    ending.
    """
    if not request.mount:
        with _once(request) if request.once else ExitStack():
            yield RankRoot(os.stat(os.path.join(request.into, ROOTFS)))
        return
    held = process.HeldProcess([*request.mount, *_READY], container.user_environment())
    try:
        pid = held.line(_PATIENCE)
        if not pid.isdigit():
            raise MissingTool(
                "the SquashFS image could not be mounted", "see the job's log: may users open /dev/fuse there?"
            )
        ask = charliecloud.ask_joined(request.mount[0], pid, os.path.join(request.into, ROOTFS))
        joined = process.run(ask, _PATIENCE, env=container.user_environment(), check=False)
        bare = joined.returncode == 0 and joined.stdout.strip() != charliecloud.OBEYED
        files.write_text(os.path.join(request.into, "pid"), pid + (" " + charliecloud.BARE if bare else "") + "\n")
        yield RankRoot(os.stat(f"/proc/{pid}/root"), (held.pid, int(pid)))
    finally:
        held.end()


@contextmanager
def _once(request: StageRequest) -> Iterator[None]:
    """Mount the staged SquashFS file at a folder for all ranks if that is possible; link to what they start."""
    name, folder = os.path.basename(request.source), os.path.join(request.into, ROOTFS)
    mounter = apptainer.mounter(str(request.once), request.into) if name == squash.IMAGE else None
    words = [mounter or "false", "-f", "-o", "auto_unmount", os.path.join(request.into, name), folder]
    held = process.HeldProcess(["sh", "-c", _SERVED, folder, *words], container.user_environment())
    try:
        until = time.time() + _PATIENCE
        while not os.path.ismount(folder) and not held.line(0.02) and time.time() < until:
            pass
        _link(request, ROOTFS if os.path.ismount(folder) else name)
        yield
    finally:
        held.end()


def _link(request: StageRequest, name: str) -> None:
    """Let ranks start what has this name in the staged folder."""
    link = os.path.join(request.into, STARTED)
    with suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(name, link)


def _unmount(parent: str) -> None:
    """Unmount what a killed holder left in its folder."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
        points = [line.split(" ")[4] for line in stream]
    for point in points:
        if point.startswith(parent + "/"):
            process.run([_FUSERMOUNT, "-u", "-z", point], _PATIENCE, check=False)


def users(folder: str, root: RankRoot) -> List[int]:
    """Return this user's processes that use the staged image or a folder next to it, without those that hold it."""
    pids = []
    for name in _others(root):
        with suppress(OSError):  # it has ended, or is another user's
            theirs = os.stat(f"/proc/{name}/root")
            inside = (theirs.st_dev, theirs.st_ino) == (root.stat.st_dev, root.stat.st_ino)
            used = [os.readlink(f"/proc/{name}/{link}") for link in ("exe", "cwd")]
            if inside or any(path.startswith(folder + "/") for path in used) or _binds(name, folder):
                pids.append(int(name))
    return pids


def end_readers(path: str, root: RankRoot) -> None:
    """Kill this user's processes that have the staged file open, because they serve mounts of killed ranks."""
    path = os.path.realpath(path)
    for name in _others(root):
        with suppress(OSError):  # it has ended, or is another user's
            opened = [f"/proc/{name}/fd/{link}" for link in os.listdir(f"/proc/{name}/fd")]
            if any(os.readlink(link) == path for link in opened):
                os.kill(int(name), signal.SIGKILL)


def _others(root: RankRoot) -> List[str]:
    """Return the numbers of all processes but this one and those that hold the image."""
    return [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (os.getpid(), *root.holders)]


def _binds(process: str, folder: str) -> bool:
    """Return whether a process has part of the staged folder mounted. Text suffices: the name is unpredictable."""
    name = os.path.basename(os.path.dirname(folder))
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="replace") as stream:
        return any(f"/{name}/" in line.split(" ")[3] for line in stream)  # all see a mount at it, in the next field


# --- the content ---


def _links(request: StageRequest, size: int) -> Optional[relay.Links]:
    """Return this node's place if the nodes send the file on to each other and ``size`` bytes fit here, else None."""
    with suppress(SpaceError):
        _check_room(request, size, 1)
        return relay.links(request.hosts) if request.relay else None
    return None


@contextmanager
def _arriving(
    request: StageRequest, links: relay.Links, pieces: Sequence[relay.FilePiece], received: List[ReceivedImage]
) -> Iterator[Tuple[IO[bytes], Callable[[], bool]]]:
    """Yield a file that a second process writes, and what waits a moment and tells whether more may arrive.

    At the end of the block, wait until the next node has everything too.
    """
    with ExitStack() as opened:
        stream = opened.enter_context(open(_arrived(request), "x+b"))
        other = opened.enter_context(workers.Beside(relay.Relay(links, request.source, stream, pieces).run))

        def comes() -> bool:
            return not other.has_ended(_LOOK)

        yield stream, comes
        while comes():
            _stop_if_asked()
        received.append(other.result())


def _arrived(request: StageRequest) -> str:
    return os.path.join(os.path.dirname(request.into), "arrived")


def _fill(request: StageRequest, received: List[ReceivedImage]) -> Iterator[None]:
    """Unpack the bundle; yield once, after the checks. ``received`` gets how it came from other nodes, if it did."""
    receipt = Store("").at(request.image)
    if receipt is None:
        raise IntegrityError(f"the image was removed: {request.image}", "install it again")
    with verify.opened(request.source) as stream:
        # The install step checked the signers and recorded the digest. Every byte used here must match that digest.
        verification = verify.begin(stream, request.source, [])
        if verification.digest != receipt.receipt.digest:
            raise IntegrityError(
                f"{request.source} is not the bundle of {request.image}", "install it again with --keep"
            )
        jobs = workers.suitable(os.fstat(stream.fileno()).st_size)
        manifest = verification.manifest
        overlays = [item for item in manifest.overlays if item.name != ENGINE or request.kit == kit.UDOCKER]
        room = content.room(overlays)
        size = room.bytes + sum(segment.raw or 0 for segment in verification.layer_segments())
        size += bytecode.size(request.image) + os.path.getsize(request.tool)
        entries = manifest.image.entries + room.entries
        if request.kit:
            size += kit.ROOM + sum(member.size for member in manifest.members if member.name.startswith(KIT_PREFIX))
            entries += kit.ENTRIES
        _check_room(request, size, entries)
        yield
        targets = content.APP_AND_KIT if request.kit else content.APP_ONLY
        written = content.Content(verification, overlays, targets, jobs, _stop_if_asked)
        pieces = relay.pieces(written.extents())
        links = _links(request, size + sum(length for _, length in pieces))  # until all is unpacked, both are here
        if links:
            with _arriving(request, links, pieces, received) as arriving:
                verification.read_from(*arriving)
                written.write_for_ranks(request.into)
            os.unlink(_arrived(request))
        else:
            written.write_for_ranks(request.into)
        mount_points.make(os.path.join(request.into, ROOTFS), request.mounts)
    bytecode.restore(request.image, request.into)
    _merge(request)
    if request.kit == kit.UDOCKER:  # after this, the files are read-only
        kit.prepare(receipt._replace(folder=request.into), sys.executable)
        kit.protect(os.path.join(request.into, ROOTFS))
        os.mkdir(os.path.join(request.into, TEMPORARY))
    files.remove_tree(os.path.join(request.into, "kit"))


def _fill_packed(request: StageRequest, received: List[ReceivedImage]) -> Iterator[None]:
    """Copy the SquashFS file, so that it stays if the original is removed, or link to it. Otherwise as ``_fill``."""
    target = os.path.join(request.into, os.path.basename(request.source))
    whole = 0 if request.in_place else os.path.getsize(request.source)
    size = whole + os.path.getsize(request.tool) + (kit.ROOM if request.kit else 0)
    _check_room(request, size, 2)
    yield
    links = _links(request, size)
    if request.in_place:
        os.symlink(request.source, target)
    elif links:
        with _arriving(request, links, relay.pieces([(0, whole)]), received):
            pass
        os.rename(_arrived(request), target)
    else:
        with open(request.source, "rb") as source, open(target, "wb") as copy:
            for chunk in iter(lambda: source.read(files.CHUNK), b""):
                copy.write(chunk)
                _stop_if_asked()
    if request.kit:
        carried = os.path.join(ENGINE, plans.CHARLIECLOUD_FOLDER)
        shutil.copytree(os.path.join(request.image, carried), os.path.join(request.into, carried))
    shutil.copyfile(request.tool, os.path.join(request.into, TOOL))
    os.mkdir(os.path.join(request.into, ROOTFS))  # the image path for commands, although ranks join the mounted root


def _stop_if_asked(*_: int) -> None:
    """Receive the progress of the unpacking; raise JobFailed if the job must end."""
    if set(signal.sigpending()) & set(_SIGNALS):
        raise JobFailed("asked to stop while the image was unpacked")


def _check_room(request: StageRequest, size: int, entries: int) -> None:
    """Raise SpaceError if the place of the image lacks space, or if it is in memory and the node lacks memory."""
    folder = os.path.dirname(os.path.dirname(request.into))
    space.check(folder, size, entries)
    if space.in_memory(folder):
        free = space.available_memory()
        if free is not None and free < size:
            raise SpaceError(
                f"the node has {space.human(free)} of memory free; the image takes {space.human(size)}",
                "request more memory (--memory), or use --staging folder",
            )


def _merge(request: StageRequest) -> None:
    """Move overlays, app and tool to where the container would bind them: fewer mounts and lookups per rank."""
    rootfs = os.path.join(request.into, ROOTFS)
    inner = rootfs + os.path.dirname(plans.APP)
    if os.path.realpath(inner) != os.path.join(os.path.realpath(rootfs), os.path.basename(inner)):
        raise IntegrityError(f"the image's {os.path.dirname(plans.APP)} leads elsewhere")
    moved = [("app", plans.APP), (WHEELS, plans.WHEELS)]
    if request.abi:
        moved.append((os.path.join(VARIANTS, request.abi), plans.VARIANT))
    for name, target in moved:
        source = os.path.join(request.into, name)
        if files.is_folder(source):
            files.remove_tree(rootfs + target)
            os.rename(source, rootfs + target)
    files.remove_tree(os.path.join(request.into, VARIANTS))
    shutil.copyfile(request.tool, rootfs + plans.TOOL)
    os.mkdir(rootfs + plans.NODE)


# --- evidence ---


def _publish(request: StageRequest, received: Sequence[ReceivedImage]) -> None:
    """Write all evidence of this node's ranks to one file in the job's folder. The job continues if that fails."""
    texts = result.texts(os.path.join(request.into, EVIDENCE))
    host = socket.gethostname()
    path = os.path.join(request.out, f"node-{host}.json")
    try:
        files.write_text(path, json_records.pretty(evidence.record(evidence.NodeRecord(host, texts, *received))))
    except DeployerError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
