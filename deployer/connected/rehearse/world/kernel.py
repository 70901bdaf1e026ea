"""System calls that Python's ``os`` lacks: namespaces, mounts, capabilities. Errors name the failed operation."""

import contextlib
import ctypes
import os
import re
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
#: The namespaces of a simulated machine, besides its user namespace.
MACHINE = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38
_PR_CAP_AMBIENT, _RAISE, _CLEAR_ALL = 47, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64
_CAP_SETFCAP = 31
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    """The lower and then the upper 32 capabilities of a process."""

    _fields_ = tuple(
        (f"{name}{half}", ctypes.c_uint32) for half in "01" for name in ("effective", "permitted", "inheritable")
    )


def unshare(flags: int) -> None:
    """Move this process (for CLONE_NEWPID: its next children) into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def leave_namespaces() -> None:
    """Move this process into a user namespace that has no other user, and its next children into the other namespaces.

    The user and the group keep their numbers.
    """
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | MACHINE)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, options.encode() or None)
    _check(_libc.mount(*words), f"mount {kind or source} on {target}")


def bind(source: str, target: str, flags: int) -> None:
    """Mount a file or folder, with all mounts below it, on another path; add MS_RDONLY, MS_NOSUID, MS_NODEV.

    A container inherits these flags: it cannot undo mounts of its parent.
    """
    mount(source, target, flags=MS_BIND | MS_REC)
    below = os.path.realpath(target)
    for point in _mount_points():
        if point == below or (point.startswith(below + "/") and is_reachable(point)):
            restrict(point, flags)


def is_reachable(point: str) -> bool:
    """Return whether a path exists and is usable. If not, it is unusable for programs with fewer rights, too."""
    try:
        os.statvfs(point)
    except OSError:  # owned by another user, hidden by a newer mount, or on a disconnected file system
        return False
    return True


def restrict(point: str, flags: int) -> None:
    """Add flags to a mount. Its existing flags must be kept."""
    kept = os.statvfs(point).f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", point, flags=MS_REMOUNT | MS_BIND | flags | kept)


def detach(point: str) -> None:
    """Detach a mount: no path leads to it from now on, and it is unmounted when its last user has ended."""
    _check(_libc.umount2(os.fsencode(point), _MNT_DETACH), f"umount {point}")


def _mount_points() -> list[str]:
    """Return the paths of all mounts visible to this process."""
    with open("/proc/self/mountinfo", "rb") as stream:
        found = {line.split(b" ")[4] for line in stream}
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), path)) for path in found]


def change_root(folder: str) -> None:
    """Make a mount the root of all paths. Earlier mounts become unreachable."""
    os.chdir(folder)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")  # the old root is then mounted on the new one
    _check(_libc.umount2(b".", _MNT_DETACH), "umount /")
    os.chdir("/")


def leave_keyring() -> None:
    """Join a new session keyring, because the user's has keys, for example those of Kerberos. Raises OSError."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, _JOIN_SESSION_KEYRING, None)  # a kernel without keyrings has no keys to leave


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends for any reason."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_capabilities() -> None:
    """Keep this process's capabilities in the programs that it starts, although its user is not root."""
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), _Sets()
    _check(_libc.capget(ctypes.byref(header), ctypes.byref(sets)), "capget")
    sets.inheritable0, sets.inheritable1 = sets.permitted0, sets.permitted1
    _set_capabilities(sets)
    for number in range(_MOST_CAPABILITIES):
        with contextlib.suppress(OSError):  # the kernel has fewer capabilities
            _prctl(_PR_CAP_AMBIENT, _RAISE, number)


def drop_capabilities() -> None:
    """Give up all capabilities, including those that root would gain in the next program, and prevent new ones.

    Root keeps the one capability that the kernel needs to map root into the user namespace of a container.
    """
    for number in set(range(_MOST_CAPABILITIES)) - {_CAP_SETFCAP}:
        if _libc.prctl(_PR_CAPBSET_READ, *map(ctypes.c_ulong, (number, 0, 0, 0))) == 1:
            _prctl(_PR_CAPBSET_DROP, number)
    _prctl(_PR_CAP_AMBIENT, _CLEAR_ALL)
    _set_capabilities(_Sets(permitted0=1 << _CAP_SETFCAP, effective0=1 << _CAP_SETFCAP))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _set_capabilities(sets: _Sets) -> None:
    header = _Header(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(sets)), "capset")


def _prctl(*words: int) -> None:
    _check(_libc.prctl(words[0], *map(ctypes.c_ulong, (*words[1:], 0, 0, 0, 0)[:4])), f"prctl {words[0]}")


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
