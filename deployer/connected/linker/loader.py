"""A dry run of the dynamic loader: the files that a program would map, in order, and what would stop it.

It follows glibc: ld.so(8), "Description"; elf/dl-load.c (_dl_map_object), elf/dl-deps.c (breadth first),
elf/dl-version.c, sysdeps/generic/dl-cache.h. It does not follow preloads, auditing, or the folders for CPU capabilities
(``glibc-hwcaps``, and before glibc 2.37 ``atomics``, ``tls`` and others), whose libraries have the same sonames as the
plain ones.
"""

import copy
import posixpath
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.elf.dynamic import BadElf, Dynamic, Facts

_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEAD = struct.Struct("<20sII20x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")
#: Flags of a cache entry for a glibc library, by machine: x86-64, AArch64, i386.
_CACHE_FLAGS = {62: 0x0303, 183: 0x0A03, 3: 0x0003}

#: The folders that the distributions' loaders search last: Debian's, then those of Red Hat and SUSE.
_DEFAULTS = {
    62: ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"),
    183: ("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"),
    3: ("/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu", "/lib", "/usr/lib", "/lib32", "/usr/lib32"),
}
_PLATFORM = {62: "x86_64", 183: "aarch64", 3: "i686"}
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM))")


#: The loader rule that finds a library: a file's search path, LD_LIBRARY_PATH, the image's cache or default folders,
#: or no search at all.
RPATH, LIBRARY_PATH, RUNPATH, SYSTEM, BY_PATH = "DT_RPATH", "LD_LIBRARY_PATH", "DT_RUNPATH", "system", "path"


class Place(NamedTuple):
    """The path of a library, the rule that found it, and the file with the search path, if the rule uses one."""

    path: str
    rule: str
    owner: "Object | None" = None


class Object(NamedTuple):
    """A mapped file.

    Attributes:
        path: its link-free path.
        found: the path by which it was opened.
        parent: the file that needed it first; None for a program and for files opened directly.
        facts: the facts read from the file.
        place: how the loader found it for its parent; None if it was opened directly.
    """

    path: str
    found: str
    parent: "Object | None"
    facts: Facts
    place: Place | None = None

    @property
    def first(self) -> "Object":
        """The file that brought this one into the process: the program, or a file opened later."""
        return self if self.parent is None else self.parent.first

    @property
    def soname(self) -> str:
        """The name by which files that need it request it; empty if the file states none."""
        return self.facts.dynamic.soname or ""

    @property
    def dynamic(self) -> Dynamic:
        """The part of the facts that the loader itself reads."""
        return self.facts.dynamic


class Missing(NamedTuple):
    """A library that was not found: its name, the file that needs it, and the opened file that led to it."""

    name: str
    needed_by: str
    opened: str


class WrongVersion(NamedTuple):
    """A version that the library at ``path`` lacks: the loader fails with "version ... not found".

    ``opened`` is the opened file that led to it.
    """

    version: str
    path: str
    needed_by: str
    opened: str


class Broken(NamedTuple):
    """A file that should be loaded but cannot be read as ELF."""

    path: str
    reason: str


class Loader:
    """A simulated process. ``library_path`` is LD_LIBRARY_PATH; ``machine`` is the ABI number (62: x86-64)."""

    def __init__(self, view: JobFilesystem, library_path: Sequence[str] = (), machine: int = 62) -> None:
        self.view = view
        self.machine = machine
        self.objects: list[Object] = []
        self.missing: list[Missing] = []
        self.broken: list[Broken] = []
        self.foreign: dict[str, int] = {}  # skipped files for other machines, with the ABI number
        self._library_path = [path for path in library_path if path]
        self._names: dict[str, Object] = {}  # by soname, and by each requested name
        self._files: dict[tuple[int, str], Object] = {}
        self._facts: dict[str, Facts | None] = {}
        self._cached = _read_cache(view, machine)
        self._program: Object | None = None

    def start(self, program: str) -> Object | None:
        """Map a program and everything that it needs; return it, or None if it is not a program for this machine."""
        self._program = self.dlopen(program)
        return self._program

    def dlopen(self, path: str, by: Object | None = None) -> Object | None:
        """Map a library opened by path: by the process, as Python opens an extension module, or by the file ``by``."""
        first = self._map(path, by)
        todo = [first] if first else []
        for opened in todo:  # which grows
            for name in opened.dynamic.needed:
                if name in self._names:
                    continue
                place = self._search(name, opened)
                mapped = self._map(place.path, opened, place) if place else None
                if first and (place is None or mapped is None):
                    self.missing.append(Missing(name, opened.path, first.path))
                elif place and mapped:
                    self._names.setdefault(name, mapped)
                    if mapped.parent is opened and mapped.found == place.path:
                        todo.append(mapped)
        return first

    def attempt(self, path: str) -> list[str]:
        """Return the sonames and versions that would be missing if a library were opened. Maps nothing."""
        trial = self._trial()
        opened = trial.dlopen(path)
        if opened is None:
            return [posixpath.basename(path)]
        lacking: dict[str, None] = {}
        closure = [opened]
        for loaded in closure:  # which grows; files mapped earlier count as well
            for name in loaded.dynamic.needed:
                mapped = trial.find(name)
                if mapped is None:
                    lacking[name] = None
                elif mapped not in closure:
                    closure.append(mapped)
        paths = {loaded.path for loaded in closure}
        wrong = (failure.version for failure in trial.wrong_versions() if failure.needed_by in paths)
        return list(dict.fromkeys([*lacking, *wrong]))

    def lacking(self, paths: Sequence[str]) -> Sequence[Missing]:
        """Return what would be missing if some libraries were opened one after another. Maps nothing."""
        trial = self._trial()
        for path in paths:
            trial.dlopen(path)
        return trial.missing

    def _trial(self) -> "Loader":
        trial = copy.copy(self)
        trial.objects, trial.missing, trial.broken = list(self.objects), [], []
        trial._names, trial._files = dict(self._names), dict(self._files)
        return trial

    def find(self, name: str) -> Object | None:
        """Return the mapped file with this soname."""
        return self._names.get(name)

    def would_find(self, name: str, by: Object) -> str | None:
        """Return the path at which ``by`` would find a library that it opens by name; None if not found."""
        place = self._search(name, by)
        return self.view.resolve(place.path) if place and self._usable(place.path) else None

    def wrong_versions(self) -> Iterator[WrongVersion]:
        """Yield the failures of the loader's version check."""
        for loaded in self.objects:
            for library, versions in loaded.dynamic.versions.items():
                provider = self._names.get(library)
                if provider is None or not provider.dynamic.defines:
                    continue  # missing (reported elsewhere), or without versions (only a warning)
                for version in versions:
                    if version not in provider.dynamic.defines:
                        yield WrongVersion(version, provider.path, loaded.path, loaded.first.path)

    def without(self, names: re.Pattern[str]) -> "Loader":
        """Return the part of the result that holds even if other libraries with such names are found instead."""

        def is_one(loaded: Object) -> bool:
            return any(names.match(posixpath.basename(above.found)) for above in self._above(loaded))

        part = copy.copy(self)
        part.objects = [loaded for loaded in self.objects if not is_one(loaded)]
        certain = {loaded.path for loaded in part.objects}
        part.missing = [lost for lost in self.missing if lost.needed_by in certain and not names.match(lost.name)]
        part.broken = [broken for broken in self.broken if not names.match(posixpath.basename(broken.path))]
        part.foreign = {path: abi for path, abi in self.foreign.items() if not names.match(posixpath.basename(path))}
        part._names = {name: loaded for name, loaded in self._names.items() if not names.match(name)}
        return part

    # --- mapping ---

    def _map(self, path: str, parent: Object | None, place: Place | None = None) -> Object | None:
        """Map a file once, and return its object."""
        real = self.view.resolve(path)
        facts = self._read(real) if real else None
        if real is None or facts is None:
            return None
        identity = self.view.identity(real)
        known = self._files.get(identity)
        if known is None:
            known = self._files[identity] = Object(real, path, parent, facts, place)
            self.objects.append(known)
            self._names.setdefault(facts.dynamic.soname or posixpath.basename(path), known)
        return known

    def _read(self, path: str) -> Facts | None:
        if path not in self._facts:
            facts = None
            try:
                facts = self.view.facts(path) if self.view.file(path) else None
            except BadElf as error:
                self.broken.append(Broken(path, str(error)))
            if facts and facts.dynamic.machine != self.machine:
                self.foreign[path] = facts.dynamic.machine
                facts = None
            self._facts[path] = facts
        return self._facts[path]

    # --- searching ---

    def _search(self, name: str, by: Object) -> Place | None:
        """Return the path at which the loader would find ``name`` for ``by``."""
        if "/" in name:
            return Place(self._expanded(name, by), BY_PATH)
        candidates = [folder._replace(path=posixpath.join(folder.path, name)) for folder in self._folders(by)]
        candidates += [Place(self._cached[name], SYSTEM)] if name in self._cached else []
        candidates += [Place(f"{folder}/{name}", SYSTEM) for folder in _DEFAULTS.get(self.machine, ())]
        return next((candidate for candidate in candidates if self._usable(candidate.path)), None)

    def _usable(self, path: str) -> bool:
        """Return whether the path is a library for this machine; the loader skips all others."""
        real = self.view.resolve(path)
        return real is not None and self._read(real) is not None

    def _folders(self, by: Object) -> Iterator[Place]:
        for above in self._above(by) if not by.dynamic.runpath else ():  # DT_RPATH also applies to dependencies
            for path in above.dynamic.rpath if not above.dynamic.runpath else ():
                yield Place(self._expanded(path, above), RPATH, above)
        yield from (Place(path, LIBRARY_PATH) for path in self._library_path)
        yield from (Place(self._expanded(path, by), RUNPATH, by) for path in by.dynamic.runpath)

    def _above(self, by: Object) -> Iterator[Object]:
        """Yield a file, its chain of parents, and the program, which also counts for files opened directly."""
        above: Object | None = by
        while above is not None:
            yield above
            if above is self._program:
                return
            above = above.parent
        if self._program is not None:
            yield self._program

    def _expanded(self, path: str, owner: Object) -> str:
        values = {
            "ORIGIN": posixpath.dirname(owner.found if owner.parent else owner.path),
            "LIB": _DEFAULTS.get(self.machine, ("/lib",))[0][1:],
            "PLATFORM": _PLATFORM.get(self.machine, ""),
        }
        return _TOKEN.sub(lambda match: values[match[1] or match[2]], path)


def _read_cache(view: JobFilesystem, machine: int) -> dict[str, str]:
    """Return the image's /etc/ld.so.cache: soname to path. Empty if it is absent or has an older format."""
    data = view.content(_CACHE)
    start = data.find(_CACHE_MAGIC)  # data in the old format may precede it
    if start < 0 or len(data) < start + _CACHE_HEAD.size:
        return {}
    data = data[start:]
    _, count, _ = _CACHE_HEAD.unpack_from(data)
    count = min(count, (len(data) - _CACHE_HEAD.size) // _CACHE_ENTRY.size)
    end = _CACHE_HEAD.size + count * _CACHE_ENTRY.size
    paths: dict[str, str] = {}
    for flags, key, value, _, capabilities in _CACHE_ENTRY.iter_unpack(data[_CACHE_HEAD.size : end]):
        if flags == _CACHE_FLAGS.get(machine) and not capabilities:
            paths.setdefault(_text(data, key), _text(data, value))
    return paths


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start : end if end >= 0 else start].decode("utf-8", "surrogateescape")
