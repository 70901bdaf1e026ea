"""Where a Python searches for modules: ``sys.path`` as Python and its ``site`` module build it. Nothing is run."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.starts.python import pth_line
from deployer.connected.linker.starts.python.pth_line import NotUnderstood
from deployer.contract.bundle import command
from deployer.contract.bundle.command import CommandSearch
from deployer.contract.site.plan import JOB, VARIANT, WHEELS

_VERSION = re.compile(r"^python(3\.[0-9]+)$")
#: .pth files of setuptools, which only import code that sets up ``distutils`` and namespace packages.
_HARMLESS_PTH = re.compile(r"^(distutils-precedence|.*-nspkg)\.pth$")
_IMPORTED = re.compile(r"\b(?:import\s+|__import__\([\"'])([A-Za-z_]\w*)")
_MAX_LINES = 200  # per .pth file


class Runs(NamedTuple):
    """A Python interpreter and what it runs.

    Attributes:
        python: the path by which it is started, with links unresolved.
        real: the path of its own file.
        script: the file, ``-m NAME`` or ``-c TEXT``; empty if unknown, None if there is no script.
        folder: the working folder; None if unknown.
        path: PYTHONPATH; None if unknown.
        module: a package that a launcher imports first; empty if there is none.
        place: where commands are searched for, including the folders that are bound over the image.
        environment: the variables that it receives; an unknown value is an UnknownWord.
        alone: whether no other part of the job ran before it, so that the job's own folder is empty.
    """

    python: str
    real: str
    script: str | None
    folder: str | None
    path: Sequence[str] | None
    module: str = ""
    place: CommandSearch | None = None
    environment: Mapping[str, str] = {}
    alone: bool = True


class SearchPath(NamedTuple):
    """The ``sys.path`` of a Python, without the folder of its script.

    Attributes:
        folders: folders of packages, in order.
        library: the folders of Python's own library; empty if they were not found.
        modules: modules that .pth files import.
        doubts: why modules may be found elsewhere in the image or the bundle.
        unknown: why modules may be found outside both.
        minor: the number after "3." in the Python's version; 0: unknown.
    """

    folders: Sequence[str]
    library: Sequence[str]
    modules: Sequence[str]
    doubts: Sequence[str]
    unknown: Sequence[str]
    minor: int = 0


#: Library modules of 3.6 to 3.14 that are compiled in or frozen, and so may have no file of their own. The laptop's
#: Python cannot show this: Debian packages parts of the library separately, and its missing modules are not built in.
_WITHOUT_FILE = frozenset([
    "abc", "array", "atexit", "audioop", "binascii", "builtins", "cmath", "codecs", "errno", "faulthandler",
    "fcntl", "gc", "genericpath", "grp", "io", "itertools", "marshal", "math", "mmap", "nis", "ntpath", "os",
    "ossaudiodev", "parser", "posix", "posixpath", "pwd", "pyexpat", "readline", "resource", "runpy", "select",
    "site", "spwd", "stat", "sys", "syslog", "termios", "time", "unicodedata", "zipimport", "zlib",
])  # fmt: skip


def may_be_built_in(name: str) -> bool:
    """Return whether a module may be compiled into Python, without its own file."""
    return name.startswith("_") or name in _WITHOUT_FILE


class Places:
    """Finds where a Python searches for modules."""

    def __init__(self, runs: Runs, view: JobFilesystem) -> None:
        self._runs = runs
        self._view = view
        self._folders: list[str] = []
        self._doubts: dict[str, None] = {}
        self._unknown: dict[str, None] = {}

    def found(self) -> SearchPath:
        """Return where it searches."""
        script, path = self._runs.script or "", self._runs.path
        if script.startswith("-"):  # -c or -m
            self._working_folder()
        if path is None:
            self._unknown["PYTHONPATH is only known when it runs"] = None
        for folder in path if path and path != [""] else ():
            self._add(folder, "PYTHONPATH")
        library = self._installed_for()
        if not library:
            self._unknown[f"the library of {self._runs.real} was not found"] = None
        modules = [
            module
            for folder in list(self._folders)
            for name in self._view.names(folder)
            if name.endswith(".pth")
            for module in self._of_pth(f"{folder}/{name}", folder, name)
        ]
        name = posixpath.basename(self._runs.real)
        names = map(posixpath.basename, library) if name in ("python", "python3") else [name]
        minor = next((int(match[1].partition(".")[2]) for match in map(_VERSION.match, names) if match), 0)
        return SearchPath(self._folders, library, modules, list(self._doubts), list(self._unknown), minor)

    def _working_folder(self) -> None:
        folder = self._runs.folder
        if folder is not None and self._is_certain(folder):
            self._folders.append(self._view.resolve(folder) or folder)
        elif folder != JOB or not self._runs.alone:
            self._unknown["it searches its working folder"] = None

    def _is_certain(self, path: str) -> bool:
        """Return whether everything below a path is known here."""
        is_overlay = path.startswith((f"{VARIANT}/", f"{WHEELS}/")) and self._view.resolve(path)
        return bool(is_overlay) or self._runs.place is None or command.is_certain(path, self._runs.place)

    def _add(self, path: str, source: str) -> None:
        """Add a folder from PYTHONPATH or a .pth file, if it can be searched here."""
        if not path:
            self._working_folder()
        elif not path.startswith("/"):
            self._unknown[f"{source} has the relative path {path}"] = None
        elif not self._is_certain(path):
            self._unknown[f"{path} of {source} is only known on the site, or the job makes it"] = None
        else:
            if self._view.file(path):
                self._unknown[f"{path} of {source} is an archive"] = None
            self._folders.append(self._view.resolve(path) or path)

    def _installed_for(self) -> list[str]:
        """Add the folders of packages, and return the folders of the library."""
        beside = posixpath.dirname(self._runs.python)
        own = posixpath.dirname(posixpath.dirname(self._runs.real))
        for folder in (beside, posixpath.dirname(beside)):
            config = self._content(f"{folder}/pyvenv.cfg")
            if config is not None:
                self._folders += self._packages(folder)
                home = re.search(r"^home\s*=\s*(\S+)", config, re.MULTILINE)
                base = posixpath.dirname(home[1]) if home else "/usr"
                if re.search(r"^include-system-site-packages\s*=\s*true", config, re.MULTILINE | re.IGNORECASE):
                    self._folders += self._packages(base)
                return self._library(own) or self._library(base)
        self._folders += self._packages(own)
        return self._library(own)

    def _libraries(self, prefix: str, local: bool) -> Iterator[str]:
        """Yield the folders ``lib/python3.X`` below a prefix."""
        version = _VERSION.match(posixpath.basename(self._runs.real))
        prefix = "" if prefix == "/" else prefix
        tops = [prefix, f"{prefix}/local"] if local and prefix == "/usr" else [prefix]
        for lib in (f"{top}/{name}" for top in tops for name in ("lib", "lib64")):
            names = self._view.names(lib)
            wanted = [f"python{version[1]}", "python3"] if version else names
            yield from (f"{lib}/{name}" for name in wanted if name in names and name.startswith("python3"))

    def _packages(self, prefix: str) -> list[str]:
        """Return the folders of packages below a prefix."""
        tops = self._libraries(prefix, True)
        paths = [self._view.resolve(f"{top}/{name}") for top in tops for name in ("site-packages", "dist-packages")]
        return list(dict.fromkeys(path for path in paths if path))

    def _library(self, prefix: str) -> list[str]:
        """Return the folders of a Python's library; empty if they are uncertain."""
        tops = [top for top in self._libraries(prefix, False) if self._view.resolve(f"{top}/os.py")]
        if len({self._view.resolve(top) for top in tops}) != 1:
            return []
        zipped = f"{posixpath.dirname(tops[0])}/{posixpath.basename(tops[0]).replace('.', '')}.zip"
        if self._view.resolve(zipped):
            self._unknown[f"{zipped} is an archive"] = None
        return [path for path in map(self._view.resolve, (tops[0], f"{tops[0]}/lib-dynload")) if path]

    def _of_pth(self, path: str, folder: str, name: str) -> Iterator[str]:
        """Yield the modules that a .pth file imports, and add the folders that it lists."""
        for line in (self._content(path) or "").splitlines()[:_MAX_LINES]:
            if line.startswith(("import ", "import\t")):
                try:
                    for named in pth_line.added(line, self._runs.environment):
                        self._add(named, name)
                except NotUnderstood:
                    if not _HARMLESS_PTH.match(name):
                        self._doubts[f"{name} runs Python"] = None
                    yield from _IMPORTED.findall(line)
            elif line.strip() and not line.startswith("#"):
                named = posixpath.normpath(posixpath.join(folder, line.strip()))
                if named not in self._folders:
                    self._add(named, name)

    def _content(self, path: str) -> str | None:
        return self._view.content(path).decode("utf-8", "surrogateescape") if self._view.file(path) else None
