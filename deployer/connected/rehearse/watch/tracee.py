"""Another process, observed while it waits in a system call: its memory, its identity and its paths.

The observer may be in another mount namespace. So a path is resolved from the process's root with openat2(2), which
keeps every link inside that root. Nothing is opened for reading or writing: an O_PATH descriptor does not affect
devices, pipes or drivers.
"""

import ctypes
import errno
import os
import re
import stat
import struct
from typing import NamedTuple

from deployer.contract.base.first_bytes import PROGRAM
from deployer.contract.site.plan import TOOL

AT_FDCWD = -100
_PAGE = 4096
_MAX_PATH = 4096
_OPENAT2 = 437  # on all architectures
_IN_ROOT = 0x10
_HOW = struct.Struct("=QQQ")
_CAP_DAC_OVERRIDE = 1
_ST_RDONLY = 1
_MAX_COMMAND = 200
_HEAD = 4096
_MAX_ENVIRONMENT = 1024 * 1024
#: Variables with the address of a licence server: LM_LICENSE_FILE, MLM_LICENSE_FILE, RLM_LICENSE and vendors' own.
_LICENCE = re.compile(r"^[A-Z0-9_]{1,60}_LICEN[SC]E(_FILE|_SERVER|_PATH)?$|_LICENSE_FILE$", re.IGNORECASE)
#: The arguments after the interpreter in the commands that start the tool in a container.
_TOOL = (("-I", "-S", TOOL), ("-I", "-S", "-c", PROGRAM, TOOL))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_buffer = ctypes.create_string_buffer(_MAX_PATH)
_here = _Vector(ctypes.addressof(_buffer), 0)


def read_memory(task: int, address: int, size: int) -> bytes:
    """Return up to ``size`` bytes, at most 4096, of a process's memory; fewer before an unreadable page.

    Raises:
        OSError: the process has ended, is not readable, or has no memory at this address.
    """
    found = b""
    size = min(size, _MAX_PATH)
    while len(found) < size:
        place = address + len(found)
        part = min(size - len(found), _PAGE - place % _PAGE)
        _here.length = part
        there = _Vector(place, part)
        done = _libc.process_vm_readv(task, ctypes.byref(_here), 1, ctypes.byref(there), 1, 0)
        if done <= 0:
            if found:
                break
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        found += _buffer.raw[:done]
    return found


def read_text(task: int, address: int) -> bytes:
    """Return the zero-terminated bytes at ``address``, for example a path. Raises OSError like ``read_memory``."""
    found = b""
    while len(found) < _MAX_PATH:
        place = address + len(found)
        part = read_memory(task, place, _PAGE - place % _PAGE)
        end = part.find(b"\0")
        if end >= 0:
            return found + part[:end]
        found += part
    return found[:_MAX_PATH]


class FileIdentity(NamedTuple):
    """The rights with which a process accesses files.

    Attributes:
        user: its user ID for files, in the observer's user namespace.
        groups: its groups.
        override: whether it may ignore file modes.
    """

    user: int
    groups: tuple[int, ...]
    override: bool

    def may(self, state: os.stat_result, bits: int) -> bool:
        """Return whether the mode of a file allows ``bits`` (2: write, 1: search)."""
        if self.override:
            return True
        shift = 6 if state.st_uid == self.user else 3 if state.st_gid in self.groups else 0
        return state.st_mode >> shift & bits == bits


class FoundFile(NamedTuple):
    """A file as a process sees it.

    Attributes:
        path: its path without links.
        state: its state.
        readonly: whether its mount is read-only.
    """

    path: str
    state: os.stat_result
    readonly: bool

    def refuses(self, identity: FileIdentity, bits: int = 2) -> str | None:
        """Return why the file cannot be changed (2) or nothing can be made in the folder (3); None: it is possible."""
        if self.readonly and (stat.S_ISREG(self.state.st_mode) or stat.S_ISDIR(self.state.st_mode)):
            return "read-only"
        return None if identity.may(self.state, bits) else "not permitted"


class ProcessRoot:
    """The root folder of observed processes."""

    def __init__(self, task: int) -> None:
        self._descriptor = os.open(f"/proc/{task}/root", os.O_PATH | os.O_CLOEXEC)
        # The kernel shows paths from the root of the process's mounts. Unlike a runtime, chroot does not change it.
        self._before = os.readlink(f"/proc/self/fd/{self._descriptor}").rstrip("/")

    def inner(self, path: str) -> str:
        """Convert a path that the kernel shows into the path that the process uses."""
        return path[len(self._before) :] or "/" if (path + "/").startswith(self._before + "/") else path

    def close(self) -> None:
        """Release the folder, so that its file system can be unmounted."""
        os.close(self._descriptor)

    def _open(self, path: str, flags: int) -> int:
        how = _HOW.pack(os.O_PATH | os.O_CLOEXEC | flags, 0, _IN_ROOT)
        name = os.fsencode(path.lstrip("/")) or b"."
        found: int = _libc.syscall(_OPENAT2, self._descriptor, name, how, len(how))
        return found

    def find(self, path: str, follow: bool = True) -> FoundFile | None:
        """Return what is at ``path`` in this root; None if it does not exist.

        Raises:
            OSError: the path cannot be examined.
        """
        found = self._open(path, 0 if follow else os.O_NOFOLLOW)
        if found < 0:
            if ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR):
                return None
            _checked(found)
        try:
            # Test the mount's own flag, not the file system's: a container's root is often a read-only bind mount.
            readonly = bool(os.fstatvfs(found).f_flag & _ST_RDONLY)
            return FoundFile(self.inner(os.readlink(f"/proc/self/fd/{found}")), os.fstat(found), readonly)
        finally:
            os.close(found)

    def head(self, path: str) -> bytes:
        """Return the first bytes of a regular file. Raises OSError."""
        place = _checked(self._open(path, 0))
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                return b""
            with open(f"/proc/self/fd/{place}", "rb") as stream:
                return stream.read(_HEAD)
        finally:
            os.close(place)


class Tracee:
    """A process that makes system calls.

    Attributes:
        task: the ID of the thread.
        process: the ID of the process.
        name: the name of its program, as it was started.
        command: its command line, shortened.
        inside: whether it is in a container: its root folder differs from the observer's.
        apart: whether its mounts differ from the observer's. It may have the same root folder.
        python: whether it is a Python program.
        own: whether its command is that of deployer's own tool. Programs can imitate this command, so observations that
            must not be hidden do not depend on it.
        place: identifies its root folder and mounts.
    """

    def __init__(self, task: int) -> None:
        self.task = task
        fields = status(task)
        self.process = int(fields.get("Tgid", "0") or task)
        words = _command(task)
        self.command = " ".join(words)[:_MAX_COMMAND]
        self.name = os.path.basename(words[0]).lstrip("-") if words else ""
        self.python = self.name.startswith("python")
        self.own = any(tuple(words[1 : 1 + len(known)]) == known for known in _TOOL)
        state, mine = os.stat(f"/proc/{task}/root"), os.stat("/")
        self.inside = not os.path.samestat(state, mine)
        mounts = os.stat(f"/proc/{task}/ns/mnt").st_ino
        self.apart = self.inside or mounts != os.stat("/proc/self/ns/mnt").st_ino
        self.place = (mounts, state.st_dev, state.st_ino)
        self._root: ProcessRoot | None = None
        self._identity: FileIdentity | None = None

    @property
    def root(self) -> ProcessRoot:
        """Return its root folder. Raises OSError if the process has ended."""
        if self._root is None:
            self._root = ProcessRoot(self.task)
        return self._root

    def close(self) -> None:
        """Release its root folder."""
        if self._root is not None:
            self._root.close()
            self._root = None

    def path(self, folder: int, name: bytes) -> str:
        """Return an absolute path in the process's root, from a folder's descriptor and a name. Raises OSError."""
        text = os.fsdecode(name)
        if text.startswith("/"):
            return os.path.normpath(text) if "/../" not in text else text
        base = self.opened(folder)
        return os.path.join(base, text) if ".." in text else os.path.normpath(os.path.join(base, text))

    def opened(self, descriptor: int) -> str:
        """Return the path of one of its descriptors or of its working folder. Raises OSError."""
        place = "cwd" if descriptor == AT_FDCWD else f"fd/{descriptor}"
        return self.root.inner(os.readlink(f"/proc/{self.task}/{place}"))

    def about(self) -> dict[str, str]:
        """Return the description of the process in observations."""
        return {"program": self.name, "command": self.command, "pid": str(self.process)}

    def licence(self, host: str) -> str:
        """Return the variable with the address of a licence server on this host, or an empty text if there is none."""
        with open(f"/proc/{self.task}/environ", "rb") as stream:
            words = stream.read(_MAX_ENVIRONMENT).decode("utf-8", "replace").split("\0")
        for name, _, value in (word.partition("=") for word in words):
            # The format is PORT@HOST. Several are separated by colons, semicolons or commas.
            if _LICENCE.search(name) and host.lower() in re.split("[@:;,]", value.lower()):
                return name
        return ""

    def identity(self) -> FileIdentity:
        """Return its rights at the time of the first call of this method."""
        if self._identity is None:
            fields = status(self.task)
            uids, gids, groups = ([*map(int, fields.get(name, "").split())] for name in ("Uid", "Gid", "Groups"))
            override = int(fields.get("CapEff", "0"), 16) >> _CAP_DAC_OVERRIDE & 1
            self._identity = FileIdentity(uids[3], (gids[3], *groups), bool(override))
        return self._identity


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def status(task: int) -> dict[str, str]:
    """Return the fields of a process's ``status`` file. Raises OSError."""
    with open(f"/proc/{task}/status", "rb") as stream:
        lines = stream.read().decode("utf-8", "replace").split("\n")  # a program's name may have other line breaks
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _command(task: int) -> list[str]:
    with open(f"/proc/{task}/cmdline", "rb") as stream:
        return [word.decode("utf-8", "replace") for word in stream.read(4096).split(b"\0") if word]
