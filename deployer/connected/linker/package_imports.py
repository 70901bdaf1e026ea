"""The packages that packages of an image or wheel import, as far as their source text names them. Nothing is run.

Thousands of files are read once for each image, so their text is searched, not parsed. The result overestimates what a
package may import. Only the top-level imports of its ``__init__.py`` count as certain.
"""

import posixpath
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
# Python finds an expression with a fixed beginning ten times faster. So a text begins with an additional line break.
#: An import outside any block: the module and the names taken from it, or modules.
_AT_TOP = re.compile(rb"\n(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n;]+)|import[ \t]+([^\n;]+))")
_ANYWHERE = [
    re.compile(before + rb"[ \t]*(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+([^\n#;]+))") for before in (b"\n", b";")
]
_BY_NAME = re.compile(rb"(?:import_module|__import__)\(\s*[\"']([A-Za-z_]\w*)")
_NAME = re.compile(rb"^\s*([A-Za-z_]\w*)")
_DOTTED = re.compile(rb"^[\s(]*([A-Za-z_][\w.]*)")
#: Code that changes where Python searches for modules.
_PATH = (
    re.compile(rb"sys(?<!\wsys)\s*\.\s*path\s*(?:\.\s*(?:insert|append|extend)\b|\[|\+?=(?!=))"),
    re.compile(rb"addsitedir(?<!\waddsitedir)\b"),
)
_SECTION = re.compile(r"^\s*\[([^\]]+)\]\s*$")
_MODULE = re.compile(r"[A-Za-z_]\w*")
_MAX_ENTRIES = 10_000  # lines of an entry_points.txt
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
        self._packages: dict[str, tuple[set[str], set[str], set[str]]] = {}
        self._plugins: set[str] = set()
        #: Top-level imports of each file, in order: dotted names, and extension modules by path.
        self.modules: dict[str, Sequence[str]] = {}

    def add(self, top: str, name: str, inner: str, read: Callable[[], bytes]) -> None:
        """Add a file of a package: ``top``/``name`` is the package, ``inner`` is the rest of the path."""
        if name.endswith((".dist-info", ".egg-info")) and inner == "/entry_points.txt":
            entries = _entry_points(read().decode("utf-8", "replace"))
            modules = (_MODULE.match(module) for group, _, module in entries if not _NOT_LOADED.search(group))
            self._plugins |= {module[0] for module in modules if module}
        if not (inner or name).endswith(".py"):
            return
        text = b"\n" + read()
        path = f"{top}/{name.removesuffix('.py')}"
        certain, possible, changes = self._packages.setdefault(path, (set(), set(), set()))
        found = (match for search in _ANYWHERE for match in search.findall(text))
        anywhere = (part for one, several in found for part in ([one] if one else several.split(b",")))
        by_name = _BY_NAME.findall(text) if b"import_module" in text or b"__import__" in text else []
        names = {match[1].decode() for match in map(_NAME.match, anywhere) if match} - sys.stdlib_module_names
        possible |= names | {match.decode() for match in by_name}
        changes |= {"path"} if any(search.search(text) for search in _PATH) else set()
        changes |= {"hooks"} if import_hooks.adds_hook(name + inner, text) else set()
        own = f"{path.rpartition('/')[2]}{inner}".removesuffix(".py").split("/")
        imported = list(dict.fromkeys(_at_top(text, own[:-1]))) if _AT_TOP.search(text) else []
        if inner == "/__init__.py" and own[0].encode() in by_name:
            imported.append(f"{own[0]}/{own[0]}")  # OpenCV replaces its own extension module
        if imported:
            self.modules[f"{top}/{name}{inner}"] = imported
        if inner in ("", "/__init__.py"):
            certain |= {module.partition(".")[0] for module in imported} - {own[0]}

    def packages(self) -> dict[str, PackageImports]:
        """Return the imports of each package by path; the empty path has those of plugins."""
        packages = {
            path: PackageImports(
                frozenset(certain), frozenset(possible - {posixpath.basename(path)}), frozenset(changes)
            )
            for path, (certain, possible, changes) in self._packages.items()
        }
        return {**packages, "": PackageImports(frozenset(), frozenset(self._plugins))}


def _at_top(text: bytes, package: Sequence[str]) -> Iterator[str]:
    """Yield the dotted names that a file always imports, in order, without modules of Python's library."""
    for source, taken, several in _AT_TOP.findall(_NO_CODE.sub(b"", text)):
        dots = len(source) - len(source.lstrip(b"."))
        if dots > len(package):
            continue
        above = [*package[: len(package) + 1 - dots], source[dots:].decode()] if dots else [source.decode()]
        module = ".".join(filter(None, above))
        names = [match[1].decode() for match in map(_DOTTED.match, (taken or several).split(b",")) if match]
        imported = [module, *(f"{module}.{name}" for name in names)] if source else names
        yield from (name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names)


def entry_module(text: bytes, group: str, entry: str) -> str | None:
    """Return the module that an entry_points.txt lists for an entry; None if it lists no such entry."""
    entries = _entry_points(text.decode("utf-8", "replace"))
    return next((module for *where, module in entries if where == [group, entry]), "") or None


def _entry_points(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the group, name and module of each entry in an entry_points.txt."""
    group = ""
    for line in text.splitlines()[:_MAX_ENTRIES]:
        section, (name, equals, value) = _SECTION.match(line), line.partition("=")
        if section:
            group = section[1].strip()
        elif equals and group:
            yield group, name.strip(), value.partition(":")[0].strip()
