"""Extension modules that imports certainly load: those imported at a package's top level, outside any block.

Nothing is run. Other imports of a package are ignored, because the package may work without them.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from deployer.connected.linker.index import Index
from deployer.connected.linker.job_filesystem import FILE

_EXTENSION = re.compile(r"^(.*?)\.(?:cpython-(\d+)-[^/.]+\.|abi3\.)?so$")


class ImportPath(NamedTuple):
    """Where a Python searches for modules, and its version without a dot ("311")."""

    folders: Sequence[str]
    version: str


class Extensions:
    """The modules of packages in an image and in wheels, by path in the container."""

    def __init__(self, layers: Sequence[tuple[str, Index]]) -> None:
        self._imports: dict[str, Sequence[str]] = {}
        self._texts: set[str] = set()
        self._shared: dict[str, dict[str, str]] = defaultdict(dict)  # path without suffix: versions and files
        for target, files in layers:
            self._imports.update({target + path: names for path, names in files.imports.items()})
            for path, entry in files.entries.items():
                if entry.kind == FILE and path.endswith(".py"):
                    self._texts.add(target + path)
                elif path.endswith(".so") and entry.facts:
                    folder, name = posixpath.split(target + path)
                    match = _EXTENSION.match(name)
                    if match:
                        self._shared[f"{folder}/{match[1]}"].setdefault(match[2] or "", target + path)

    def loaded(self, names: Sequence[str], where: ImportPath) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the extension modules that imports of dotted names load, in import order, and the missing packages.

        The missing packages map to the files of the packages that import them. Names that are not modules are ignored.
        """
        loaded: dict[str, None] = {}
        absent: dict[str, str] = {}
        done: set[str] = set()
        todo = [(name, "") for name in names][::-1]
        while todo:
            name, by = todo.pop()
            parent = name.rpartition(".")[0]
            if parent and parent not in done:
                todo += [(name, by), (parent, by)]
            elif name not in done:
                done.add(name)
                path = self._file(name, where) or ""
                if by and not path and not parent and "/" not in name:
                    absent[name] = by
                if path.endswith(".so"):
                    loaded[path] = None
                todo += [(imported, path) for imported in reversed(self._imports.get(path, ()))]
        return tuple(loaded), absent

    def _file(self, name: str, where: ImportPath) -> str | None:
        """Return the file of a module; for "NAME/NAME", the extension module in a folder that itself is a module."""
        top, *inner = re.split(r"[./]", name)
        folders = (f"{folder}/{top}" for folder in where.folders)
        first = next((path for path in folders if self._in(path, where)), None)
        if first is None:
            return None
        path = posixpath.join(first, *inner)
        return self._extension(path, where) if "/" in name else self._in(path, where)

    def _in(self, path: str, where: ImportPath) -> str | None:
        """Return the file that Python loads for a module in a folder: a package, an extension module or source text."""
        package, text = f"{path}/__init__.py", f"{path}.py"
        if package in self._texts:
            return package
        return self._extension(path, where) or (text if text in self._texts else None)

    def _extension(self, path: str, where: ImportPath) -> str | None:
        versions = self._shared.get(path, {})
        return versions.get(where.version) or versions.get("")
