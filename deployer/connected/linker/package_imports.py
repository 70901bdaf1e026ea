"""Which packages the packages of an image or wheel import, as far as their texts name them. Nothing is run.

It is read once for each image, of thousands of files, so that the texts are searched, not parsed. What a package may
import is too much rather than too little; what it imports for certain is only what its ``__init__.py`` does at its top.
"""

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

#: A file of an installed package: the folder of packages, and the package's own name.
PACKAGED = re.compile(r"^(.*/(?:site|dist)-packages)/([^/]+)(.*)$")
#: Larger files are not searched, in bytes.
MAX_TEXT = 1024 * 1024

_STRINGS = re.compile(
    rb'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|' + rb"'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL
)
_AT_TOP = re.compile(rb"^(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_ANYWHERE = re.compile(rb"(?:^|;)[ \t]*(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_BY_NAME = re.compile(rb"(?:import_module|__import__)\(\s*[\"']([A-Za-z_]\w*)")
_NAME = re.compile(rb"^\s*([A-Za-z_]\w*)")
#: What changes where Python searches for modules, or how.
_CHANGES = {
    "path": re.compile(rb"\bsys\s*\.\s*path\s*(?:\.\s*(?:insert|append|extend)\b|\[|\+?=(?!=))|\baddsitedir\b"),
    "hooks": re.compile(rb"\b(?:meta_path|path_hooks)\b"),
}
_SECTION = re.compile(r"^\s*\[([^\]]+)\]\s*$")
_ENTRY = re.compile(r"^[^=\[]+=\s*([A-Za-z_]\w*)")
#: Groups of entry points that no running program reads.
_NOT_LOADED = re.compile(
    r"console_scripts|gui_scripts|pytest|distutils|setuptools|sphinx|babel|flake8|jupyter|nbconvert"
)


class PackageImports(NamedTuple):
    """What a top-level package imports, by the first part of the names.

    Attributes:
        certain: what it imports whenever it is imported.
        possible: what any file of it imports.
        changes: "path" if a file of it changes ``sys.path``, "hooks" if one changes how modules are found.
    """

    certain: frozenset[str]
    possible: frozenset[str]
    changes: frozenset[str] = frozenset()


class Collector:
    """Collects the imports of packages file by file."""

    def __init__(self) -> None:
        self._certain: dict[str, set[str]] = {}
        self._possible: dict[str, set[str]] = {}
        self._changes: dict[str, set[str]] = {}
        self._plugins: set[str] = set()

    def add(self, top: str, name: str, inner: str, read: Callable[[], bytes]) -> None:
        """Add a file of a package: ``top``/``name`` is the package, ``inner`` the rest of the path."""
        if name.endswith((".dist-info", ".egg-info")) and inner == "/entry_points.txt":
            self._plugins |= _plugins(read().decode("utf-8", "replace"))
        if not (inner or name).endswith(".py"):
            return
        text = read()
        path = f"{top}/{name.removesuffix('.py')}"
        possible = self._possible.setdefault(path, set())
        possible |= _found(_ANYWHERE, text) | {match.decode() for match in _BY_NAME.findall(text)}
        self._changes.setdefault(path, set()).update(name for name, how in _CHANGES.items() if how.search(text))
        if inner in ("", "/__init__.py"):
            self._certain.setdefault(path, set()).update(_found(_AT_TOP, _STRINGS.sub(b"", text)))

    def packages(self) -> dict[str, PackageImports]:
        """Return the imports of each package by its path, and those of plugins by the empty path."""
        found = {
            path: PackageImports(
                frozenset(self._certain.get(path, ())),
                frozenset(names - {path.rpartition("/")[2]}),
                frozenset(self._changes[path]),
            )
            for path, names in self._possible.items()
        }
        return {**found, "": PackageImports(frozenset(), frozenset(self._plugins))}


def _found(pattern: re.Pattern[bytes], text: bytes) -> set[str]:
    found = set()
    for one, several in pattern.findall(text):
        for name in [one] if one else several.split(b","):
            match = _NAME.match(name)
            if match:
                found.add(match[1].decode())
    return found - sys.stdlib_module_names


def entry_module(text: bytes, group: str, entry: str) -> str | None:
    """Return the module that an entry_points.txt names for an entry; None if it has none of that name."""
    within = ""
    for line in text.decode("utf-8", "replace").splitlines():
        section = _SECTION.match(line)
        within = section[1].strip() if section else within
        name, _, value = line.partition("=")
        if not section and within == group and name.strip() == entry:
            return value.partition(":")[0].strip() or None
    return None


def _plugins(text: str) -> set[str]:
    found, wanted = set(), False
    for line in text.splitlines()[:10_000]:
        section, entry = _SECTION.match(line), _ENTRY.match(line)
        if section:
            wanted = not _NOT_LOADED.search(section[1])
        elif entry and wanted:
            found.add(entry[1])
    return found
