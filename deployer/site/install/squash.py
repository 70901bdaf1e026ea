"""squash: an installed image as one SquashFS file, which each node mounts once and caches compressed in memory.

It is made from the installed folder with the site's mksquashfs or, failing that, the kit's. It contains everything that
a rank reads, so it needs only the site's binds. mksquashfs puts each of its sources into the root of the image.
Therefore the content of ``/deployer`` is first assembled in a separate folder, with hard links. The same image always
produces the same bytes if mksquashfs can set times (since 4.4).
"""

import os
import re
import shutil
import signal
import struct
import time
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, JobFailed, MissingTool, Refused, SpaceError
from deployer.contract.base.tarformat import MTIME
from deployer.contract.base.version import is_older
from deployer.contract.bundle import sif
from deployer.contract.bundle.manifest import FRAME
from deployer.contract.site import plan as plans
from deployer.contract.site.choose import Obstacle
from deployer.site.capture import machine
from deployer.site.capture.tools import Tools
from deployer.site.install import kit
from deployer.site.storage import space, unfinished
from deployer.site.storage.store import VARIANTS, InstalledImage
from deployer.system import files, process

IMAGE = "image.sqfs"
#: The names of an image's files by form. The SIF file is a copy with a header, for sites that start nothing else.
NAMES = {plans.SQUASHFS: IMAGE, plans.MOUNTED: IMAGE, plans.SIF: "image.sif"}
PROGRAM = "mksquashfs"
SITE, KIT = "site", "kit"

#: Seconds; a rootfs of 2 GB takes 6 s on two cores with zstd.
_PATIENCE = 3600
_INNER = os.path.dirname(plans.APP)

#: Files that each Python reads at start: the interpreter, the loader, and its libraries, by their names in all
#: distributions. They are stored uncompressed (a few MB). Apptainer makes one mount per rank, and each rank's process
#: for that mount would otherwise decompress them again.
_OF_EACH_START = (
    "python3.[0-9]*", "libpython3*.so*", "ld-*.so*", "libc.so.6", "libc-2.*", "libm.so.6", "libm-2.*", "libdl-2.*",
    "libpthread-2.*", "libutil-2.*", "libz.so.*", "libexpat.so.*",
)  # fmt: skip
_UNCOMPRESSED = "uncompressed@type(f) && ({})".format(" || ".join(f"name({name})" for name in _OF_EACH_START))

_OPTIONS = ("-all-root", "-no-progress", "-quiet")
#: Options that are used if mksquashfs knows them. Memory is limited: the default, a quarter of the machine's memory, is
#: too much on a shared login node. All files get the one time that the image's files already have, because of bytecode.
#: Unreadable files would silently become empty.
_WISHES = (
    ("-mem", "256M"),
    ("-no-xattrs",),
    ("-reproducible", "-mkfs-time", str(MTIME), "-all-time", str(MTIME)),
    ("-exit-on-error",),
    ("-action", _UNCOMPRESSED),
)
#: gzip takes 2.5 times as long as zstd to compress and to read. SingularityCE, and Apptainer before 1.4, start no file
#: compressed with zstd (their pkg/image/squashfs.go).
_ZSTD = ("-comp", "zstd", "-Xcompression-level", "3")
_GZIP = ("-comp", "gzip", "-Xcompression-level", "1")
_UNREAD = re.compile(r"^.*(?:creating empty file|, ignoring)", re.MULTILINE)
_FULL = re.compile("No space left on device|Disk quota exceeded|File too large")
#: The superblock's magic number, and the number of bytes used; the file may be longer.
_SUPERBLOCK = struct.Struct("<4s36xQ")
_MAGIC = b"hsqs"


class Tool(NamedTuple):
    """A mksquashfs that works here.

    Attributes:
        whose: SITE or KIT.
        path: its path.
        version: its version.
        options: the options that it accepts.
    """

    whose: str
    path: str
    version: str
    options: Sequence[str]


class Squashed(NamedTuple):
    """A SquashFS file that was made.

    Attributes:
        path: its path.
        size: bytes.
        seconds: the time taken.
        tool: the mksquashfs that made it.
    """

    path: str
    size: int
    seconds: float
    tool: Tool

    def record(self) -> json_records.Record:
        """Return the facts for programs."""
        by = {"whose": self.tool.whose, "path": self.tool.path, "version": self.tool.version}
        return {"path": self.path, "size": self.size, "seconds": round(self.seconds, 3), "mksquashfs": by}

    def line(self) -> str:
        """Return the facts in one line for people."""
        return (
            f"SquashFS file of {space.human(self.size)} in {self.seconds:.1f} s with the {self.tool.whose}'s mksquashfs"
            f" {self.tool.version}: {self.path}"
        )


def path(folder: str, form: str = plans.SQUASHFS) -> str:
    """Return the path of the SquashFS or SIF file of the image in ``folder``, which may not exist."""
    return os.path.join(folder, NAMES[form])


def variant(abi: str) -> str:
    """Return the path of an ABI's Horovod variant in a SquashFS image, which has all variants."""
    return f"{_INNER}/{VARIANTS}/{abi}"


def existing(image: InstalledImage, form: str = plans.SQUASHFS) -> str:
    """Return the path of the SquashFS or SIF file of an image. Raises Refused if it has none."""
    if not files.is_file(path(image.folder, form)):
        obstacle = absent(image, form)
        raise Refused(f"{image.receipt.label}: {obstacle.reason}", obstacle.remedy)
    return path(image.folder, form)


def absent(image: InstalledImage, form: str = plans.SQUASHFS) -> Obstacle:
    """Return the obstacle that an image has no SquashFS or SIF file, with a hint how to make it."""
    what = "SIF" if form == plans.SIF else "SquashFS"
    if not list(_programs(image)):
        reason = f"it has no {what} file, and there is no mksquashfs here, nor in the bundle"
        return Obstacle(reason, "pack it again with --kit squashfs-tools")
    return Obstacle(f"it has no {what} file", f"make its {what} file: squash {image.receipt.label}")


def needs_sif(image: InstalledImage) -> bool:
    """Return whether a plan of an image starts it from a SIF file."""
    return any(option.sif for option in _start_options(image))


def _start_options(image: InstalledImage) -> Iterator[plans.StartOption]:
    for site in image.sites():
        for plan in image.plans(site).plans.values():
            yield from plan.start_options


def write_sif(image: InstalledImage, target: str) -> None:
    """Write the SquashFS file of an image as a SIF file, completely or not at all.

    Raises:
        SpaceError: the disk is full.
    """
    packed = path(image.folder)
    size = os.path.getsize(packed)
    files.reap_parts(target)
    with open(packed, "rb") as source, files.published(target) as stream:
        space.check(os.path.dirname(target), size, 1)
        stream.write(sif.header(size, image.manifest().image.architecture))
        shutil.copyfileobj(source, stream, files.CHUNK)


def make(image: InstalledImage, jobs: int) -> Squashed:
    """Make the SquashFS file of an installed image, completely or not at all.

    Args:
        jobs: number of processes.

    Raises:
        MissingTool: neither the site nor the kit has a mksquashfs that works.
        SpaceError: the disk is full.
        JobFailed: mksquashfs failed.
    """
    started = time.time()
    target, parent = path(image.folder), os.path.dirname(image.folder)
    with files.errors_named("write " + target):
        unfinished.reap(parent)
        # The frames are already compressed, so the file has about their size.
        space.check(parent, sum(segment.size for segment in image.manifest().segments if segment.kind == FRAME), 1)
        with unfinished.folder(parent) as work:
            tool = _tool(image, work, _ZSTD if _may_be_zstd(image) else _GZIP)
            inner = os.path.join(work, _INNER.strip("/"))
            _inner(image, inner)
            new = os.path.join(work, IMAGE)
            names = [name for name in sorted(os.listdir(image.rootfs)) if "/" + name != _INNER]
            sources = [os.path.join(image.rootfs, name) for name in names] + [inner]
            argv = [tool.path, *sources, new, *tool.options, "-processors", str(jobs)]
            _check_made(process.run(argv, _PATIENCE, check=False), new, target)
            size = os.path.getsize(new)
            os.replace(new, target)
    return Squashed(target, size, time.time() - started, tool)


# --- the tool ---


def _programs(image: InstalledImage) -> Iterator[Tuple[str, str]]:
    """Yield each mksquashfs with its owner, the site's first."""
    for whose, program in ((SITE, shutil.which(PROGRAM)), (KIT, kit.program(image, PROGRAM))):
        if program:
            yield whose, program


def _may_be_zstd(image: InstalledImage) -> bool:
    """Return whether all runtimes of an image's plans start files compressed with zstd."""
    names = {option.runtime for option in _start_options(image)}
    version = machine.version(Tools(), "apptainer") if "apptainer" in names else "1.4"
    return "singularity" not in names and not is_older(version or "0", "1.4")


def _tool(image: InstalledImage, work: str, compression: Sequence[str]) -> Tool:
    """Return the first mksquashfs that works with a small file."""
    against = []
    for whose, program in _programs(image):
        try:
            options = _options(program, work, compression)
            answer = process.run([program, "-version"], 60, check=False)
        except DeployerError as error:
            noexec = os.statvfs(os.path.dirname(program)).f_flag & os.ST_NOEXEC
            reason = "its file system is mounted noexec" if noexec else error.message
            against.append(f"the {whose}'s {program}: {reason}")
            continue
        version = re.search(r"version (\S+)", answer.stdout + answer.stderr)
        return Tool(whose, program, version.group(1) if version else "of unknown version", options)
    reason = "that works: " + "; ".join(against) if against else "in PATH, nor in the bundle"
    hint = "install squashfs-tools, or pack with --kit squashfs-tools; the image is installed, and other stagings work"
    raise MissingTool("no mksquashfs " + reason, hint)


def _options(program: str, work: str, compression: Sequence[str]) -> List[str]:
    """Return the options for a mksquashfs. Raises DeployerError if it does not work."""
    sample, out = os.path.join(work, "sample"), os.path.join(work, "sample.sqfs")
    files.write_text(sample, "sample\n")

    def tried(options: Sequence[str], check: bool = False) -> bool:
        done = process.run([program, sample, out, *options], 60, check=check)
        if files.exists(out):
            os.unlink(out)
        return done.returncode == 0

    options = list(_OPTIONS)
    tried(options, check=True)
    for wish in (compression, *_WISHES):
        if tried([*options, *wish]):
            options += wish
    return options


def _check_made(done: process.Completed, new: str, target: str) -> None:
    """Raise an error unless mksquashfs wrote all of ``new``, and flush it to disk."""
    last_words = " ".join(done.last_words().split())
    if done.returncode == -signal.SIGXFSZ or _FULL.search(done.stdout + done.stderr):
        raise SpaceError(
            "cannot write {}: {}".format(target, last_words or "File too large"), "free some space or quota there"
        )
    if done.returncode < 0:
        raise JobFailed(
            "mksquashfs was killed by signal %d while it wrote %s" % (-done.returncode, target),
            "is there a limit on memory? --jobs 1 needs the least",
        )
    unread = _UNREAD.search(done.stdout + done.stderr)
    if done.returncode or unread:
        raise JobFailed(f"mksquashfs cannot make {target}: {unread.group() if unread else last_words}")
    with open(new, "rb") as stream:
        os.fsync(stream.fileno())  # a file server may report a full disk only here
        magic, used = _SUPERBLOCK.unpack(stream.read(_SUPERBLOCK.size).ljust(_SUPERBLOCK.size, b"\0"))
    if magic != _MAGIC or used > os.path.getsize(new):
        raise JobFailed(f"mksquashfs did not write all of {target}, but reported success")


# --- the contents ---


def _inner(image: InstalledImage, inner: str) -> None:
    """Assemble the content of /deployer for ranks."""
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
    files.write_text(os.path.join(inner, os.path.relpath(plans.TOOL, _INNER)), "")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or with a low limit on them
        shutil.copy2(source, target)
