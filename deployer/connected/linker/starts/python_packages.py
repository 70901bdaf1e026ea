"""Which packages a Python program imports, and whether that is certain. Nothing is run.

The script and other texts outside the folders of packages are parsed; of packages the index has what their texts name.
"""

import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.package_imports import PACKAGED, PackageImports
from deployer.connected.linker.starts import python_imports
from deployer.connected.linker.starts.python_imports import ModuleImports

_MAX_FILES, _MAX_BYTES = 500, 8 * 1024 * 1024
_VERSION = re.compile(r"python(3\.[0-9]+)$")
#: Packages whose extension modules are compiled against mpi4py import it from C.
_FROM_C = "mpi4py"
_NOTHING = PackageImports(frozenset(), frozenset())
#: Modules that Python runs by itself if they are there.
_AT_START = ("sitecustomize", "usercustomize")


class Packages(NamedTuple):
    """The packages that a Python program imports, by their paths in the container.

    Attributes:
        imported: packages that are imported whenever the program runs.
        possible: packages that may be imported.
        unclear: why other packages may be imported as well; empty if none may.
    """

    imported: frozenset[str]
    possible: frozenset[str]
    unclear: str = ""


class Runs(NamedTuple):
    """A Python with what it runs.

    Attributes:
        python: the path by which it is started, links not resolved.
        real: its own file.
        script: the file, ``-m NAME`` or ``-c TEXT``; empty if unknown, None for none.
        folder: the working folder, None if unknown.
        path: PYTHONPATH; None if it is unknown.
        module: a package that a launcher imports first; empty if there is none.
    """

    python: str
    real: str
    script: str | None
    folder: str | None
    path: Sequence[str] | None
    module: str = ""


class Found(NamedTuple):
    """The packages of a program, what it starts itself, and why that may not be all."""

    packages: Packages
    commands: Sequence[tuple[str, ...]]
    unclear: Sequence[str]


def find(runs: Runs, view: JobFilesystem, data: Mapping[str, PackageImports], calling: Sequence[str]) -> Found:
    """Return the packages that a program imports.

    Args:
        runs: the program.
        view: the files that the job sees.
        data: what packages import, by their paths in the container.
        calling: files that call MPI.
    """
    return _Search(runs, view, data, calling).found()


class _Search:
    def __init__(
        self, runs: Runs, view: JobFilesystem, data: Mapping[str, PackageImports], calling: Sequence[str]
    ) -> None:
        self._runs = runs
        self._view = view
        self._data = data
        self._calling = calling
        self._unclear: dict[str, None] = {}
        self._starts: dict[str, None] = {}
        self._commands: list[tuple[str, ...]] = []
        self._certain: dict[str, None] = {}
        self._possible: dict[str, None] = {}
        self._done: set[tuple[str, bool]] = set()
        self._bytes = 0
        self._path: list[str] = []
        self._changed = False
        self._listed: dict[str, list[str]] = {}

    def found(self) -> Found:
        """Return the result."""
        script = self._runs.script
        self._path = self._search_path()
        if script is None:
            self._unclear["an interactive Python"] = None
        elif script == "":
            self._unclear["the words of the Python are not understood"] = None
        elif script.startswith("-c "):
            self._text(script[3:].encode("utf-8", "surrogateescape"), "-c", "", True, True)
        elif script.startswith("-m "):
            self._module(script[3:])
        else:
            self._script(script)
        for name in (*_AT_START, *self._of_pth(), self._runs.module):
            if name:
                self._import(name, True)
        self._close()
        packages = Packages(
            frozenset(self._certain), frozenset(self._possible.keys() - self._certain.keys()), "; ".join(self._unclear)
        )
        return Found(packages, self._commands, list(self._starts))

    # ------------------------------------------------------------------------------------------------- the search path

    def _search_path(self) -> list[str]:
        """Return ``sys.path`` without its first folder."""
        if self._runs.path is None:
            self._unclear["PYTHONPATH is only known when it runs"] = None
        found = [self._view.resolve(path) or path for path in self._runs.path or [] if path.startswith("/")]
        beside = posixpath.dirname(self._runs.python)
        for folder in (beside, posixpath.dirname(beside)):
            config = self._content(f"{folder}/pyvenv.cfg")
            if config is not None:
                found += self._installed(folder)
                home = re.search(r"^home\s*=\s*(\S+)", config, re.MULTILINE)
                if re.search(r"^include-system-site-packages\s*=\s*true", config, re.MULTILINE | re.IGNORECASE):
                    found += self._installed(posixpath.dirname(home[1]) if home else "/usr")
                return found
        return found + self._installed(posixpath.dirname(posixpath.dirname(self._runs.real)))

    def _installed(self, prefix: str) -> list[str]:
        """Return the folders of packages below a prefix."""
        version = _VERSION.search(self._runs.real)
        prefix = "" if prefix == "/" else prefix
        prefixes = [prefix, f"{prefix}/local"] if prefix == "/usr" else [prefix]
        found = []
        for lib in (f"{each}/{lib}" for each in prefixes for lib in ("lib", "lib64")):
            real = self._view.resolve(lib)
            names = self._view.names(real) if real else []
            for name in [f"python{version[1]}", "python3"] if version else names:
                if name in names and name.startswith("python3"):
                    found += [f"{lib}/{name}/site-packages", f"{lib}/{name}/dist-packages"]
        return list(dict.fromkeys(path for path in map(self._view.resolve, found) if path))

    def _of_pth(self) -> Iterator[str]:
        """Yield modules that .pth files import, and add the folders that they name."""
        for folder in list(self._path):
            real = self._view.resolve(folder)
            for name in self._view.names(real) if real else ():
                if not name.endswith(".pth"):
                    continue
                for line in (self._content(f"{real}/{name}") or "").splitlines()[:200]:
                    if line.startswith(("import ", "import\t")):
                        yield from re.findall(r"\b(?:import\s+|__import__\([\"'])([A-Za-z_]\w*)", line)
                    elif line.strip() and not line.startswith("#"):
                        path = posixpath.normpath(posixpath.join(folder, line.strip()))
                        if self._view.resolve(path) and path not in self._path:
                            self._path.append(path)

    # ------------------------------------------------------------------------------------------------------- modules

    def _script(self, script: str) -> None:
        path = script
        if not script.startswith("/"):
            if self._runs.folder is None:
                self._unclear[f"{script} is in a folder that is only known when it runs"] = None
                return
            path = f"{self._runs.folder}/{script}"
        real = self._view.resolve(path)
        if real and not self._view.is_file(real):
            path, real = f"{path}/__main__.py", self._view.resolve(f"{path}/__main__.py")
        data = self._view.content(real) if real and self._view.is_file(real) else b""
        if not real or not data:
            self._unclear[f"{script} cannot be read"] = None
            return
        self._path.insert(0, posixpath.dirname(real))
        self._text(data, posixpath.basename(script), posixpath.dirname(real), True, True)

    def _module(self, name: str) -> None:
        if self._runs.folder:
            self._path.insert(0, self._runs.folder)
        if not self._import(name, True) and name.partition(".")[0] not in sys.stdlib_module_names:
            self._unclear[f"there is no module {name}"] = None
        for path in self._files(f"{name}.__main__"):
            self._file(path, True, True)
        for path in self._files(name):
            self._file(path, True, True)

    def _import(self, name: str, certain: bool) -> bool:
        """Follow the import of a dotted name; return whether there is such a module."""
        parts = name.split(".")
        there = False
        for folder in self._path:
            top = f"{folder}/{parts[0]}"
            if PACKAGED.match(f"{top}/") or self._is_data(top):
                if self._exists(top):
                    (self._certain if certain else self._possible)[top] = None
                    return True
                continue
            paths = [path for count in range(1, len(parts) + 1) for path in self._at(folder, parts[:count], certain)]
            for path in paths:
                self._file(path, certain, False)
            there = there or bool(paths)
            if paths:
                break
        return there

    def _is_data(self, top: str) -> bool:
        return top in self._data

    def _exists(self, top: str) -> bool:
        """Return whether there is a module at a path, whatever kind of module it is."""
        folder, name = posixpath.split(top)
        real = self._view.resolve(folder)
        if real is None:
            return False
        return any(each == name or each.startswith(name + ".") for each in self._names(real))

    def _names(self, folder: str) -> list[str]:
        if folder not in self._listed:
            self._listed[folder] = self._view.names(folder)
        return self._listed[folder]

    def _files(self, name: str) -> list[str]:
        for folder in self._path:
            found = list(self._at(folder, name.split("."), False))
            if found:
                return found
        return []

    def _at(self, folder: str, parts: Sequence[str], certain: bool) -> Iterator[str]:
        """Yield the file of a module below a folder, if it is there; an extension module is added."""
        path = "/".join([folder, *parts])
        for candidate in (f"{path}/__init__.py", f"{path}.py"):
            real = self._view.resolve(candidate)
            if real and self._view.is_file(real):
                yield candidate
                return
        parent = self._view.resolve(posixpath.dirname(path))
        for name in self._names(parent) if parent else ():
            if name.startswith(parts[-1] + ".") and name.endswith(".so"):
                (self._certain if certain else self._possible)[f"{posixpath.dirname(path)}/{name}"] = None

    def _file(self, path: str, certain: bool, main: bool) -> None:
        if (path, certain) in self._done or PACKAGED.match(path):
            return
        self._done.add((path, certain))
        real = self._view.resolve(path)
        data = self._view.content(real) if real else b""
        self._text(data, posixpath.basename(path), posixpath.dirname(path), certain, main)

    def _text(self, data: bytes, shown: str, folder: str, certain: bool, main: bool) -> None:
        """Follow what a text imports."""
        self._bytes += len(data)
        if self._bytes > _MAX_BYTES or len(self._done) > _MAX_FILES:
            self._unclear["it imports too many files to read"] = None
            return
        found = python_imports.of_text(data, main, self._runs.python)
        if found is None:
            self._unclear[f"{shown} cannot be read as Python"] = None
            return
        self._unclear |= dict.fromkeys(f"{shown}: {reason}" for reason in found.unclear if "starts" not in reason)
        self._starts |= dict.fromkeys(f"{shown}: {reason}" for reason in found.unclear if "starts" in reason)
        self._commands += found.commands
        self._changed = self._changed or found.changes_path
        for name in found.certain:
            self._named(name, certain, shown)
        for name in found.possible:
            self._named(name, False, shown)
        self._relative(found, folder, certain)

    def _named(self, name: str, certain: bool, shown: str) -> None:
        if self._import(name, certain) or name.partition(".")[0] in sys.stdlib_module_names:
            return
        if self._changed:
            self._unclear[f"{shown} changes sys.path, and {name.partition('.')[0]} may be anywhere"] = None

    def _relative(self, found: ModuleImports, folder: str, certain: bool) -> None:
        for dots, name in found.relative:
            top = "/".join(folder.split("/")[: 1 - dots or None]) if folder else ""
            for path in self._at(top, name.split("."), certain) if top else ():
                self._file(path, certain, False)

    # ------------------------------------------------------------------------------------------------------ packages

    def _close(self) -> None:
        """Add what the packages import in their turn."""
        for path in _growing(self._certain):
            for name in self._data.get(path, _NOTHING).certain:
                self._import(name, True)
        for name in self._data.get("", _NOTHING).possible if self._certain else ():
            self._import(name, False)
        for path in _growing(self._certain):
            self._perhaps(path)
        for path in _growing(self._possible):
            self._perhaps(path)

    def _perhaps(self, path: str) -> None:
        for name in self._data.get(path, _NOTHING).possible:
            self._import(name, False)
        if any(each.startswith(path) for each in self._calling):
            self._import(_FROM_C, False)

    def _content(self, path: str) -> str | None:
        real = self._view.resolve(path)
        if real is None or not self._view.is_file(real):
            return None
        return self._view.content(real).decode("utf-8", "surrogateescape")


def _growing(paths: Mapping[str, None]) -> Iterator[str]:
    """Yield paths, and those that are added meanwhile."""
    done: set[str] = set()
    while len(done) < len(paths):
        for path in [path for path in paths if path not in done]:
            done.add(path)
            yield path
