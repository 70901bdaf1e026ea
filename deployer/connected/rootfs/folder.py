"""Read a root filesystem from a folder, and a layer from its overlayfs folder."""

import os
import stat

from deployer.connected.rootfs.entries import DEVICE, SOCKET, FileEntries, FileEntry, OnDisk, check_path
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK
from deployer.system import files

_OPAQUE = "trusted.overlay.opaque"
_OVERLAY = "trusted.overlay."
#: Attributes in which overlayfs records a folder's origin. They do not affect the content.
_HARMLESS = ("trusted.overlay.origin", "trusted.overlay.impure")
#: An attribute that the machine itself adds.
_IGNORED = "security.selinux"


class ForeignOverlay(DeployerError):
    """The folder uses an unsupported feature of overlayfs, such as redirects or files without their data."""


def entries_of(folder: str) -> FileEntries:
    """Yield the entries of a folder, sorted by name, without the file systems mounted below it.

    Raises:
        DeployerError: the folder cannot be read.
    """
    with files.errors_named(f"read {folder}"):
        yield from _walk(os.fsencode(folder))


def overlay_entries(folder: str) -> FileEntries:
    """Yield a layer from its overlayfs folder. Deletions become whiteouts, as in a layer's tar.

    Source: Linux, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories".

    Raises:
        ForeignOverlay: the folder uses a feature that is not supported.
    """
    with files.errors_named(f"read {folder}"):
        for entry in _walk(os.fsencode(folder)):
            path = entry.path
            parent, _, name = path.rpartition(b"/")
            where = os.path.join(os.fsencode(folder), path)
            if entry.kind == DEVICE and stat.S_ISCHR(os.lstat(where).st_mode) and os.lstat(where).st_rdev == 0:
                yield FileEntry(FILE, os.path.join(parent, b".wh." + name), 0)
                continue
            if entry.kind == SOCKET:
                continue  # sockets are not part of an image, because the tar of a layer cannot contain them
            yield entry
            if entry.kind != FOLDER or not entry.attributes:
                continue
            names = [name for name in _attributes(where) if name.startswith(_OVERLAY)]
            if not set(names) <= {_OPAQUE, *_HARMLESS}:
                raise ForeignOverlay(f"{folder} uses {', '.join(names)}")
            if _OPAQUE in names:
                yield FileEntry(FILE, os.path.join(path, b".wh..wh..opq"), 0)


def _walk(top: bytes) -> FileEntries:
    device = os.lstat(top).st_dev
    first_names: dict[int, bytes] = {}  # inode to its first path
    todo = [b""]
    while todo:
        folder = todo.pop()
        with os.scandir(os.path.join(top, folder)) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        below = []
        for entry in entries:
            path = folder + b"/" + entry.name if folder else entry.name
            check_path(path, os.fsdecode(top).rstrip("/"))
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
                below.append(path)
            yield _file_entry(entry.path, status, first_names, path)
        todo += reversed(below)


def _file_entry(where: bytes, status: os.stat_result, first_names: dict[int, bytes], path: bytes) -> FileEntry:
    kind, data, target = DEVICE, None, b""
    if stat.S_ISDIR(status.st_mode):
        kind = FOLDER
    elif stat.S_ISSOCK(status.st_mode):
        kind = SOCKET
    elif status.st_nlink > 1 and first_names.setdefault(status.st_ino, path) != path:
        kind, target = HARDLINK, first_names[status.st_ino]
    elif stat.S_ISREG(status.st_mode):
        kind, data = FILE, OnDisk(where, status.st_size)
    elif stat.S_ISLNK(status.st_mode):
        kind, target = SYMLINK, os.readlink(where)
    owned = (status.st_uid, status.st_gid) != (0, 0)
    attributes = kind in (FILE, FOLDER) and any(name != _IGNORED for name in _attributes(where))
    return FileEntry(
        kind, path, stat.S_IMODE(status.st_mode), int(status.st_mtime_ns // 10**9), target, data, owned, attributes
    )


def _attributes(where: bytes) -> list[str]:
    """Return the names of a file's extended attributes; none on macOS, whose attributes are its own."""
    return os.listxattr(where, follow_symlinks=False) if hasattr(os, "listxattr") else []
