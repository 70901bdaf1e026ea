"""Observe a Python program with audit hooks (PEP 578): hosts, URLs, refused writes, missing files.

This module is copied into a separate folder as ``sitecustomize.py``, so that each Python process of a rehearsed job
imports it at its start (site.py in Python's manual). It uses no other module of deployer and does not affect the
program: it refuses no event, lets no exception escape, and only reads the state of files. It runs on Python 3.6 to
3.14; before 3.8 there are no audit hooks, and only the exception that ends the process is observed.

Each observation is one line of JSON in ``$DEPLOYER_REHEARSAL/HOST-PID.jsonl`` (``rehearsal.observation``). It is
written immediately, so that it remains if the process is killed a moment later.
"""

# This code runs in the payload: the payload must not notice its errors, and it predicts the payload's next action
# without performing it. Therefore these rules do not apply here.
# ruff: noqa: TID251, BLE001, S110, SIM105

import _thread
import json
import os
import sys
import time

MYPY = False
if MYPY:
    from types import FrameType, TracebackType
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Type

#: The variable with the folder for observations.
FOLDER = "DEPLOYER_REHEARSAL"
#: The most observations of one kind from a process; frames of a stack; characters of a text.
_MOST, _FRAMES, _TEXT, _PATH = 1000, 30, 500, 1000
#: Additional frames of the program itself to keep below deeper stacks of libraries.
_FRAMES_OF_PROGRAM = 10
_LIBRARIES = ("-packages/", "/deployer/wheels/", "/deployer/variant/", os.path.dirname(os.__file__) + "/", "<frozen ")
#: The source file of pool threads: the stack of such a thread is supplemented with that of the main thread.
_POOL = "/concurrent/futures/thread.py"
#: Local variables that show what a library downloads.
_NAMES = (
    "url", "fullurl", "method", "repo_id", "repo_or_dir", "pretrained_model_name_or_path", "dataset_name", "info_or_id",
)  # fmt: skip
#: Kinds of observations that include such variables: what a library wanted to download, or could not keep.
_WITH_NAMES = ("host", "address", "url", "write")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Python's own imports, which try to write bytecode beside each module but do not need it.
_IMPORTS = "<frozen importlib"
#: Audit events that change a file system, and which of their arguments are paths (audit events in Python's manual).
_CHANGES = {
    **{f"os.{name}": (0,) for name in ("mkdir", "remove", "rmdir", "truncate")},
    **{f"os.{name}": (1,) for name in ("link", "symlink")},
    "os.rename": (0, 1),
}


#: Audit events that list a folder or search for a file; the first argument is its path.
_LISTS = ("glob.glob", "os.listdir", "os.scandir", "pathlib.Path.glob", "pathlib.Path.rglob")
#: Functions of os.path that check for a file, for which there is no audit event.
_ASKS = ("exists", "isdir", "isfile")
_ASKED = "os.path: not there"


class PythonObserver:
    """The observations of this process.

    Attributes:
        folder: where its file is.
        seen: kinds and texts that are written already, so that repeated attempts do not fill the disk.
        counts: the number of written observations of each kind.
        busy: the threads that are making an observation, whose actions are not the program's.
        threads: whether the ends of threads are observed.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.seen: "Set[Tuple[str, str]]" = set()
        self.counts: "Dict[str, int]" = {}
        self.busy: "Set[int]" = set()
        self.threads = False
        self.handlers: "Dict[str, Callable[[Tuple[Any, ...]], None]]" = {
            "open": self._open,
            "socket.getaddrinfo": self._host,
            "socket.gethostbyname": self._host,
            "socket.connect": self._connect,
            "socket.sendto": self._connect,
            "urllib.Request": self._url,
            "subprocess.Popen": self._program,
            "os.exec": self._program,
            "os.posix_spawn": self._program,
            "ctypes.dlopen": self._library,
            "builtins.input": self._input,
            "sys.excepthook": self._ended,
            _ASKED: self._asked,
        }
        self.handlers.update((event, self._change(places)) for event, places in _CHANGES.items())
        self.handlers.update((event, self._list) for event in _LISTS)

    def hook(self, event: str, args: "Tuple[Any, ...]") -> None:
        """Observe an audit event."""
        handler = self.handlers.get(event)
        if handler is None:
            return
        thread = _thread.get_ident()
        if thread in self.busy:
            return
        self.busy.add(thread)
        try:
            handler(args)
            if not self.threads and "threading" in sys.modules:
                self.watch_threads()
        except Exception:  # whatever arguments the program passes, it must not notice the observer
            pass
        finally:
            self.busy.discard(thread)

    def _host(self, args: "Tuple[Any, ...]") -> None:
        host = _text(args[0])
        if host:
            self.note("host", host, sys._getframe(2), port=_text(args[1]) if len(args) > 1 else "")

    def _connect(self, args: "Tuple[Any, ...]") -> None:
        address = args[1]
        if isinstance(address, tuple):
            self.note("address", f"{address[0]} port {address[1]}", sys._getframe(2))
        elif address:
            path = _text(address)
            # A name that begins with a NUL is local to this machine. An existing socket has or had a server, for
            # instance a library's own service.
            if not path.startswith("\0") and not os.path.lexists(path):
                self.note("daemon", path, sys._getframe(2))

    def _url(self, args: "Tuple[Any, ...]") -> None:
        from hashlib import sha256

        url, answers = _text(args[0]), os.environ.get("FETCH_REPLAY", "/")  # ``contract.site.replay``
        if not os.path.lexists(os.path.join(answers, sha256(url.encode()).hexdigest())):
            self.note("url", url, sys._getframe(2), method=_text(args[3]))

    def _open(self, args: "Tuple[Any, ...]") -> None:
        path, _, flags = args
        if isinstance(path, int):
            return
        if flags & _WRITES:
            frame = sys._getframe(2)
            if frame.f_code.co_filename.startswith(_IMPORTS):
                return
            path = _path(path)
            if not _may_write(path):
                self.note("write", path, frame)
        else:
            self._look_for(path, sys._getframe(2))

    def _list(self, args: "Tuple[Any, ...]") -> None:
        path, frame = args[0], sys._getframe(2)
        if not path or isinstance(path, int) or frame.f_code.co_filename.startswith(_IMPORTS):
            return
        if not any(character in _text(path) for character in "*?["):  # a pattern: then its folder is listed
            self._look_for(path, frame)

    def watch_questions(self) -> None:
        """Observe the program's own checks for missing files; libraries check for many files that they do not need.

        pathlib uses other functions, which are not observed.
        """
        for name in _ASKS:
            asks = getattr(os.path, name)
            told = self._asking(asks)
            for module in (os.path, sys.modules[asks.__module__]):
                setattr(module, name, told)

    def _asking(self, asks: "Callable[..., bool]") -> "Callable[..., bool]":
        def ask(*args: "Any", **named: "Any") -> bool:
            there = asks(*args, **named)
            if not there:
                self.hook(_ASKED, args)
            return there

        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(ask, attribute, getattr(asks, attribute))
        vars(ask)["__wrapped__"] = asks
        return ask

    def _asked(self, args: "Tuple[Any, ...]") -> None:
        path, frame = args[0], sys._getframe(3)
        if not isinstance(path, int) and not _is_in(frame, _LIBRARIES):
            self.note("asked", _path(path), frame)

    def _look_for(self, path: "Any", frame: "FrameType") -> None:
        if self.counts.get("missing", 0) < _MOST:
            try:
                os.stat(path)
            except FileNotFoundError:
                self.note("missing", _path(path), frame)

    def _input(self, _: "Tuple[Any, ...]") -> None:
        if os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev:
            self.note("missing", "standard input", sys._getframe(2))

    def _change(self, places: "Tuple[int, ...]") -> "Callable[[Tuple[Any, ...]], None]":
        def handle(args: "Tuple[Any, ...]") -> None:
            frame = sys._getframe(2)
            if frame.f_code.co_filename.startswith(_IMPORTS):
                return
            for place in places:
                path = _path(args[place])
                # An existing folder is not a failed write: os.makedirs and similar functions try each folder.
                if not _may_change(path) and (len(places) == 2 or not os.path.isdir(path)):
                    self.note("write", path, frame)

        return handle

    def _program(self, args: "Tuple[Any, ...]") -> None:
        program = _text(args[0])
        environment = args[3] if len(args) > 3 and isinstance(args[3], dict) else os.environ
        if program and not _is_program(program, environment):
            self.note("program", program, sys._getframe(2))

    def _library(self, args: "Tuple[Any, ...]") -> None:
        # Only the loader knows where it would be found, so this is used only if it ends the program.
        if args[0]:
            self.note("library", _text(args[0]), sys._getframe(2))

    def _ended(self, args: "Tuple[Any, ...]") -> None:
        _, _, error, trace = args
        self.uncaught(error, trace)

    def watch_threads(self) -> None:
        """Observe the ends of threads, once the program has imported ``threading``."""
        threading = sys.modules["threading"]
        before = getattr(threading, "excepthook", None)  # not yet there while the module is imported
        if before is None:
            return
        self.threads = True

        def ended(args: "Any") -> None:
            self.quietly(args.exc_value, args.exc_traceback, thread="yes")
            before(args)

        vars(threading)["excepthook"] = ended

    def quietly(self, error: "Optional[BaseException]", trace: "Optional[TracebackType]", thread: str = "") -> None:
        """Observe an exception as ``uncaught`` does, without visible effects."""
        own = _thread.get_ident()
        self.busy.add(own)
        try:
            if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
                self.uncaught(error, trace, thread)
        except Exception:  # as in hook
            pass
        finally:
            self.busy.discard(own)

    def uncaught(self, error: "BaseException", trace: "Optional[TracebackType]", thread: str = "") -> None:
        """Observe the exception that ends a thread or the process, with the ones that led to it."""
        chain: "List[str]" = []
        at: "Optional[BaseException]" = error
        while at is not None and len(chain) < 10:
            chain.append(f"{type(at).__name__}: {_text(str(at))}")
            at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
        traced: "List[Tuple[FrameType, Optional[int]]]" = []
        while trace is not None:
            traced.append((trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        traced.reverse()
        about: "Dict[str, str]" = {}
        for frame, _ in traced:
            _add_names(frame, about)
        about["after"] = "\n".join(item[:_TEXT] for item in chain[1:])
        if thread:
            about["thread"] = thread
        self._write("uncaught", chain[0], traced, about)

    def note(self, kind: str, what: str, frame: "Optional[FrameType]" = None, **about: str) -> None:
        """Write an observation, once; ``frame`` is where the program did it."""
        if (kind, what) in self.seen:
            return
        count = self.counts.get(kind, 0)
        self.counts[kind] = count + 1
        if count >= _MOST:
            if count == _MOST:
                self._write("more", kind, [], {})
            return
        self.seen.add((kind, what))
        frames = _frames(frame)
        if kind in _WITH_NAMES:
            if any(each.f_code.co_filename.endswith(_POOL) for each in frames):
                # The program is waiting for a library's thread pool: its own line is in the main thread's stack.
                frames += _frames(_main_frame())
            for each in frames:
                _add_names(each, about)
        self._write(kind, what, [(each, each.f_lineno) for each in frames], about)

    def _write(
        self, kind: str, what: str, stack: "List[Tuple[FrameType, Optional[int]]]", about: "Dict[str, str]"
    ) -> None:
        own = [item for item in stack[_FRAMES:] if not _is_in(item[0], _LIBRARIES)]
        places = [_place(*item) for item in stack[:_FRAMES] + own[:_FRAMES_OF_PROGRAM]]
        record = {"kind": kind, "what": what[:_TEXT], "time": round(time.time(), 3), "stack": places, "about": about}
        # Opened each time, because programs may close all descriptors, and a forked process has its own file.
        path = os.path.join(self.folder, "%s-%d.jsonl" % (os.uname().nodename.replace("/", "_"), os.getpid()))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, json.dumps(record).encode("ascii", "replace") + b"\n")
        finally:
            os.close(file)


def _frames(frame: "Optional[FrameType]") -> "List[FrameType]":
    """Return a frame and its callers."""
    frames: "List[FrameType]" = []
    while frame is not None and len(frames) < _MOST:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _main_frame() -> "Optional[FrameType]":
    main = getattr(sys.modules.get("threading"), "main_thread", None)
    return sys._current_frames().get(main().ident) if main is not None else None


def _place(frame: "FrameType", line: "Optional[int]") -> "List[Any]":
    return [frame.f_code.co_filename[:_PATH], line or 0, frame.f_code.co_name[:_TEXT]]


def _is_in(frame: "FrameType", places: "Tuple[str, ...]") -> bool:
    return any(place in frame.f_code.co_filename for place in places)


def _add_names(frame: "FrameType", about: "Dict[str, str]") -> None:
    """Add the local variables of ``_NAMES``. The outermost values, from the user's own call, take precedence."""
    names = frame.f_locals
    for name in _NAMES:
        value = names.get(name)
        if type(value).__name__ == "PosixPath":
            value = str(value)
        if isinstance(value, str) and value:
            about[name] = value[:_TEXT]
    if "self" in names and "/datasets/" in frame.f_code.co_filename:
        about["class"] = type(names["self"]).__name__[:_TEXT]


def _text(value: "Any") -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value)


def _path(value: "Any") -> str:
    path = os.fsdecode(value)
    if ".." in path:  # the part before it may be a link
        folder, name = os.path.split(path)
        path = os.path.join(os.path.realpath(folder), name)
    return os.path.abspath(path)


def _may_write(path: str) -> bool:
    """Return whether the file can be written, or created in its folder; one whose folder is missing counts too."""
    return os.access(path, os.W_OK) if os.path.lexists(path) else _may_change(path)


def _may_change(path: str) -> bool:
    """Return whether the folder of ``path`` can be changed."""
    folder = os.path.dirname(path)
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK)


def _is_program(name: str, environment: "Any") -> bool:
    if "/" in name:
        return os.access(name, os.X_OK)
    folders = _text(environment.get("PATH") or os.defpath).split(":")
    return any(os.access(os.path.join(folder or ".", name), os.X_OK) for folder in folders)


def watch(folder: str) -> PythonObserver:
    """Observe this process from now on; observations go to ``folder``."""
    observer = PythonObserver(folder)
    command = " ".join(getattr(sys, "orig_argv", None) or [sys.executable])
    about = {"pid": str(os.getpid()), "python": sys.version.split()[0]}
    observer.note("process", "%d %s" % (os.getpid(), command), None, **about)
    if hasattr(sys, "addaudithook"):  # Python 3.8
        sys.addaudithook(observer.hook)
        observer.watch_questions()
        return observer
    observer.note("blind", "Python {} has no audit hooks".format(about["python"]))
    before = sys.excepthook

    def ended(kind: "Type[BaseException]", error: "BaseException", trace: "Optional[TracebackType]") -> None:
        observer.quietly(error, trace)
        before(kind, error, trace)

    sys.excepthook = ended
    return observer


def _next_sitecustomize() -> None:
    """Import the image's own sitecustomize, which this one hides."""
    own = os.path.dirname(os.path.abspath(__file__))
    hidden = sys.modules.pop("sitecustomize")
    place = [folder for folder in sys.path if os.path.abspath(folder or ".") == own]
    sys.path[:] = [folder for folder in sys.path if folder not in place]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        sys.modules["sitecustomize"] = hidden
        if error.name != "sitecustomize":  # the image's own module failed, which Python's site module reports
            raise
    finally:
        sys.path[:0] = place


if __name__ == "sitecustomize" and os.environ.get(FOLDER):
    try:
        watch(os.environ[FOLDER])
    except Exception:  # the job runs, unobserved: the report names a process without observations
        pass
    _next_sitecustomize()
