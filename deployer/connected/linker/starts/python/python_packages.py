"""The packages that a Python program imports, and whether each import is certain. Nothing is run.

The script and other files outside the folders of packages are parsed. For packages, the index lists the imports.
"""

import functools
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.utils import canonicalize_name

from deployer.connected.linker import import_hooks, package_imports
from deployer.connected.linker.extensions import Extensions, ImportPath
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.package_imports import PACKAGED, PackageImports
from deployer.connected.linker.starts.python import python_imports, python_path, python_syntax
from deployer.connected.linker.starts.python.python_imports import ModuleImports, Required
from deployer.connected.linker.starts.python.python_path import Runs
from deployer.connected.linker.starts.python.python_syntax import Unreadable
from deployer.contract.site.plan import APP

_MAX_FILES, _MAX_BYTES = 500, 8 * 1024 * 1024
#: Packages whose extension modules are compiled against mpi4py import it from C code.
_FROM_C = "mpi4py"
_NOTHING = PackageImports(frozenset(), frozenset())
#: Modules that Python imports automatically if they exist.
_AT_START = ("sitecustomize", "usercustomize")
#: Suffixes of module files.
_MODULE_FILES = (".py", ".pyc", ".so")
#: Archives in which Python finds modules; their contents are not examined.
ARCHIVES = (".egg", ".zip", ".whl", ".pyz")


class Packages(NamedTuple):
    """The packages that a Python program imports, by path in the container.

    Attributes:
        imported: packages that are imported whenever the program runs.
        possible: packages that may be imported.
        unclear: why other packages may be imported as well; empty if none may.
        extensions: extension modules that make the program fail if they are missing, by path.
        missing: missing modules that make it fail.
        unreadable: files that it needs to read but its Python cannot parse.
        commands: the command lines of programs that it may start.
        starts: why it may start other programs as well.
    """

    imported: frozenset[str]
    possible: frozenset[str]
    unclear: str = ""
    extensions: Sequence[str] = ()
    missing: "Sequence[MissingModule]" = ()
    unreadable: Sequence[Unreadable] = ()
    commands: Sequence[tuple[str, ...]] = ()
    starts: Sequence[str] = ()


class MissingModule(NamedTuple):
    """A module that a program needs but its Python does not find.

    Attributes:
        name: its first part.
        place: the file and line of the import.
        elsewhere: where else in the job a module with this name is; empty if nowhere.
        doubt: why Python may find it nevertheless; empty if it does not.
    """

    name: str
    place: str
    elsewhere: str = ""
    doubt: str = ""


class Around(NamedTuple):
    """Facts about the files of the job besides their names.

    Attributes:
        packages: the imports of packages, by path in the container.
        calling: files that call MPI.
        elsewhere: returns the path of any file or folder in the job that may be a module with that name; else nothing.
        extensions: the extension modules of packages; None: unknown.
    """

    packages: Mapping[str, PackageImports]
    calling: Sequence[str] = ()
    elsewhere: Callable[[str], str] = lambda _: ""
    extensions: Extensions | None = None


def find(runs: Runs, view: JobFilesystem, around: Around) -> Packages:
    """Return the packages that a program imports."""
    search = _Search(runs, view, around)
    search.follow()
    extensions, lacking = search.extensions()
    missing = [*search.judged(), *lacking]
    certain, possible = frozenset(search.certain), frozenset(search.possible.keys() - search.certain.keys())
    return Packages(
        certain, possible, "; ".join(search.unclear), extensions, missing, search.unreadable, search.commands,
        list(search.starts),
    )  # fmt: skip


class _Search:
    def __init__(self, runs: Runs, view: JobFilesystem, around: Around) -> None:
        self._around = around
        self._runs = runs
        self._view = view
        self._data = around.packages
        self.unclear: dict[str, None] = {}
        self.starts: dict[str, None] = {}
        self.commands: list[tuple[str, ...]] = []
        self.certain: dict[str, None] = {}
        self.possible: dict[str, None] = {}
        self._done: set[tuple[str, bool]] = set()
        self._bytes = 0
        self._search = python_path.Places(runs, view).found()
        self._path = list(self._search.folders)
        self._changed = False
        self._sure = True  # whether the code being read always runs
        self._missing: list[tuple[MissingModule, Sequence[str]]] = []  # with the packages imported before it
        self.unreadable: list[Unreadable] = []
        self._loaded: list[str] = []
        self._names = functools.cache(view.names)

    def follow(self) -> None:
        """Follow all imports: of Python itself, of .pth files and a launcher, of the script, and of packages."""
        script = self._runs.script
        if self._runs.path is None:
            self.unclear["PYTHONPATH is only known when it runs"] = None
        self._sure = False
        library = [path for name in _AT_START for folder in self._search.library for path in self._at(folder, [name])]
        for path in library:
            self._file(path, True, False)
        for name in (*_AT_START, *self._search.modules, self._runs.module):
            if name:
                self._import(name, True)
        self._sure = True
        if script is None:
            self.unclear["an interactive Python"] = None
        elif script == "":
            self.unclear["the words of the Python are not understood"] = None
        elif script.startswith("-c "):
            # Python searches the current working folder.
            self._changed = self._changed or "chdir" in script
            self._text(script[3:].encode("utf-8", "surrogateescape"), "-c", "", True, True)
        elif script.startswith("-m "):
            self._module(script[3:])
        else:
            self._script(script)
        self._close()

    def extensions(self) -> tuple[Sequence[str], list[MissingModule]]:
        """Return the extension modules that are certainly loaded, and the modules that packages lack.

        Both are empty if modules may be elsewhere.
        """
        known = self._around.extensions
        if known is None or self._changed or self._search.unknown or not self._search.minor:
            return (), []
        loaded, absent = known.loaded(self._loaded, ImportPath(self._path, f"3{self._search.minor}"))
        doubt = "the package that imports it may do without"
        return loaded, [
            MissingModule(name, place, doubt=doubt)
            for name, place in absent.items()
            if not (self._in_library(name) or self._exists_anywhere(name) or self._around.elsewhere(name))
        ]

    # ------------------------------------------------------------------------------------------------------- modules

    def _script(self, script: str) -> None:
        if not script.startswith("/") and self._runs.folder is None:
            self.unclear[f"{script} is in a folder that is only known when it runs"] = None
            return
        path = posixpath.join(self._runs.folder or "/", script)
        real = self._view.file(path) or self._view.file(f"{path}/__main__.py")
        data = self._view.content(real) if real else b""
        if not real or not data:
            self.unclear[f"{script} cannot be read"] = None
            return
        self._path.insert(0, posixpath.dirname(real))
        self._text(data, posixpath.basename(script), posixpath.dirname(real), True, True)

    def _module(self, name: str) -> None:
        top = name.partition(".")[0]
        if not self._import(name, True) and not self._in_library(top):
            if self._exists_anywhere(top):
                self.unclear[f"there is no module {name}"] = None
            else:
                self._missing.append((MissingModule(top, f"-m {name}"), [*self.certain, *self.possible]))
        self._loaded.append(name)
        for file in (f"{name}.__main__", name):
            paths = (list(self._at(folder, file.split("."), False)) for folder in self._path)
            for path in next(filter(None, paths), []):
                self._file(path, True, True)

    def _import(self, name: str, certain: bool) -> bool:
        """Follow the import of a dotted name; return whether such a module exists."""
        parts = name.split(".")
        for folder in self._path:
            top = f"{folder}/{parts[0]}"
            if PACKAGED.match(f"{top}/") or top in self._data:
                if self._exists(top):
                    (self.certain if certain else self.possible)[top] = None
                    return True
                continue
            paths = [path for count in range(1, len(parts) + 1) for path in self._at(folder, parts[:count], certain)]
            for path in paths:
                self._file(path, certain, False)
            if paths:
                return True
        return False

    def _exists(self, top: str) -> bool:
        """Return whether a module of any kind exists at a path."""
        folder, name = posixpath.split(top)
        names = self._names(folder)
        return any(entry == name or (entry.startswith(name + ".") and entry.endswith(_MODULE_FILES)) for entry in names)

    def _at(self, folder: str, parts: Sequence[str], certain: bool = True) -> Iterator[str]:
        """Yield the file of a module below a folder, if it exists; extension modules are added."""
        path = "/".join([folder, *parts])
        for candidate in (f"{path}/__init__.py", f"{path}.py"):
            if self._view.file(candidate):
                yield candidate
                return
        for name in self._names(posixpath.dirname(path)):
            if name.startswith(parts[-1] + ".") and name.endswith(".so"):
                (self.certain if certain else self.possible)[f"{posixpath.dirname(path)}/{name}"] = None

    def _file(self, path: str, certain: bool, main: bool) -> None:
        if (path, certain) in self._done or PACKAGED.match(path):
            return
        self._done.add((path, certain))
        self._text(self._view.content(path), posixpath.basename(path), posixpath.dirname(path), certain, main)

    def _text(self, data: bytes, shown: str, folder: str, certain: bool, main: bool) -> None:
        """Follow the imports of a source text."""
        self._bytes += len(data)
        if self._bytes > _MAX_BYTES or len(self._done) > _MAX_FILES:
            self.unclear["it imports too many files to read"] = None
            return
        imports = self._read(data, shown, main)
        if imports is None:
            return
        for reason in imports.unclear:
            (self.starts if "starts" in reason else self.unclear)[f"{shown}: {reason}"] = None
        self.commands += imports.commands
        self._changed = self._changed or imports.changes_path
        sure = self._sure
        self._loaded += imports.loaded if sure else ()
        self._sure = False
        for dots, name in imports.relative if folder else ():
            top = "/".join(folder.split("/")[: 1 - dots or None])
            for path in self._at(top, name.split("."), certain) if top else ():
                self._file(path, certain, False)
        possible = sorted(imports.possible, key=imports.possible.__getitem__, reverse=True)
        for name in imports.certain:
            required = imports.required.get(name)
            while required and possible and imports.possible[possible[-1]] <= required.until:
                self._named(possible.pop(), False, shown)
            self._sure = sure and required is not None
            self._named(name, certain, shown, required)
            self._sure = False
        for name in possible:
            self._named(name, False, shown)
        for spec, group, entry in imports.entries:
            module = self._entry_point(spec.partition("==")[0], group, entry)
            if module is None:
                self.unclear[f"{shown}: it starts {entry} of {spec}, which is not found"] = None
            else:
                self._named(module, certain, shown)
        self._sure = sure

    def _read(self, data: bytes, shown: str, main: bool) -> ModuleImports | None:
        """Return the imports of a source text; None if it cannot be read."""
        minor = self._search.minor
        try:
            imports = python_imports.of_text(data, main, self._runs.python)
            error = python_syntax.newer(data, minor) if imports and self._sure else None
        except SyntaxError as refusal:
            imports, error = None, refusal if self._sure and python_syntax.refused(data, refusal, minor) else None
        if error:
            self.unreadable.append(Unreadable(f"{shown}:{error.lineno or 1}", error.msg))
            return None
        if imports is None:
            self.unclear[f"{shown} cannot be read as Python"] = None
        return imports

    def _named(self, name: str, certain: bool, shown: str, required: Required | None = None) -> None:
        top, sure = name.partition(".")[0], self._sure
        before = [*self.certain, *self.possible]
        if self._import(name, certain) or self._in_library(top):
            return
        if sure and required and not self._exists_anywhere(top):
            self._missing.append((MissingModule(top, f"{shown}:{required.line}"), before))
        elif self._changed:
            self.unclear[f"{shown} changes sys.path, and {top} may be anywhere"] = None

    def _entry_point(self, distribution: str, group: str, entry: str) -> str | None:
        """Return the module of an installed distribution's entry point; None if it is not found."""
        for folder in self._path:
            for name in self._names(folder):
                stem, _, kind = name.rpartition(".")
                owner = canonicalize_name(stem.partition("-")[0])
                path = self._view.resolve(f"{folder}/{name}/entry_points.txt")
                if kind in ("dist-info", "egg-info") and owner == canonicalize_name(distribution) and path:
                    return package_imports.entry_module(self._view.content(path), group, entry)
        return None

    def _exists_anywhere(self, top: str) -> bool:
        return any(self._exists(f"{folder}/{top}") for folder in self._path)

    def _in_library(self, top: str) -> bool:
        """Return whether a module comes with Python."""
        library = self._search.library
        if any(self._exists(f"{folder}/{top}") for folder in library) or python_path.may_be_built_in(top):
            return True
        if top == "distutils":  # provided by setuptools
            return any(self._exists_anywhere(name) for name in ("setuptools", "_distutils_hack"))
        return not library and top in sys.stdlib_module_names

    def judged(self) -> list[MissingModule]:
        """Return the missing modules, each with the reason why Python may find it nevertheless."""
        judged: dict[MissingModule, None] = {}
        for missing, before in self._missing:
            where = self._around.elsewhere(missing.name)
            # Only app/ is writable for an earlier step.
            may_be_built = not self._runs.alone and where.startswith(f"{APP}/") and not where.endswith(_MODULE_FILES)
            built = [f"an earlier step may make it from {where}"] if may_be_built else []
            changed = ["sys.path is changed"] if self._changed else []
            reasons = [*self._search.unknown, *built, *self._changes("hooks", before), *changed]
            # Code that Python loads at startup adds only the packages that setuptools vendors to the path.
            others = [path for path in before if "/setuptools/" in where or not path.endswith("/_distutils_hack")]
            reasons += [*self._search.doubts, *self._changes("path", others)] if where else []
            if reasons:
                self.unclear[f"{missing.place} imports {missing.name}, which may be anywhere: {reasons[0]}"] = None
            if not reasons or not (built or self._is_module(where)):
                judged[missing._replace(elsewhere=where, doubt=reasons[0] if reasons else "")] = None
        return list(judged)

    def _changes(self, kind: str, before: Sequence[str]) -> list[str]:
        """Return messages on packages in ``before``, or their imports, that change where or how modules are found."""
        what = {"hooks": "changes how modules are found", "path": "changes sys.path"}[kind]
        known = import_hooks.HARMLESS if kind == "hooks" else ()
        reached = dict.fromkeys(["", *before] if before else [])  # "": all plugins
        for path in _growing(reached):
            for name in self._data.get(path, _NOTHING).possible:
                packages = (f"{folder}/{name}" for folder in self._path)
                reached |= dict.fromkeys([package for package in packages if package in self._data][:1])
        named = [posixpath.basename(path) for path in reached if kind in self._data.get(path, _NOTHING).changes]
        return [f"{name} {what}" for name in named if name not in known]

    def _is_module(self, path: str) -> bool:
        """Return whether a path with a module's name may be one: a file, a folder with such files, or an archive."""
        is_folder = path and self._view.resolve(path) and not self._view.file(path)
        names = self._names(path) if is_folder else [path]
        return any(name.endswith((*_MODULE_FILES, *ARCHIVES)) for name in names)

    # ------------------------------------------------------------------------------------------------------ packages

    def _close(self) -> None:
        """Add the transitive imports of the packages."""
        for path in _growing(self.certain):
            for name in self._data.get(path, _NOTHING).certain:
                self._import(name, True)
        for name in self._data.get("", _NOTHING).possible if self.certain else ():
            self._import(name, False)
        for path in (path for paths in (self.certain, self.possible) for path in _growing(paths)):
            for name in self._data.get(path, _NOTHING).possible:
                self._import(name, False)
            if any(file.startswith(path) for file in self._around.calling):
                self._import(_FROM_C, False)


def _growing(paths: Mapping[str, None]) -> Iterator[str]:
    """Yield paths, including those added during iteration."""
    done: set[str] = set()
    while len(done) < len(paths):
        for path in [path for path in paths if path not in done]:
            done.add(path)
            yield path
