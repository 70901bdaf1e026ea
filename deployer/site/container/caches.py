"""Caches of compiled code on the site: they go from the home of one job to those of later ones.

::

    ROOT/caches-UID/KEY-PROCESSOR.tar

UID is the user's, KEY that of the image's last layer (``storage.layers``). Each node reads one file, instead of
thousands on a shared file system. A job replaces it in one step. Of two that end at once, the later one counts; so a
library never finds a mixture of files from jobs that did not know of each other.

The job may have put anything into its home: links, pipes, endless files, odd names; a process of it may still run. The
archive may be on a file system to which the job can write. So no link is followed, only this user's regular files are
read, and names and sizes are checked both times. No error ends the job.
"""

import hashlib
import os
import re
import shutil
import stat
import tarfile
from contextlib import contextmanager, suppress
from typing import IO, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

from deployer.contract.base.errors import DeployerError, IntegrityError, Refused
from deployer.contract.site import caches, links
from deployer.site.capture import node
from deployer.site.capture.tools import read_text, read_word
from deployer.site.container import node_folder
from deployer.site.storage import group, space
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files, terminal

#: The most that an archive holds, and the most files of a home that are looked at: more could take longer than the 30 s
#: between a job's time limit and its end. And the latest time of a file, for which no system call fails.
MAX_BYTES, MAX_FILES, _LAST = 1 << 30, 50_000, 1 << 40
#: What /proc/cpuinfo says of a processor besides its state, on x86_64, AArch64 and POWER.
_CPU = re.compile(r"^(?:model name|flags|Features|CPU (?:implementer|part|variant)|cpu)\s*:.*$", re.MULTILINE)


def words(store: Store, installed: InstalledImage, kept: Sequence[str]) -> List[str]:
    """Return the beginning of an image's archives, and the paths in the home; empty if nothing is kept."""
    names = [os.path.basename(layer) for layer in installed.layers]
    return [os.path.join(store.caches, names[-1].partition("-")[0]), *caches.paths(kept)] if names and kept else []


def unused(store: Store, without: Collection[str] = ()) -> List[str]:
    """Return this user's archives whose layer is gone, or among the folders ``without``."""
    joined = group.read(store.root)
    places = [store.layers, *([Store(joined.folder).layers] if joined else [])]
    layers = (f"{place}/{name}" for place in places for name in files.names(place))
    there = {os.path.basename(layer).partition("-")[0] for layer in layers if layer not in without}
    return [f"{store.caches}/{name}" for name in files.names(store.caches) if name.partition("-")[0] not in there]


def archive(begin: str, sys: str = "/sys", proc: str = "/proc") -> str:
    """Return the path of the archive for this node: code that was compiled for others may not run, or be slower."""
    lines = _CPU.findall(read_text(os.path.join(proc, "cpuinfo")))
    gpus = {" ".join(read_word(path, name) for name in ("vendor", "device")) for path in node.gpu_paths(sys)}
    text = "\n".join([os.uname().machine, *sorted(set(lines)), *sorted(gpus)])
    return f"{begin}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.tar"


def restore(home: str, begin: str, paths: Sequence[str]) -> None:
    """Put the kept files for this node below ``paths`` of the job's new home: all of them, or none."""
    new = os.path.join(home, ".deployer-caches")
    with _only_warned("use"):
        try:
            for member, content in _members(archive(begin)):
                path = os.path.join(new, member.name)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                with open(path, "xb") as target:
                    shutil.copyfileobj(content, target)
                os.utime(path, (member.mtime, member.mtime))
            for path in (path for path in paths if files.lexists(os.path.join(new, path))):
                os.makedirs(os.path.dirname(os.path.join(home, path)), exist_ok=True)
                os.rename(os.path.join(new, path), os.path.join(home, path))
        finally:
            files.remove_tree(new)


def save(home: str, begin: str, paths: Sequence[str]) -> None:
    """Add the files below ``paths`` of an ended job's home to the kept ones, and replace those that changed."""
    # By now, the home itself may be a link.
    top, path = os.path.join(os.path.realpath(os.path.dirname(home)), os.path.basename(home)), archive(begin)
    with _only_warned("keep"):
        old: Dict[str, Tuple[int, float]] = {}
        with suppress(OSError, tarfile.TarError, ValueError, IntegrityError):  # damaged: it is replaced
            old = {member.name: (member.size, member.mtime) for member, _ in _members(path)}
        new = _found(top, paths)
        if set(new.items()) <= set(old.items()):
            return
        if _size({**old, **new}) > MAX_BYTES or len({**old, **new}) > MAX_FILES:
            new, old = {name: facts for name, facts in new.items() if facts != old.get(name)}, {}  # of this job
        size = space.human(_size({**old, **new}))
        if _size(new) > MAX_BYTES:
            raise Refused(f"{size} are more than {space.human(MAX_BYTES)}")
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        node_folder.check(os.path.dirname(path))
        with files.published(path, 0o600) as stream, tarfile.open(fileobj=stream, mode="w") as target:
            for item in new.items():
                _add(target, top, *item)
            for member, content in _members(path) if old else ():
                if member.name in old and member.name not in new:
                    target.addfile(member, content)
        terminal.tell(f"deployer: kept {size} of compiled code for later jobs")


def _size(found: Mapping[str, Tuple[int, float]]) -> int:
    return sum(size for size, _ in found.values())


def _add(target: tarfile.TarFile, top: str, name: str, facts: Tuple[int, float]) -> None:
    """Add a file of a home. Raises IntegrityError if it has changed, or a folder above it became a link."""
    member, path = tarfile.TarInfo(name), os.path.join(top, name)
    member.size, member.mtime = facts
    with files.open_regular(path, follow=False) as source:
        target.addfile(member, source)
        if os.readlink(f"/proc/self/fd/{source.fileno()}") != path or _facts(os.fstat(source.fileno())) != facts:
            raise IntegrityError(f"{path} changes: a process of the job still runs")


@contextmanager
def _only_warned(what: str) -> Iterator[None]:
    """Print an error of the block as a warning: without a cache, programs only compile again."""
    try:
        yield
    except (OSError, DeployerError, tarfile.TarError, ValueError, OverflowError) as error:
        terminal.warn(f"cannot {what} caches of compiled code: {error}")


def _members(path: str) -> Iterator[Tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield the files of an archive. Raises Refused if others can write to it."""
    if not files.lexists(path):
        return
    node_folder.check(os.path.dirname(path))
    with files.open_regular(path, follow=False) as stream, tarfile.open(fileobj=stream, mode="r:") as opened:
        if os.fstat(stream.fileno()).st_uid != os.getuid() or os.fstat(stream.fileno()).st_size > 2 * MAX_BYTES:
            raise Refused(f"{path} is another user's, or too large")
        for member in opened:
            is_plain = member.isreg() and not member.issparse() and member.size >= 0 and 0 <= member.mtime < _LAST
            if not is_plain or not links.is_below(member.name):
                raise IntegrityError(f"{path} is damaged")
            yield member, cast(IO[bytes], opened.extractfile(member))


def _found(top: str, paths: Sequence[str]) -> Dict[str, Tuple[int, float]]:
    """Return size and time of this user's files below ``paths`` of the home ``top``; folders may be links by now."""
    found: Dict[str, Tuple[int, float]] = {}
    for start in (os.path.join(top, path) for path in paths):
        for folder, folders, names in os.walk(start) if os.path.realpath(start) == start else ():
            below = folder[len(top) + 1 :] + "/"
            folders[:] = [name for name in folders if links.is_below(below + name)]
            states = {below + name: _facts(os.lstat(os.path.join(folder, name))) for name in names}
            found.update({name: facts for name, facts in states.items() if facts and links.is_below(name)})
            if len(found) > MAX_FILES:
                raise Refused("they are more than %d files" % MAX_FILES)
    return found


def _facts(state: os.stat_result) -> Optional[Tuple[int, float]]:
    """Return the size and time of a regular file of this user; None if it is anything else."""
    return (state.st_size, int(state.st_mtime)) if stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() else None
