"""Check that the container has the program that a job's command starts, as far as this is certain. Pure.

Both sides run the same search: the laptop on the image that it packs, the site on the installed image. The search
follows execvp(3) in the job's own PATH, links inside the image, and the first lines of scripts. Paths in folders that
may be bound over the image (data, the job's folder, folders of the site) are unknown and therefore never reported.
"""

import posixpath
import re
from contextlib import suppress
from typing import Callable, Collection, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.bundle.job import Job, started
from deployer.contract.rules import hostfiles
from deployer.contract.site.mount_points import OF_THE_NODE
from deployer.contract.site.plan import APP, DATA, JOB, NODE, TOOL, VARIANT, WHEELS

#: PATH in the container if the image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Opens a job's standard input if the image has no Python.
SHELL = "/bin/sh"

FILE, FOLDER, LINK, UNKNOWN = "file", "folder", "link", "unknown"

#: The content of these folders in a job depends on the site, the user or the kernel.
_OUTSIDE = (
    DATA, JOB, NODE, TOOL, VARIANT, WHEELS, hostfiles.FOLDER, "/data", "/scratch", "/mnt",
    "/tmp", "/var/tmp", "/home", "/root", "/dev", "/proc", "/sys", "/run",  # noqa: S108
)  # fmt: skip
#: The kernel's limits: links in a path, and scripts whose interpreter is a script.
_MAX_LINKS, _MAX_SCRIPTS = 40, 4

_INTERPRETERS = re.compile(r"^(python|pypy|perl|bash|dash|sh)[0-9.]*$")
_FLAGS = re.compile(r"^-[bBdEhiIOPqsSuvx]+$")
_SHELLS, _SHELL_FLAGS = re.compile(r"^(ba|da)?sh$"), re.compile(r"^-[aefhluvxBEHPT]+$")
#: Python's options that take the next word as value, and those that run no file.
_WITH_VALUE, _NO_FILE = ("-W", "-X", "--check-hash-based-pycs"), ("-c", "-")
#: Modules that run the file named after them.
_RUNNERS = ("mpi4py", "coverage", "cProfile", "trace", "pdb")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
#: Names of programs in scripts, and the names under which images may have them.
_LIKE = {"bash": ("sh",), "python": ("python3",), "pip": ("pip3",)}


class PathInfo(NamedTuple):
    """What is at a path; a link is not followed.

    Attributes:
        kind: FILE, FOLDER, LINK or UNKNOWN.
        target: the target of a link.
        executable: whether the file has an execute permission.
        line: the first line of a script after ``#!``; empty for a text file without one; None for any other file.
    """

    kind: str
    target: str = ""
    executable: bool = True
    line: Optional[str] = None


#: Returns what is at an absolute path whose folders are not links; None if nothing is there.
Look = Callable[[str], Optional[PathInfo]]


class CommandProblem(NamedTuple):
    """Why a command cannot start.

    Attributes:
        reason: the cause.
        remedy: what to do about it.
    """

    reason: str
    remedy: str


class CommandSearch(NamedTuple):
    """Where commands are searched.

    Attributes:
        look: reads the image.
        path: the job's PATH.
        programs: names that PATH finds outside the image, in wheels or on the host.
        workdir: the folder that relative paths start from; None if unknown.
        outside: folders that are bound over the image.
    """

    look: Look
    path: str
    programs: Collection[str] = ()
    workdir: Optional[str] = None
    outside: Sequence[str] = ()


def variables(env: Iterable[str]) -> Dict[str, str]:
    """Return an image's variables, given as NAME=VALUE in its configuration."""
    return dict(item.partition("=")[::2] for item in env)


def missing(words: Sequence[str], place: CommandSearch) -> Optional[CommandProblem]:
    """Return why the command ``words`` cannot start; None if it can, or if this is uncertain."""
    try:
        _started(list(words), place)
    except Unsure:
        return None
    except _NotThere as error:
        return error.missing
    return None


def missing_of(job: Job, place: CommandSearch) -> Optional[CommandProblem]:
    """Return why ``job`` cannot start: its command, or torchrun's Python, is missing; None as for ``missing``."""
    return missing(job.command, place) or missing(started(job), place)


class Located(NamedTuple):
    """A program that was found.

    Attributes:
        path: the path found through PATH.
        real: the same file with links resolved.
        seen: what is at ``real``.
    """

    path: str
    real: str
    seen: PathInfo


def locate(name: str, place: CommandSearch) -> Optional[Located]:
    """Return the file that execvp(3) starts for ``name``, or None if there is none.

    Raises:
        Unsure: the search reaches a folder that is bound over the image.
    """
    programs = (each for each in _search(name, place) if each.seen.kind == FILE and each.seen.executable)
    return next(programs, None)


def there(path: str, place: CommandSearch) -> Optional[Located]:
    """Return the file at a path, which may be relative to the working folder; None if there is none. Raises Unsure."""
    file = next(_search(path if "/" in path else "./" + path, place), None)
    return file if file and file.seen.kind == FILE else None


def is_certain(path: str, place: CommandSearch) -> bool:
    """Return whether the content at a path depends only on the image."""
    try:
        _real(path, place)
    except Unsure:
        return False
    return True


def missing_input(stdin: str, place: CommandSearch) -> Optional[CommandProblem]:
    """Return why no rank can read the file ``stdin`` as its standard input; None if it can, or if this is uncertain.

    The image's Python opens the file; without Python, its shell does.
    """
    if stdin.startswith(JOB + "/"):
        hint = f"put it into app/, which jobs see at {APP}, or bind a folder of the site: --bind DIR:/data"
        return CommandProblem(f"stdin is {stdin}, but the folder of a new job is empty", hint)
    with suppress(Unsure):
        target = _real(stdin, place)
        if target is None:
            hint = f"correct `stdin` of the job; files of app/ are in {APP}"
            return CommandProblem(f"there is no {stdin}, which is the job's stdin", hint)
        if target[1].kind == FOLDER:
            return CommandProblem(f"stdin of the job, {stdin}, is a folder", "name a file")
    if _found_as("python3", place) or missing([SHELL], place) is None:
        return None
    hint = "install one of them in the Dockerfile, or give the file as an argument of the command"
    return CommandProblem(f"the image has neither Python nor {SHELL} to open the job's stdin", hint)


def workdir(job: Optional[str], image: str) -> str:
    """Return the working folder of a job: its own, else the image's, else the job's folder."""
    return job or (image if image.strip("/") else JOB)


class Unsure(Exception):
    """The answer depends on something outside the image."""


class _NotThere(Exception):
    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.missing = CommandProblem(reason, remedy)


def _started(words: List[str], place: CommandSearch) -> None:
    if not words:
        raise Unsure
    _program(words[0], place, 0)
    if posixpath.basename(words[0]) == "env":
        _started(_of_env(words[1:]), place)
    else:
        file = operand(words)
        if file is not None and file.startswith("/"):
            _hidden(file, place)
            script = _real(file, place)
            if script is None:
                raise _NotThere(f"there is no {file}", f"files of app/ are in {APP}: correct the job's command")
            if _SHELLS.match(posixpath.basename(words[0])):
                _unix_lines(file, script[1])


def _hidden(path: str, place: CommandSearch) -> None:
    """Raise _NotThere if a folder of the node hides a file of the image."""
    folder = "/" + path.strip("/").partition("/")[0]
    if folder in OF_THE_NODE and place.look(posixpath.normpath(path)):
        hint = "install it in another folder of the image, for instance /opt"
        raise _NotThere(f"jobs do not see {path} of the image: {folder} is the node's own", hint)


def _unix_lines(path: str, seen: PathInfo) -> None:
    """Raise _NotThere if a script's first line has a Windows line end, which would become part of its last word."""
    if seen.line is not None and "\r" in seen.line:
        raise _NotThere(f"the first line of {path} ends with a carriage return", "save it with Unix line ends")


def _of_env(words: List[str]) -> List[str]:
    """Return the command that ``env`` starts."""
    for at, word in enumerate(words):
        if word.startswith(("-", "PATH=")):
            break
        if not _ASSIGNMENT.match(word):
            return words[at:]
    raise Unsure


def operand(words: Sequence[str]) -> Optional[str]:
    """Return the file that an interpreter runs; None if it runs no file or the command is ambiguous."""
    if not _INTERPRETERS.match(posixpath.basename(words[0])):
        return None
    flags = _SHELL_FLAGS if _SHELLS.match(posixpath.basename(words[0])) else _FLAGS
    rest = iter(words[1:])
    for word in rest:
        if word in _NO_FILE:
            return None
        if word == "-m":
            if next(rest, "") not in _RUNNERS:
                return None
            word = next(rest, "-")
            return None if word.startswith("-") else word
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
        elif word.startswith("--") or not flags.match(word):
            return None
    return None


def _program(name: str, place: CommandSearch, depth: int) -> None:
    """Raise _NotThere unless ``name`` can be started."""
    if depth > _MAX_SCRIPTS or name == "":
        raise Unsure
    if name in place.programs:
        return
    if place.workdir == JOB and "/" in name and not name.startswith("/"):
        raise _NotThere(*_absent(name, place))  # a job's own folder is new
    if "/" in name:
        _hidden(next(_candidates(name, place)), place)
    against = None
    for path, real, seen in _search(name, place):
        if seen.kind == FOLDER:
            against = against or (f"{path} is a folder", "name a program in the job's command")
        elif not seen.executable:
            hint = f"chmod +x it before it is packed, or start it with its interpreter (python3 {path})"
            against = against or (f"{path} has no execute permission", hint)
        else:
            _script(path if path != real else real, seen, place, depth)
            return
    raise _NotThere(*against or _absent(name, place))


def _search(name: str, place: CommandSearch) -> Iterator[Located]:
    for path in _candidates(name, place):
        target = _real(path, place)
        if target is not None:
            yield Located(path, *target)


def _absent(name: str, place: CommandSearch) -> Tuple[str, str]:
    if "/" in name:
        relative = "" if name.startswith("/") else f", a path that starts from {place.workdir},"
        hint = f"correct the job's command; files of app/ are in {APP}"
        return f"there is no {name}{relative} in the image or the bundle", hint
    other = next(filter(None, (_found_as(each, place) for each in _others(name))), None)
    hint = "install it in the Dockerfile, or correct the job's command"
    if other:
        hint = f"the image has {other}: write that, or install {name} in the Dockerfile"
    return f"the image has no {name} in its PATH, {place.path}", hint


def _others(name: str) -> Iterator[str]:
    """Yield other names under which images have the program."""
    plain = re.sub(r"[0-9.]+$", "", name)
    yield from (other for other in (*_LIKE.get(plain, ()), plain) if other != name)


def _found_as(name: str, place: CommandSearch) -> Optional[str]:
    try:
        return name if locate(name, place) else None
    except Unsure:
        return None


def _candidates(name: str, place: CommandSearch) -> Iterator[str]:
    for folder in [""] if "/" in name else place.path.split(":"):
        path = name if "/" in name else "{}/{}".format(folder or ".", name)
        if not path.startswith("/"):
            if place.workdir is None:
                raise Unsure
            path = f"{place.workdir}/{path}"
        yield path


def _script(path: str, seen: PathInfo, place: CommandSearch, depth: int) -> None:
    """Raise _NotThere if the kernel would not find a script's interpreter."""
    if seen.line is None:
        return
    program, _, argument = seen.line.strip(" \t").partition(" ")
    argument = argument.strip(" \t")
    if not program:
        hint = "begin it with #!/bin/sh, or start it with its interpreter"
        raise _NotThere(f"{path} has no #! line, so it cannot be started", hint)
    _unix_lines(path, seen)
    if "/" not in program:
        program = "./" + program  # not looked up in PATH
    try:
        _program(program, place, depth + 1)
        if posixpath.basename(program) == "env" and argument:
            split = argument.startswith("-S ")
            words = argument[3:].split() if split else [argument]
            _program(_of_env(words)[0], place, depth + 1)
    except _NotThere as error:
        reason = f"{path} begins with #!{seen.line.strip()}, and {error.missing.reason}"
        raise _NotThere(reason, error.missing.remedy) from error


def _real(path: str, place: CommandSearch) -> Optional[Tuple[str, PathInfo]]:
    """Return where ``path`` leads and what is there; None if it leads nowhere. Raises _Unsure."""
    done: List[str] = []
    todo = _names(path)[::-1]
    here, seen = "/", PathInfo(FOLDER)
    links = 0
    while todo:
        name = todo.pop()
        if name == "..":
            done = done[:-1]
            here, seen = "/" + "/".join(done), PathInfo(FOLDER)
            continue
        here = "/" + "/".join([*done, name])
        outside = (*_OUTSIDE, *place.outside)
        if any(here == folder or here.startswith(folder + "/") for folder in outside):
            raise Unsure
        entry = place.look(here)
        if entry is None and any(folder.startswith(here + "/") for folder in outside):
            entry = PathInfo(FOLDER)  # a bind creates its own folder
        if entry is None:
            return None
        if entry.kind == UNKNOWN:
            raise Unsure
        if entry.kind == LINK:
            links += 1
            if links > _MAX_LINKS:
                return None
            done = [] if entry.target.startswith("/") else done
            todo += _names(entry.target)[::-1]
            here, seen = "/" + "/".join(done), PathInfo(FOLDER)
        elif entry.kind == FILE and todo:
            return None
        else:
            done.append(name)
            seen = entry
    return here, seen


def _names(path: str) -> List[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def first_line(start: bytes, own: bool = False) -> Optional[str]:
    """Return ``PathInfo.line`` for a file that begins with the bytes ``start``.

    Only a user's ``own`` file can be reported as text without ``#!``, because a kernel may start other kinds of files.
    """
    if start.startswith(b"#!"):
        return start[2:].partition(b"\n")[0].decode("utf-8", "surrogateescape")
    return "" if own and b"\0" not in start else None
