"""A stand-in for enroot: it checks words and settings as enroot's `start` does, and makes the same container.

By the sources of enroot 4.1.2 (enroot.in, src/runtime.sh, bin/enroot-mount.c, bin/enroot-switchroot.c). It is a program
of its own, for any Python. Like enroot it obeys the /etc/fstab, /etc/environment and /etc/rc of the root folder that it
starts, makes a lock file there, and closes no descriptor (as the makers' packages do). What it does not know, it
refuses. With ``FAKE_ENROOT_SHOW`` it only writes what it was told into that file, and runs the command script here.
"""

# ruff: noqa: UP006, UP035, UP045  (Python 3.6)

import ctypes
import fcntl
import json
import os
import re
import sys
from typing import Any, Dict, List, NoReturn, Optional, Tuple

BIND, REC, RDONLY, REMOUNT, DETACH = 4096, 16384, 1, 32, 2
FLAGS = {"bind": BIND, "rbind": BIND | REC, "ro": RDONLY, "nofail": 0, "silent": 0}
SETTINGS = re.compile(
    r"ENROOT_(LIBRARY|SYSCONF|RUNTIME|CONFIG|CACHE|DATA|TEMP)_PATH|ENROOT_(LOGIN_SHELL|ROOTFS_WRITABLE|REMAP_ROOT|"
    r"ALLOW_SUPERUSER|UNSHARE_(PID|NET|IPC|UTS)|NATIVE_OVERLAYFS)"
)
NO = re.compile(r"no?|N[oO]?|[fF](alse)?|FALSE")
MOUNT = re.compile(r"\S+(:\S+)*")
ENVIRONMENT = re.compile(r"[A-Za-z_]\w*(=.*)?")


def fail(text: str) -> NoReturn:
    """End as enroot does."""
    sys.exit("[ERROR] " + text)


def parse(words: List[str]) -> Tuple[Dict[str, Any], str, List[str]]:
    """Return the options, the name and the command of `enroot start`."""
    options: Dict[str, Any] = {"mount": [], "env": [], "rc": "", "conf": ""}
    if words[:1] != ["start"]:
        fail(f"Invalid command: {words[:1]}")
    words = words[1:]
    short = {"-c": "--conf", "-m": "--mount", "-e": "--env"}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, sign, value = short.get(word, word).partition("=")
        if name not in ("--conf", "--mount", "--env", "--rc"):
            fail("Usage: enroot start [options] [--] NAME|IMAGE [COMMAND] [ARG...]")  # -r, -w, --pid: never ours
        if not sign:
            value = words.pop(0) if words else ""
        if not value:
            fail("Usage: enroot start")
        if name in ("--mount", "--env"):
            options[name[2:]].append(value)
        else:
            options[name[2:]] = value
    if not words:
        fail("Usage: enroot start")
    return options, words[0], words[1:]


def check(options: Dict[str, Any], name: str) -> None:
    """Check what enroot checks, and that no setting is misspelt."""
    for each in options["mount"]:
        if not MOUNT.fullmatch(each):
            fail(f"Invalid argument: {each}")
    for each in options["env"]:
        if not ENVIRONMENT.fullmatch(each):
            fail(f"Invalid argument: {each}")
    if "/" in name:
        fail(f"Invalid argument: {name}")
    if os.path.isfile(name):
        fail(f"{name}: a file of the current folder would be taken for the image")
    if options["rc"] and not os.path.isfile(options["rc"]):
        fail(f"No such file or directory: {options['rc']}")
    unknown = [each for each in os.environ if each.startswith("ENROOT_") and not SETTINGS.fullmatch(each)]
    if unknown:
        fail(f"unknown settings: {unknown}")


def setting(name: str, default: str) -> Optional[str]:
    """Return a setting; None if it is switched off."""
    value = os.environ.get("ENROOT_" + name, default)
    return None if NO.fullmatch(value) else value


def fields(line: str) -> List[str]:
    """Return the fields of a line of fstab, with its escapes resolved, and the missing ones guessed."""
    found = [re.sub(r"\\(040|011|012|134)", lambda match: chr(int(match.group(1), 8)), word) for word in line.split()]
    if len(found) < 4:
        found = [found[0], found[1] if len(found) > 1 else found[0], "none", "rbind"]
    return found[:4]


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """Mount, or report the system's error."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), os.fsencode(kind), flags, None):
        fail(f"failed to mount: {source} at {target}: {os.strerror(ctypes.get_errno())}")


def entry(root: str, line: str) -> None:
    """Carry out a line of fstab."""
    source, target, kind, words = fields(line)
    place, options = root + target.rstrip("/"), words.split(",")
    if "x-detach" in options:
        ctypes.CDLL(None).umount2(os.fsencode(place), DETACH)
        return
    if "x-create=dir" in options:
        os.makedirs(place, exist_ok=True)
    flags = 0
    for option in options:
        if option not in FLAGS and not option.startswith("x-create="):
            fail(f"mount option {option}")
        flags |= FLAGS.get(option, 0)
    mount(source, place, kind, flags & ~RDONLY)
    if flags & RDONLY:
        remount(place)


def remount(place: str) -> None:
    """Make a bind read-only, and keep what the user's namespace must not change."""
    kept = os.statvfs(place).f_flag & (2 | 4 | 8 | 1024 | 2048)
    atime = 1 << 21 if os.statvfs(place).f_flag & 4096 else 0
    mount("none", place, "none", BIND | REMOUNT | RDONLY | (kept & 0xF) | (kept & 0xC00) | atime)


def start(options: Dict[str, Any], root: str, command: List[str]) -> None:
    """Make the container in this namespace, and become the command script."""
    runtime = os.environ["ENROOT_RUNTIME_PATH"]
    mount("tmpfs", runtime, "tmpfs", 0)
    mount(root, root, "none", BIND)
    with open(root + "/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        variables = lines(root + "/etc/environment") + options["env"]
        for line in lines(root + "/etc/fstab"):
            entry(root, line)
        for each in options["mount"]:
            entry(root, each.replace(":", " "))
    if setting("ROOTFS_WRITABLE", "no") is None:
        remount(root)
    with open(options["rc"], "rb") as stream:
        script = stream.read()
    os.chroot(root)
    os.chdir("/")
    copy = os.memfd_create("rc", 0)
    os.write(copy, script)
    os.execve("/bin/sh", ["sh", f"/proc/self/fd/{copy}", *command], dict(each.split("=", 1) for each in variables))


def lines(path: str) -> List[str]:
    """Return the lines of a file, if there is one."""
    try:
        with open(path) as stream:
            return [line.strip() for line in stream if line.strip() and not line.startswith("#")]
    except FileNotFoundError:
        return []


def main() -> None:
    """Do what enroot would."""
    if sys.argv[1:] == ["version"]:
        print("4.1.2")
        return
    options, name, command = parse(sys.argv[1:])
    check(options, name)
    root = os.path.join(os.environ["ENROOT_DATA_PATH"], name)
    if not os.path.isdir(root):
        fail(f"No such file or directory: {root}")
    for each in ("LOGIN_SHELL", "REMAP_ROOT", "ALLOW_SUPERUSER", "UNSHARE_PID", "UNSHARE_NET", "UNSHARE_IPC"):
        if setting(each, "yes" if each == "LOGIN_SHELL" else "no"):
            fail(f"this stand-in cannot have {each}")
    shown = os.environ.get("FAKE_ENROOT_SHOW")
    if shown:
        with open(shown, "w") as stream:
            json.dump({"options": options, "root": root, "listed": os.listdir(root), "command": command}, stream)
        os.execve("/bin/sh", ["sh", options["rc"], *command], {})
    if "FAKE_ENROOT_INSIDE" in os.environ:
        start(options, root, command)
    os.environ["FAKE_ENROOT_INSIDE"] = "1"
    words = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", sys.executable, "-I", "-S", __file__]
    os.execvp(words[0], words + sys.argv[1:])


if __name__ == "__main__":
    main()
