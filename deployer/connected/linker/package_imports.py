"""The packages that packages of an image or wheel import, as far as their source text names them. Nothing is run.

Thousands of files are read once for each image, so their text is searched, not parsed. The result overestimates what a
package may import. Only the top-level imports of its ``__init__.py`` count as certain.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from deployer.connected.linker import import_hooks

#: A file of an installed package: the folder of packages, the package's name, and the rest of the path.
PACKAGED = re.compile(r"^(.*/(?:site|dist)-packages)/([^/]+)(.*)$")
#: Larger files, in bytes, are not searched.
MAX_TEXT = 1024 * 1024

#: Comments and string literals, which may contain lines that look like code.
_NO_CODE = re.compile(
    rb'#[^\n]*|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|' + rb"'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|"
    rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|' + rb"'[^'\\\n]*(?:\\.[^'\\\n]*)*'", re.DOTALL
)  # fmt: skip
#: An import outside any block: the module and the names taken from it, or modules.
_AT_TOP = re.compile(
    rb"^(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n;]+)|import[ \t]+([^\n;]+))", re.MULTILINE
)
_ANYWHERE = re.compile(rb"(?:^|;)[ \t]*(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_BY_NAME = re.compile(rb"(?:import_module|__import__)\(\s*[\"']([A-Za-z_]\w*)")
_NAME = re.compile(rb"^\s*([A-Za-z_]\w*)")
_DOTTED = re.compile(rb"^[\s(]*([A-Za-z_][\w.]*)")
#: Code that changes where Python searches for modules.
_PATH = re.compile(rb"\bsys\s*\.\s*path\s*(?:\.\s*(?:insert|append|extend)\b|\[|\+?=(?!=))|\baddsitedir\b")
_SECTION = re.compile(r"^\s*\[([^\]]+)\]\s*$")
_ENTRY = re.compile(r"^[^=\[]+=\s*([A-Za-z_]\w*)")
#: Groups of entry points that no running program loads.
_NOT_LOADED = re.compile(
    r"console_scripts|gui_scripts|pytest|distutils|setuptools|sphinx|babel|flake8|jupyter|nbconvert"
)


class PackageImports(NamedTuple):
    """The imports of a top-level package, by the first part of each name.

    Attributes:
        certain: imports made whenever the package is imported.
        possible: imports made by any of its files.
        changes: "path" if one of its files changes ``sys.path``, "hooks" if one changes how modules are found.
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
        #: Top-level imports of each file, in order: dotted names, and extension modules by path.
        self.modules: dict[str, Sequence[str]] = {}

    def add(self, top: str, name: str, inner: str, read: Callable[[], bytes]) -> None:
        """Add a file of a package: ``top``/``name`` is the package, ``inner`` is the rest of the path."""
        if name.endswith((".dist-info", ".egg-info")) and inner == "/entry_points.txt":
            self._plugins |= _plugins(read().decode("utf-8", "replace"))
        if not (inner or name).endswith(".py"):
            return
        text = read()
        path = f"{top}/{name.removesuffix('.py')}"
        possible = self._possible.setdefault(path, set())
        possible |= _found(_ANYWHERE, text) | {match.decode() for match in _BY_NAME.findall(text)}
        changes = {"path": _PATH.search(text), "hooks": import_hooks.adds_hook(name + inner, text)}
        self._changes.setdefault(path, set()).update(name for name, found in changes.items() if found)
        own = f"{path.rpartition('/')[2]}{inner}".removesuffix(".py").split("/")
        imported = list(dict.fromkeys(_at_top(text, own[:-1]))) if _AT_TOP.search(text) else []
        if inner == "/__init__.py" and own[0].encode() in _BY_NAME.findall(text):
            imported.append(f"{own[0]}/{own[0]}")  # OpenCV replaces its own extension module
        if imported:
            self.modules[f"{top}/{name}{inner}"] = imported
        if inner in ("", "/__init__.py"):
            tops = {each.partition(".")[0] for each in imported}
            self._certain.setdefault(path, set()).update(tops - {own[0]})

    def packages(self) -> dict[str, PackageImports]:
        """Return the imports of each package by path; the empty path has those of plugins."""
        found = {
            path: PackageImports(
                frozenset(self._certain.get(path, ())),
                frozenset(names - {path.rpartition("/")[2]}),
                frozenset(self._changes[path]),
            )
            for path, names in self._possible.items()
        }
        return {**found, "": PackageImports(frozenset(), frozenset(self._plugins))}


def _at_top(text: bytes, package: Sequence[str]) -> Iterator[str]:
    """Yield the dotted names that a file always imports, in order, without modules of Python's library."""
    for source, taken, several in _AT_TOP.findall(_NO_CODE.sub(b"", text)):
        dots = len(source) - len(source.lstrip(b"."))
        if dots > len(package):
            continue
        above = [*package[: len(package) + 1 - dots], source[dots:].decode()] if dots else [source.decode()]
        module = ".".join(filter(None, above))
        names = [match[1].decode() for match in map(_DOTTED.match, (taken or several).split(b",")) if match]
        found = [module, *(f"{module}.{name}" for name in names)] if source else names
        yield from (name for name in found if name.partition(".")[0] not in sys.stdlib_module_names)


def _found(pattern: re.Pattern[bytes], text: bytes) -> set[str]:
    found = set()
    for one, several in pattern.findall(text):
        for name in [one] if one else several.split(b","):
            match = _NAME.match(name)
            if match:
                found.add(match[1].decode())
    return found - sys.stdlib_module_names


def entry_module(text: bytes, group: str, entry: str) -> str | None:
    """Return the module that an entry_points.txt lists for an entry; None if it lists no such entry."""
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
