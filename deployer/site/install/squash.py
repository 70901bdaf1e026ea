"""squash: an installed image as one SquashFS file, which nodes hold compressed in memory and mount once.

It is made from the installed folder, by the site's own mksquashfs, else by the one of the bundle's kit, with all that a
rank reads inside: so it needs no bind but the site's. mksquashfs takes each of its sources into the root of the image,
so what stands in ``/deployer`` is put together beside, by hard links. The same image gives the same bytes, where
mksquashfs can set times (since 4.4).
"""

import os
import re
import shutil
import signal
import struct
import time
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from deployer.contract import json_records
from deployer.contract import plan as plans
from deployer.contract.errors import DeployerError, JobFailed, MissingTool, SpaceError
from deployer.contract.manifest import FRAME
from deployer.contract.tarformat import MTIME
from deployer.site.install import kit
from deployer.site.storage import space, unfinished
from deployer.site.storage.store import VARIANTS, InstalledImage
from deployer.system import files, process

IMAGE = "image.sqfs"
PROGRAM = "mksquashfs"
SITE, KIT = "site", "kit"

#: Seconds; a root of 2 GB takes 6 on two cores with zstd, a minute and more with gzip.
_PATIENCE = 3600
_INNER = os.path.dirname(plans.APP)

_OPTIONS = ("-all-root", "-no-progress", "-quiet")
#: What is asked for where mksquashfs knows it. It would take a quarter of the machine's memory, which on a login node
#: is not one user's to take. gzip takes ten times as long as zstd to make, and to read. All files have one time: those
#: of the image have it already, for the sake of bytecode. What cannot be read would be an empty file, and no error.
_WISHES = (
    ("-mem", "256M"),
    ("-comp", "zstd", "-Xcompression-level", "3"),
    ("-no-xattrs",),
    ("-reproducible", "-mkfs-time", str(MTIME), "-all-time", str(MTIME)),
    ("-exit-on-error",),
)
_UNREAD = re.compile(r"^.*(?:creating empty file|, ignoring)", re.MULTILINE)
_FULL = re.compile("No space left on device|Disk quota exceeded|File too large")
#: The superblock's magic number, and the bytes that are used, which the file may be longer than.
_SUPERBLOCK = struct.Struct("<4s36xQ")
_MAGIC = b"hsqs"


class Tool(NamedTuple):
    """A mksquashfs that works here: ``whose`` it is (``SITE``, ``KIT``), its version, and the options that it takes."""

    whose: str
    path: str
    version: str
    options: Sequence[str]


class Squashed(NamedTuple):
    """A SquashFS file that was made: its size in bytes, the seconds it took, and by which mksquashfs."""

    path: str
    size: int
    seconds: float
    tool: Tool

    def record(self) -> json_records.Record:
        """Return what a program would want to know of it."""
        by = {"whose": self.tool.whose, "path": self.tool.path, "version": self.tool.version}
        return {"path": self.path, "size": self.size, "seconds": round(self.seconds, 3), "mksquashfs": by}

    def line(self) -> str:
        """Return what a person would."""
        return "SquashFS file of %s in %.1f s by the %s's mksquashfs %s: %s" % (
            space.human(self.size),
            self.seconds,
            self.tool.whose,
            self.tool.version,
            self.path,
        )


def path(folder: str) -> str:
    """Return where the SquashFS file of the image in ``folder`` is, if it was made."""
    return os.path.join(folder, IMAGE)


def variant(abi: str) -> str:
    """Return where a SquashFS image has the variant of Horovod for an ABI: it has them all."""
    return "%s/%s/%s" % (_INNER, VARIANTS, abi)


def absent(image: InstalledImage) -> str:
    """Return in words that an image has no SquashFS file, and what would make it."""
    if not list(_programs(image)):
        return "it has no SquashFS file, and there is no mksquashfs here, nor in the bundle (pack --kit squashfs-tools)"
    return "it has no SquashFS file: `squash %s:%s` makes it" % (image.receipt.name, image.receipt.version)


def make(image: InstalledImage, jobs: int) -> Squashed:
    """Make the SquashFS file of an installed image by ``jobs`` processes, whole or not at all.

    Raises MissingTool where neither the site nor the kit has a mksquashfs that works, SpaceError, JobFailed.
    """
    started = time.time()
    target, parent = path(image.folder), os.path.dirname(image.folder)
    with files.errors_named("write " + target):
        unfinished.reap(parent)
        # Compressed twice, much the same comes out.
        space.check(parent, sum(segment.size for segment in image.manifest().segments if segment.kind == FRAME), 1)
        with unfinished.folder(parent) as work:
            tool = _tool(image, work)
            inner = os.path.join(work, _INNER.strip("/"))
            _inner(image, inner)
            made = os.path.join(work, IMAGE)
            names = [name for name in sorted(os.listdir(image.rootfs)) if "/" + name != _INNER]
            sources = [os.path.join(image.rootfs, name) for name in names] + [inner]
            argv = [tool.path, *sources, made, *tool.options, "-processors", str(jobs)]
            _check_made(process.run(argv, _PATIENCE, check=False), made, target)
            size = os.path.getsize(made)
            os.replace(made, target)
    return Squashed(target, size, time.time() - started, tool)


# --- the tool ---


def _programs(image: InstalledImage) -> Iterator[Tuple[str, str]]:
    """Yield each mksquashfs, the site's first, and whose it is."""
    own = shutil.which(PROGRAM)
    if own:
        yield SITE, own
    carried = kit.program(image, PROGRAM)
    if carried:
        yield KIT, carried


def _tool(image: InstalledImage, work: str) -> Tool:
    """Return the mksquashfs to use: the first that works. It is tried on a small file."""
    against = []
    for whose, program in _programs(image):
        try:
            options = _options(program, work)
            said = process.run([program, "-version"], 60, check=False)
        except DeployerError as error:
            noexec = os.statvfs(os.path.dirname(program)).f_flag & os.ST_NOEXEC
            reason = "its file system is mounted noexec" if noexec else error.message
            against.append("the %s's %s: %s" % (whose, program, reason))
            continue
        version = re.search(r"version (\S+)", said.stdout + said.stderr)
        return Tool(whose, program, version.group(1) if version else "of unknown version", options)
    raise MissingTool(
        "no mksquashfs that works: %s" % "; ".join(against) if against else "no mksquashfs in PATH, nor in the bundle",
        "squashfs-tools of the site, or pack --kit squashfs-tools; the image is installed, and runs in other forms",
    )


def _options(program: str, work: str) -> List[str]:
    """Return the options for a mksquashfs. Raises DeployerError where it does not work."""
    sample, out = os.path.join(work, "sample"), os.path.join(work, "sample.sqfs")
    files.write_text(sample, "sample\n")

    def tried(options: Sequence[str], check: bool = False) -> bool:
        done = process.run([program, sample, out, *options], 60, check=check)
        if files.exists(out):
            os.unlink(out)
        return done.returncode == 0

    options = list(_OPTIONS)
    tried(options, check=True)
    for wish in _WISHES:
        if tried([*options, *wish]):
            options += wish
    return options


def _check_made(done: process.Completed, made: str, target: str) -> None:
    """Raise unless mksquashfs wrote all of ``made``, and it is on the disk."""
    said = " ".join(done.last_words().split())
    if done.returncode == -signal.SIGXFSZ or _FULL.search(done.stdout + done.stderr):
        raise SpaceError("cannot write %s: %s" % (target, said or "File too large"), "free some space or quota there")
    if done.returncode < 0:
        raise JobFailed(
            "mksquashfs was killed by signal %d while it wrote %s" % (-done.returncode, target),
            "is there a limit on memory here? --jobs 1 takes the least",
        )
    unread = _UNREAD.search(done.stdout + done.stderr)
    if done.returncode or unread:
        raise JobFailed("mksquashfs cannot make %s: %s" % (target, unread.group() if unread else said))
    with open(made, "rb") as stream:
        os.fsync(stream.fileno())  # a full disk of another machine may say so here for the first time
        magic, used = _SUPERBLOCK.unpack(stream.read(_SUPERBLOCK.size).ljust(_SUPERBLOCK.size, b"\0"))
    if magic != _MAGIC or used > os.path.getsize(made):
        raise JobFailed("mksquashfs did not write all of %s, though it says that it did" % target)


# --- what is in it ---


def _inner(image: InstalledImage, inner: str) -> None:
    """Put together what ranks find below /deployer."""
    os.makedirs(inner)
    inside = [(image.app, plans.APP), (image.wheels, plans.WHEELS)]
    inside.append((os.path.join(image.folder, VARIANTS), _INNER + "/" + VARIANTS))
    for source, target in inside:
        place = os.path.join(inner, os.path.relpath(target, _INNER))
        if files.is_folder(source):
            shutil.copytree(source, place, symlinks=True, copy_function=_link)
    for folder in (*plans.MOUNT_FOLDERS, plans.NODE):
        if folder.startswith(_INNER + "/"):
            os.makedirs(os.path.join(inner, os.path.relpath(folder, _INNER)), exist_ok=True)
    if files.is_file(image.rootfs + plans.CANARY):
        _link(image.rootfs + plans.CANARY, os.path.join(inner, os.path.relpath(plans.CANARY, _INNER)))
    with open(os.path.join(inner, os.path.relpath(plans.TOOL, _INNER)), "w"):
        pass


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or one that counts too many of them
        shutil.copy2(source, target)
