"""Which extension modules imports certainly load: those that packages import at their top, in no block. Nothing is run.

A package may import more; that is left out, because it may do without.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from deployer.connected.linker.index import Index
from deployer.connected.linker.job_filesystem import FILE

_EXTENSION = re.compile(r"^(.*?)\.(?:cpython-(\d+)-[^/.]+\.|abi3\.)?so$")


class Extensions:
    """The modules of the packages in an image and in wheels, by their paths in the container."""

    def __init__(self, layers: Sequence[tuple[str, Index]]) -> None:
        self._imports: dict[str, Sequence[str]] = {}
        self._files: set[str] = set()
        self._shared: dict[str, dict[str, str]] = defaultdict(dict)  # a path without its suffix: versions and files
        for target, files in layers:
            self._imports.update({target + path: names for path, names in files.imports.items()})
            for path, entry in files.entries.items():
                if entry.kind == FILE and path.endswith(".py"):
                    self._files.add(target + path)
                elif path.endswith(".so") and entry.facts:
                    folder, name = posixpath.split(target + path)
                    match = _EXTENSION.match(name)
                    if match:
                        self._shared[f"{folder}/{match[1]}"].setdefault(match[2] or "", target + path)

    def loaded(self, names: Sequence[str], folders: Sequence[str], version: str) -> tuple[str, ...]:
        """Return the extension modules that the imports of dotted names load, in the order of their imports.

        Args:
            names: the dotted names; names of anything else than modules are passed over.
            folders: where the Python searches.
            version: its version, "3.11".
        """
        return tuple(_Search(self._imports, self._files, self._shared, folders, version.replace(".", "")).found(names))


class _Search:
    def __init__(
        self,
        imports: Mapping[str, Sequence[str]],
        files: set[str],
        shared: Mapping[str, Mapping[str, str]],
        folders: Sequence[str],
        version: str,
    ) -> None:
        self._imports, self._files, self._shared = imports, files, shared
        self._folders, self._version = folders, version
        self._tops: dict[str, str | None] = {}
        self._done: set[str] = set()

    def found(self, names: Sequence[str]) -> dict[str, None]:
        """Return the files of the extension modules."""
        found: dict[str, None] = {}
        todo = list(names)[::-1]
        while todo:
            name = todo.pop()
            if name in self._done:
                continue
            self._done.add(name)
            if "/" in name:
                path = self._extension(f"{self._top(name.partition('/')[0])}/{name.partition('/')[2]}")
            else:
                parent = name.rpartition(".")[0]
                if parent and parent not in self._done:
                    self._done.discard(name)
                    todo += [name, parent]
                    continue
                path = self._file(name)
            if path and path.endswith(".so"):
                found[path] = None
            todo += reversed(self._imports.get(path or "", ()))
        return found

    def _file(self, name: str) -> str | None:
        """Return the file of a module, as Python finds it in a folder: a package, an extension module, a text."""
        top, *inner = name.split(".")
        first = self._top(top)
        return self._in(posixpath.join(first, *inner)) if first else None

    def _top(self, name: str) -> str | None:
        """Return the path, without suffix, of a module or package that is in one of the folders."""
        if name not in self._tops:
            self._tops[name] = next((f"{each}/{name}" for each in self._folders if self._in(f"{each}/{name}")), None)
        return self._tops[name]

    def _in(self, path: str) -> str | None:
        package, text = f"{path}/__init__.py", f"{path}.py"
        if package in self._files:
            return package
        return self._extension(path) or (text if text in self._files else None)

    def _extension(self, path: str) -> str | None:
        versions = self._shared.get(path, {})
        return versions.get(self._version) or versions.get("")
