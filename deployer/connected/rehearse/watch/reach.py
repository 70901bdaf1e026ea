"""Observe what programs try to reach with system calls: addresses, daemons, refused writes, missing programs and files.

The arguments of a call are read while it waits. Then it continues, and only afterwards its result is determined, by
examining the same path from outside. So a result is not the kernel's own answer: it can differ if another process
changed the file in the meantime.
"""

import errno
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from deployer.connected.rehearse.watch import tracee
from deployer.connected.rehearse.watch.syscalls import CallListener, Trapped

#: Receives kind, text and further details, as in ``deployer.contract.rehearsal.observation``.
Note = Callable[[str, str, dict[str, str]], None]
_Judge = Callable[[], None]

_O_TMPFILE = 0o20000000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: Calls that change a folder. For each path: the argument with the folder's descriptor (None: the working folder), the
#: argument with the path, and whether the call needs an existing path (True), a free one (False) or either (None).
_Change = tuple[tuple[int | None, int, bool | None], ...]
_CHANGES: dict[str, _Change] = {
    "mkdir": ((None, 0, False),), "mkdirat": ((0, 1, False),), "rename": ((None, 0, True), (None, 1, None)),
    "renameat": ((0, 1, True), (2, 3, None)), "renameat2": ((0, 1, True), (2, 3, None)), "link": ((None, 1, False),),
    "linkat": ((2, 3, False),), "symlink": ((None, 1, False),), "symlinkat": ((1, 2, False),),
    "unlink": ((None, 0, True),), "unlinkat": ((0, 1, True),), "rmdir": ((None, 0, True),),
}  # fmt: skip
#: Folders of the kernel. Their contents depend on the process that reads them.
_KERNEL = re.compile(r"/(proc|sys|dev)(/|$)")
_TERMINAL = "/dev/tty"
_32_BIT = b"\x7fELF\x01"
#: Files that Python writes if possible.
_BYTECODE = re.compile(r"/__pycache__(/|$)|\.pyc(\.\d+)?$")
#: Files that programs can do without: system caches (fontconfig then uses the one in HOME), and UCX's statistics.
_USUAL_WRITES = re.compile(r"^/var/cache/(fontconfig|ldconfig|man)/|^/run/user/[0-9]+/ucx(/|$)")
#: Sockets of UCX, and those that C libraries try before they read a file.
_USUAL_SOCKETS = re.compile(
    r"^(/var)?/run/(nscd/|systemd/|avahi-daemon/|dbus/|uuidd/|setrans/|user/[0-9]+/ucx/)|^/var/lib/sss/|^/dev/log$"
)
#: Files that programs search for but usually do not need.
_USUAL_FILES = re.compile(
    r"/glibc-hwcaps/|/(tls|haswell|avx512_1)/|/etc/ld\.so\.|/locale/|/locale\.alias$|/terminfo/|/pyvenv\.cfg$|"
    r"/__pycache__/|\._pth$|/\.[^/]*($|/)|/etc/(nsswitch|host|gai)\.conf$|/gconv|/etc/localtime$|/openssl\.cnf$|"
    r"/pybuilddir\.txt$|/(inputrc|mailcap|wgetrc|netrc|bash\.bashrc)$"
)
_SHELLS = ("sh", "bash", "dash", "ash", "busybox", "ksh", "mksh", "zsh", "rbash")
#: Error messages of shells. A shell searches PATH before it starts a program, but starts a path directly.
_NOT_FOUND = re.compile(rb"(?:^|[ '`])([^\s:'`/]{1,200}): (?:command )?not found\s*$", re.MULTILINE)
_PT_INTERP = 3
#: A file that every Python reads at its start, before it imports sitecustomize; and the file of our audit hook.
_OF_PYTHON = re.compile(rb"/python[0-9.]+/encodings/(__pycache__/)?__init__[.][^/]*$")
_OF_THE_HOOK = re.compile(rb"-[0-9]+[.]jsonl$")
_LISTENING = "0A"
#: The reason if even the first folder of a missing file's path is not in the container. The file may be a site's.
_OUTSIDE = "its first folder does not exist"

#: Seconds between a failed search for a program and the report. Another folder of PATH may have the program.
_SEARCH = 1.0
#: Seconds for which a thread is assumed to belong to the same process.
_KNOWN_FOR = 30.0
_MAX_KNOWN = 400  # each has an open descriptor
#: The maximum number of listed files, of missing files per process, and of processes with missing files.
_MAX_OPENED, _MAX_MISSES, _MAX_PROCESSES = 500000, 50, 500
#: The maximum total length of known paths, and the maximum number of pending reports.
_MAX_LISTED, _MAX_WAITING = 32 * 1024 * 1024, 2000
#: Missing files to report for a failed program. For Python, its own exception is more informative.
_MOST_MISSED, _MOST_MISSED_BY_PYTHON = 10, 3


class _Search(NamedTuple):
    """A program that has not been found so far."""

    who: tracee.Tracee
    path: str
    since: float
    why: str
    folders: int


class Reach:
    """Determines what observed processes try to reach.

    Attributes:
        opened: the files in containers that were opened, with their paths there.
        all_listed: whether ``opened`` is complete. It has a maximum size.
        resolving: processes that asked the name server: "yes" if the main thread asked last, otherwise an empty text.
        begun: monotonic time of the first call of a program in a container; None: there was none yet.
    """

    def __init__(self, note: Note, local: Iterable[str] = (), last: Callable[[int], None] | None = None) -> None:
        """Start without observations.

        Args:
            note: receives the observations.
            local: addresses of this rehearsal's nodes. Traffic to them is part of the job.
            last: receives the pid of each process that is about to exit.
        """
        self._note = note
        self._local = set(local)
        self._last = last
        self._tasks: dict[int, tuple[float, tracee.Tracee]] = {}
        self._searches: dict[tuple[int, str], _Search] = {}
        self._misses: dict[int, dict[str, tuple[tracee.Tracee, str, str]]] = {}
        self._waiting: dict[tuple[str, int], tracee.Tracee] = {}
        self._pythons: dict[int, tracee.Tracee] = {}
        self._listed = 0
        self._read: set[tuple[tuple[int, ...], bytes]] = set()
        self.resolving: dict[int, str] = {}
        self.opened: set[str] = set()
        self.all_listed = True
        self.begun: float | None = None

    def handle(self, listener: CallListener) -> None:
        """Observe the next call of a listener."""
        call = listener.receive()
        if call is None:
            return
        judge: _Judge | None = None
        try:
            judge = self._gather(call)
        except (OSError, ValueError, struct.error):
            pass  # the process has ended, sent invalid arguments, or is unreadable: the kernel reports the error
        finally:
            listener.let_go_on(call)
        if judge is not None:
            with suppress(OSError, ValueError):
                judge()

    # --------------------------------------------------------------------------------- while the call waits

    def _gather(self, call: Trapped) -> _Judge | None:
        """Read a call's arguments. Return the function to call after it has continued."""
        name, args = call.name, call.args
        who = self._who(call.task, name in ("execve", "execveat"))
        if name in ("connect", "sendto") and who.apart:  # for any program: it can imitate our tool's command
            at, size = (1, 2) if name == "connect" else (4, 5)
            return self._connecting(who, tracee.read_memory(who.task, args[at], min(args[size], 128)))
        if not who.inside and name.startswith("execve"):
            return lambda: self._forget(who.process)
        if not who.inside or (who.own and not name.startswith("execve")):
            return None
        if self.begun is None and not who.own:
            self.begun = time.monotonic()
        if name in ("open", "openat", "openat2", "creat"):
            return self._opening(who, name, args)
        if name in _CHANGES:
            identity = who.identity()
            places = [
                (who.path(_folder(args, at), tracee.read_text(who.task, args[path])), there)
                for at, path, there in _CHANGES[name]
            ]
            return lambda: self._changed(who, identity, places)
        if name == "truncate":
            identity, path = who.identity(), who.path(tracee.AT_FDCWD, tracee.read_text(who.task, args[0]))
            return lambda: self._opened(who, path, os.O_WRONLY, identity)
        if name.startswith("execve"):
            folder, place = (tracee.AT_FDCWD, 0) if name == "execve" else (_folder(args, 0), 1)
            text = tracee.read_text(who.task, args[place])
            path = who.path(folder, text) if text else who.opened(folder)
            return lambda: self._executed(who, path)
        if name == "write":
            return self._writing(who, tracee.read_memory(who.task, args[1], min(args[2], 1024)))
        if name == "exit_group":
            code = args[0] & 0xFF
            if self._last is not None:
                self._last(who.process)
            return lambda: self._ended(who, code)
        return None

    def _who(self, task: int, fresh: bool) -> tracee.Tracee:
        since, known = self._tasks.get(task, (0.0, None))
        now = time.monotonic()
        # A process outside of containers may have ended, and a program in a container may have its pid now.
        if known is None or fresh or not known.inside or now - since > _KNOWN_FOR:
            if len(self._tasks) >= _MAX_KNOWN:
                self._forget()
            elif known is not None:
                known.close()
            known = tracee.Tracee(task)
            self._tasks[task] = (now, known)
        return known

    def _forget(self, process: int | None = None, before: float = float("inf")) -> None:
        """Forget a process that becomes another program or ends, or all processes that were added before a time."""
        for task, (since, known) in list(self._tasks.items()):
            if process in (None, known.process) and since < before:
                known.close()
                del self._tasks[task]

    # ---------------------------------------------------------------------------------------------- files

    def _opening(self, who: tracee.Tracee, name: str, args: tuple[int, ...]) -> _Judge | None:
        folder, place = (_folder(args, 0), 1) if name in ("openat", "openat2") else (tracee.AT_FDCWD, 0)
        text = tracee.read_text(who.task, args[place])
        if name == "openat2":
            flags = struct.unpack("=Q", tracee.read_memory(who.task, args[2], 8))[0]
        else:
            flags = os.O_CREAT | os.O_WRONLY if name == "creat" else args[place + 1] & 0xFFFFFFFF
        if _OF_PYTHON.search(text):
            if len(self._pythons) >= _MAX_WAITING:
                self._unhooked(next(iter(self._pythons)))
            self._pythons.setdefault(who.process, who)
        elif flags & os.O_APPEND and _OF_THE_HOOK.search(text):
            self._pythons.pop(who.process, None)
        if not flags & _WRITES and (who.place, text) in self._read:
            self._not_missed(who, text)
            return None
        path = who.path(folder, text)
        if path == _TERMINAL:
            if who.name in _SHELLS:  # bash opens it at each start
                return None
            with open(f"/proc/{who.task}/stat") as stream:
                has_terminal = stream.read().rpartition(")")[2].split()[4] != "0"
            return None if has_terminal else lambda: self._tell("missing", path, who, why="a job has no terminal")
        if _KERNEL.match(path):
            return None
        if flags & _WRITES or (flags & _O_TMPFILE) == _O_TMPFILE:
            identity = who.identity()
            return lambda: self._opened(who, path, flags, identity)
        return lambda: self._looked_for(who, path, text, not flags & os.O_NOFOLLOW)

    def _looked_for(self, who: tracee.Tracee, path: str, text: bytes, follow: bool) -> None:
        found = who.root.find(path, follow)
        if found is None:
            inside = who.root.find("/" + path.split("/")[1])
            self._missed(who, path, "does not exist" if inside else _OUTSIDE)
            return
        if not stat.S_ISREG(found.state.st_mode):
            return
        if not found.state.st_mode & 0o004 and not who.identity().may(found.state, 4):
            self._missed(who, path, "not permitted")
            return
        self._add(found.path)
        self._not_missed(who, text)
        if text.startswith(b"/") and self._has_room(len(self._read), len(text)):
            self._read.add((who.place, text))

    def _add(self, path: str) -> None:
        if path in self.opened:
            return
        if self._has_room(len(self.opened), len(path)):
            self.opened.add(path)
        else:
            self.all_listed = False

    def _has_room(self, count: int, size: int) -> bool:
        """Return whether another path can be stored."""
        if count >= _MAX_OPENED or self._listed + size > _MAX_LISTED:
            return False
        self._listed += size
        return True

    def _not_missed(self, who: tracee.Tracee, name: bytes) -> None:
        if who.process in self._misses:
            self._misses[who.process].pop(os.fsdecode(name.rpartition(b"/")[2]), None)

    def _missed(self, who: tracee.Tracee, path: str, why: str) -> None:
        path = _plain(who.root, path)
        if _USUAL_FILES.search(path) or (who.process not in self._misses and len(self._misses) >= _MAX_PROCESSES):
            return
        missed = self._misses.setdefault(who.process, {})
        name = os.path.basename(path)
        missed.pop(name, None)  # keep the latest at the end
        missed[name] = (who, path, why)
        if len(missed) > _MAX_MISSES:
            del missed[next(iter(missed))]

    def _opened(self, who: tracee.Tracee, path: str, flags: int, identity: tracee.FileIdentity) -> None:
        root = who.root
        found = root.find(path, not flags & os.O_NOFOLLOW)
        if found is None:
            if flags & os.O_CREAT:
                self._made(who, identity, root, path)
            else:
                self._missed(who, path, "does not exist")
        elif (flags & _O_TMPFILE) == _O_TMPFILE:
            self._refused(who, path, found.refuses(identity, 3))
        elif stat.S_ISREG(found.state.st_mode) and not (flags & os.O_CREAT and flags & os.O_EXCL):
            self._refused(who, path, found.refuses(identity))

    def _changed(
        self, who: tracee.Tracee, identity: tracee.FileIdentity, places: list[tuple[str, bool | None]]
    ) -> None:
        for path, there in places:
            if not _KERNEL.match(path) and there in (None, who.root.find(path, False) is not None):
                self._made(who, identity, who.root, path)

    def _made(self, who: tracee.Tracee, identity: tracee.FileIdentity, root: tracee.ProcessRoot, path: str) -> None:
        """Observe an attempt to make or remove ``path``. Its folder may be missing as well."""
        folder = path
        found: tracee.FoundFile | None = None
        while found is None and folder != "/":
            folder = os.path.dirname(folder)
            found = root.find(folder)
        if found is not None and stat.S_ISDIR(found.state.st_mode):
            why = found.refuses(identity, 3)
            self._refused(who, path, why)
            if why is None and folder != os.path.dirname(path):
                self._missed(who, path, "its folder does not exist")

    def _refused(self, who: tracee.Tracee, path: str, why: str | None) -> None:
        if why and not _BYTECODE.search(path) and not _USUAL_WRITES.match(path):
            self._tell("write", _plain(who.root, path), who, why=why)

    # ------------------------------------------------------------------------------------------- programs

    def _executed(self, who: tracee.Tracee, path: str) -> None:
        try:
            self._execute(who, path)
        finally:
            self._forget(who.process)

    def _execute(self, who: tracee.Tracee, path: str) -> None:
        root = who.root
        found = root.find(path)
        key = (who.process, os.path.basename(path))
        if found is None or not found.state.st_mode & 0o111:
            before = self._searches.get(key)
            why = "does not exist" if found is None else "not executable"
            folders = before.folders + 1 if before else 1
            if len(self._searches) >= _MAX_WAITING:
                self._searched()
            self._searches[key] = _Search(who, path, time.monotonic(), why, folders)
            return
        self._searches.pop(key, None)
        self._misses.pop(who.process, None)  # files that the previous program missed did not stop it
        self._unhooked(who.process)
        self._add(found.path)
        head = root.head(found.path)
        if head.startswith(_32_BIT):
            self._tell("blind", f"a 32-bit program, which a rehearsal ends: {path}", who, ended="yes")
        loader = _loader(head)
        if loader:
            if root.find(loader) is None:
                self._tell("program", loader, who, why="does not exist", needed_by=path)
            else:
                self._add(loader)

    def _writing(self, who: tracee.Tracee, text: bytes) -> _Judge | None:
        names = [os.fsdecode(name) for name in _NOT_FOUND.findall(text)] if who.name in _SHELLS else []
        if not names:
            return None

        def judge() -> None:
            for name in names:
                self._tell("program", name, who, why="does not exist")

        return judge

    def _ended(self, who: tracee.Tracee, code: int) -> None:
        self._forget(who.process)
        self._searched(who.process)
        self._unhooked(who.process)
        missed = self._misses.pop(who.process, None)
        if not missed:
            return
        most = _MOST_MISSED_BY_PYTHON if who.python else _MOST_MISSED
        for _, path, why in list(missed.values())[-most:]:
            if code or (why == _OUTSIDE and not who.python):  # for Python, the audit hook reports which module searched
                self._tell("missing", path, who, why=why, exit_code=str(code))

    def _unhooked(self, process: int) -> None:
        """Report a Python that ends or becomes another program without having started the audit hook."""
        who = self._pythons.pop(process, None)
        if who is not None:
            self._tell("blind", "a Python ran without the audit hook: " + who.command, who)

    def _searched(self, process: int | None = None, now: float = float("inf")) -> None:
        """Report programs that were not found: by an ended process, or by all processes if the search is overdue."""
        for key, search in list(self._searches.items()):
            if (process is None or key[0] == process) and now - search.since > _SEARCH:
                del self._searches[key]
                what = search.path if search.folders == 1 else key[1]
                self._tell("program", what, search.who, why=search.why)

    # -------------------------------------------------------------------------------------------- network

    def _connecting(self, who: tracee.Tracee, address: bytes) -> _Judge | None:
        family = struct.unpack_from("=H", address)[0]
        if family == socket.AF_UNIX:
            name = address[2:]
            if name.startswith(b"\0"):
                text = "@" + name[1:].split(b"\0")[0].decode("utf-8", "backslashreplace")
                return lambda: self._unix(who, text)
            path = who.path(tracee.AT_FDCWD, name.split(b"\0")[0])
            return lambda: self._unix(who, path)
        if family in (socket.AF_UNSPEC, socket.AF_NETLINK):  # the end of a connection, or the kernel itself
            return None
        if family not in (socket.AF_INET, socket.AF_INET6):
            text = f"family:{family}"
            if family == socket.AF_VSOCK and len(address) >= 12:
                text = "vsock:{1} port {0}".format(*struct.unpack_from("=II", address, 4))
            return lambda: self._tell("address", text, who)
        port = struct.unpack_from("!H", address, 2)[0]
        raw = address[4:8] if family == socket.AF_INET else address[8:24]
        if raw.startswith(b"\0" * 10 + b"\xff\xff"):
            family, raw = socket.AF_INET, raw[12:]
        ip = socket.inet_ntop(family, raw)
        own = ip.startswith("127.") or ip in ("::1", "0.0.0.0", "::")  # noqa: S104
        main = "yes" if who.task == who.process else ""
        if own and port == _DNS:
            if len(self.resolving) >= _MAX_WAITING:
                self.resolving.clear()
            self.resolving[who.process] = main
        if ip in self._local or (own and port == _DNS):
            return None
        licence = ""
        with suppress(OSError):  # read it now, because the process may end soon
            licence = "" if own else who.licence(ip)
        return lambda: self._connected(who, ip, port, own, {"licence": licence, "main": main})

    def _connected(self, who: tracee.Tracee, ip: str, port: int, own: bool, about: dict[str, str]) -> None:
        if not own or len(self._waiting) >= _MAX_WAITING:
            self._tell("address", f"{ip} port {port}", who, **about)
        elif (ip, port) not in self._waiting and port not in listening():
            self._waiting[(ip, port)] = who

    def _unix(self, who: tracee.Tracee, name: str) -> None:
        if _USUAL_SOCKETS.match(name):
            return
        if name.startswith("@"):
            if name not in _abstract_sockets():
                self._tell("daemon", name, who, why="nothing listens")
        elif who.root.find(name) is None:
            self._tell("daemon", name, who, why="does not exist")

    # ----------------------------------------------------------------------------------------- from the loop

    def tick(self) -> None:
        """Report what is certain by now. Call this about once per second."""
        self._forget(before=time.monotonic() - _KNOWN_FOR)
        if self._searches:
            self._searched(now=time.monotonic())
        if self._waiting:
            ports = listening()
            for key in [key for key in self._waiting if key[1] in ports]:
                del self._waiting[key]  # a process of the job has started to listen there

    def end(self) -> None:
        """Report all remaining observations."""
        self._searched()
        self.tick()
        for (ip, port), who in self._waiting.items():
            self._tell("daemon", f"{ip} port {port}", who, why="nothing listens")
        for missed in self._misses.values():  # of programs that a signal ended, or that are still running
            for who, path, why in list(missed.values())[-_MOST_MISSED_BY_PYTHON:]:
                if not _USUAL_FILES.search(path):
                    self._tell("missing", path, who, why=why)
        for process in list(self._pythons):
            self._unhooked(process)
        self._waiting.clear()
        self._misses.clear()
        self._forget()

    def _tell(self, kind: str, what: str, who: tracee.Tracee, **about: str) -> None:
        self._note(kind, what, dict(who.about(), **about))


_DNS = 53


def listening() -> set[int]:
    """Return the ports on which something listens in this network namespace."""
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        try:
            with open("/proc/net/" + table) as stream:
                lines = [line.split() for line in stream.readlines()[1:]]
        except OSError as error:
            if error.errno != errno.ENOENT:  # this kernel has no IPv6
                raise
            continue
        found |= {int(line[1].rpartition(":")[2], 16) for line in lines if "udp" in table or line[3] == _LISTENING}
    return found


def _abstract_sockets() -> set[str]:
    with open("/proc/net/unix", errors="backslashreplace") as stream:
        return {line.split(None, 7)[7].rstrip("\n") for line in stream if len(line.split(None, 7)) == 8}


def _plain(root: tracee.ProcessRoot, path: str) -> str:
    """Return a path without ``..``. The part before ``..`` may be a link, so it is resolved."""
    if ".." not in path.split("/"):
        return path
    folder, rest = path, ""
    while folder.strip("/"):
        folder, name = os.path.split(folder)
        rest = os.path.join(name, rest)
        found = root.find(folder)
        if found is not None:
            return os.path.normpath(os.path.join(found.path, rest))
    return path


def _folder(args: tuple[int, ...], at: int | None) -> int:
    """Return a folder's descriptor: the lower half of the argument, signed; without one, that of the working folder."""
    if at is None:
        return tracee.AT_FDCWD
    low = args[at] & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _loader(head: bytes) -> str | None:
    """Return the loader or interpreter that the kernel starts for a file that begins with ``head``, or None."""
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n")[0].split()
        return os.fsdecode(words[0]) if words else None
    if not head.startswith(b"\x7fELF\x02\x01") or len(head) < 64:
        return None
    table, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    for number in range(min(count, 64)):
        at = table + number * size
        if at + 56 > len(head):
            return None
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, at)
        if kind == _PT_INTERP:
            return os.fsdecode(head[offset : offset + length].split(b"\0")[0]) or None
    return None
