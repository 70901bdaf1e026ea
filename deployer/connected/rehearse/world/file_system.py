"""The file system of a simulated machine: a root of its own in memory, with only the listed files of this machine.

Nothing else exists there: no home of the user, no terminals, no sockets of daemons, no ``/run``. Listed files keep
their own paths, so that links and the prefixes of programs stay valid.
"""

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from deployer.connected.rehearse.world import kernel
from deployer.connected.rehearse.world.far_shell import SOCKETS
from deployer.system import files

#: Programs and libraries of this machine, if they exist. The last three are from other package managers.
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
    *("/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew"),
)
#: Folders that are local to a machine: the first is in memory on every machine, the others only here.
IN_MEMORY, TEMPORARY = "/dev/shm", ("/tmp", "/var/tmp")  # noqa: S108
OWN_FOLDERS = (*TEMPORARY, IN_MEMORY)
#: The maximum size of each of them. A job that fills one gets "no space", as on a full disk.
_SIZE = "25%"
#: Folders that programs may expect.
_EMPTY = ("/run", "/var", "/root", "/home", "/mnt")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_SAFE = kernel.MS_NOSUID | kernel.MS_NODEV


class MachineFiles(NamedTuple):
    """The files of a machine besides SYSTEM. The nearest listed folder above a file decides whether it can be changed.

    Attributes:
        readable: read-only files and folders.
        writable: files and folders that can be changed.
        texts: the machine's own files: path to content.
    """

    readable: Sequence[str]
    writable: Sequence[str]
    texts: Mapping[str, str]


def enter(listed: MachineFiles, at: str, sockets: str) -> None:
    """Make the file system and move this process, with all that share its mounts, into it. Raises OSError.

    Args:
        at: an empty folder.
        sockets: the folder of the sockets of all machines.
    """
    kernel.mount("tmpfs", at, "tmpfs", _SAFE, "mode=755,size=1m")
    for folder in (*_EMPTY, *OWN_FOLDERS, "/proc", "/sys", "/dev/pts"):
        os.makedirs(at + folder, 0o755, exist_ok=True)
    _bind(listed, at)
    _make_place(at + SOCKETS, folder=True)
    kernel.bind(sockets, at + SOCKETS, _SAFE | kernel.MS_RDONLY)
    for path, text in listed.texts.items():
        os.makedirs(os.path.dirname(at + path), exist_ok=True)
        with open(at + path, "w") as stream:
            stream.write(text)
    _kernels(at)
    _devices(at)
    for folder in OWN_FOLDERS:
        _in_memory(at + folder)
    kernel.restrict(at, kernel.MS_RDONLY)
    kernel.change_root(at)


def layered(paths: Sequence[str], at: str) -> list[str]:
    """Mount a layer in memory over folders. Changes to them disappear with this process's mounts.

    Args:
        at: an empty folder.

    Returns:
        The folders; none if the kernel is too old (before 5.11) or does not permit it.
    """
    with contextlib.ExitStack() as opened:

        def through(path: str) -> str:  # the options of a mount cannot contain a path with a comma or a colon
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            return f"/proc/self/fd/{descriptor}"

        found: list[str] = []
        for path in filter(files.is_folder, paths):
            kernel.mount("tmpfs", at, "tmpfs", _SAFE, f"mode=700,size={_SIZE}")
            for name in ("upper", "work"):
                os.mkdir(f"{at}/{name}")
            words = f"lowerdir={through(path)},upperdir={through(at)}/upper,workdir={through(at)}/work,userxattr"
            try:
                kernel.mount("overlay", path, "overlay", _SAFE, words)
            except OSError:
                return found
            finally:
                kernel.detach(at)  # the layer stays mounted, but no path leads to it
            found.append(path)
        return found


def _bind(listed: MachineFiles, at: str) -> None:
    """Mount the listed files, each on its path here. Links on the way become links there."""
    links: dict[str, str] = {}
    wanted: dict[str, bool] = {}
    for paths, writable in (((*SYSTEM, *listed.readable), False), (listed.writable, True)):
        for path in filter(kernel.is_reachable, paths):
            way, real = _resolved(path)
            links.update(way)
            wanted[real] = writable
    done: dict[str, bool] = {}
    for path in sorted(wanted):  # a folder before its contents
        above = next((done[folder] for folder in _above(path) if folder in done), None)
        if above is wanted[path]:
            continue
        if above is None:
            _make_place(at + path, files.is_folder(path))
        kernel.bind(path, at + path, _SAFE if wanted[path] else _SAFE | kernel.MS_RDONLY)
        done[path] = wanted[path]
    for link, target in links.items():
        if not any(folder in done for folder in _above(link)):
            os.makedirs(os.path.dirname(at + link), exist_ok=True)
            os.symlink(target, at + link)


def _above(path: str) -> list[str]:
    """Return the folders above a path, nearest first."""
    return [str(folder) for folder in PurePosixPath(path).parents]


def _resolved(path: str) -> tuple[dict[str, str], str]:
    """Return the links on the way to an existing path, each with its target, and the path without links."""
    links: dict[str, str] = {}
    at, rest = "/", path.split("/")
    while rest:
        name = rest.pop(0)
        here = os.path.normpath(os.path.join(at, name))  # ``at`` has no links, so .. is its parent
        if not files.is_link(here):
            at = here
            continue
        links[here] = os.readlink(here)
        rest = [*links[here].split("/"), *rest]
        at = "/" if links[here].startswith("/") else at
    return links, at


def _make_place(path: str, folder: bool) -> None:
    """Make an empty file or folder as a mount point."""
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _kernels(at: str) -> None:
    """Mount /proc and /sys. Everything but processes is read-only, because this machine's root could change it."""
    proc, told = at + "/proc", at + "/sys"
    kernel.mount("proc", proc, "proc", _SAFE | kernel.MS_NOEXEC)
    for name in os.listdir(proc):
        path = f"{proc}/{name}"
        mode = os.lstat(path).st_mode if not name.isdigit() else 0
        if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and mode & 0o222):
            kernel.bind(path, path, _SAFE | kernel.MS_RDONLY)
    try:
        kernel.mount("sysfs", told, "sysfs", _SAFE | kernel.MS_NOEXEC | kernel.MS_RDONLY)
    except OSError:  # in a container, it shows the interfaces of this machine, which few programs read
        kernel.bind("/sys", told, _SAFE | kernel.MS_RDONLY)


def _devices(at: str) -> None:
    """Mount the devices that programs need. None of the user's terminals is among them."""
    folder = at + "/dev"
    for name in _DEVICES:
        _make_place(f"{folder}/{name}", folder=False)
        kernel.mount(f"/dev/{name}", f"{folder}/{name}", flags=kernel.MS_BIND)
    for name, target in _LINKS.items():
        os.symlink(f"/proc/self/{target}", f"{folder}/{name}")
    with contextlib.suppress(OSError):  # then there are no pseudo-terminals, which training does not use
        flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
        kernel.mount("devpts", folder + "/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=600")
        os.symlink("pts/ptmx", folder + "/ptmx")


def _in_memory(folder: str) -> None:
    """Mount an empty folder in memory. Mounts below it are kept, in read-only folders.

    Each of these folders is a mount, so a program cannot move it and put another one in its place.
    """
    there, own = os.listdir(folder), os.stat(folder).st_dev
    links = {name: os.readlink(f"{folder}/{name}") for name in there if files.is_link(f"{folder}/{name}")}
    opened = {name: os.open(f"{folder}/{name}", os.O_PATH | os.O_CLOEXEC) for name in there if name not in links}
    kernel.mount("tmpfs", folder, "tmpfs", _SAFE, f"mode=1777,size={_SIZE}")
    for name, target in links.items():
        os.symlink(target, f"{folder}/{name}")
    for name, descriptor in opened.items():
        path, state = f"{folder}/{name}", os.fstat(descriptor)
        _make_place(path, stat.S_ISDIR(state.st_mode))
        kernel.mount(f"/proc/self/fd/{descriptor}", path, flags=kernel.MS_BIND | kernel.MS_REC)
        if state.st_dev == own:  # a folder that was made here as a parent of a mount
            kernel.restrict(path, kernel.MS_RDONLY)
        os.close(descriptor)
