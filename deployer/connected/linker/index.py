"""The facts about a bundle's image and wheels that the dry link needs, read in one pass and cached.

Nothing is unpacked. If a large file spans several frames, only the frames with its headers are read.
"""

import base64
import dataclasses
import functools
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from deployer.connected.ground import frames, progress
from deployer.connected.ground.caches import CachedFacts
from deployer.connected.linker import package_imports
from deployer.connected.linker.code import fatbin, offload_bundles
from deployer.connected.linker.code.code_facts import CodeFacts
from deployer.connected.linker.job_filesystem import FILE, FOLDER, LINK, SMALL, folders_of
from deployer.connected.linker.package_imports import PACKAGED, PackageImports
from deployer.contract.base import json_records, records, tarformat
from deployer.contract.base.tarformat import HARDLINK, SYMLINK, TarEntry
from deployer.contract.bundle.manifest import APP_PREFIX, BIN, LIB, Manifest, Segment
from deployer.contract.bundle.sealed_file import layer_member, member_segments
from deployer.contract.elf import dynamic
from deployer.contract.elf.dynamic import BadElf, Facts
from deployer.contract.elf.elf import ReadAt

SCHEMA = "link-index"
#: Increase it when different facts are read from a file; older indexes are then rebuilt.
VERSION = 15

_MAGIC = b"\x7fELF"
#: The start of a script, and the number of bytes of its first line that the kernel reads.
_SCRIPT, _LINE = b"#!", 256
#: Suffixes of files that jobs run or source, and of files that state where Python finds packages.
_TEXTS = (".sh", ".bash", ".env", ".py", ".pth", "pyvenv.cfg", "/entry_points.txt")
#: Files of Python's standard library are not read; files of its packages are searched, but not kept.
_OWN_LIBRARY = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?/(?!(?:.*/)?(?:site|user)customize\.py$)")
#: Files in an image that are larger, in bytes, are not read as text.
MAX_TEXT = 1024 * 1024
#: Files whose text is always needed: the loader's cache.
_WANTED = ("/etc/ld.so.cache",)
_FRAMES_AT_HAND = 3
_KINDS = {tarformat.FOLDER: FOLDER, tarformat.FILE: FILE, SYMLINK: LINK, HARDLINK: FILE}


class Bundle(Protocol):
    """A readable bundle: one on disk (``system.trust.verify.Verification``), or one that is being written."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""

    def read(self, segment: Segment) -> bytes:
        """Return a segment's bytes."""


class Indexed(NamedTuple):
    """The facts about one path.

    They are: its kind; the target of a link, or the first line of a script after ``#!``; the facts of an ELF file, or
    why it is malformed; whether it is executable; the targets of its GPU kernels (``fatbin``, ``offload_bundles``).
    """

    kind: str
    target: str = ""
    facts: Facts | None = None
    bad: str = ""
    executable: bool = False
    kernels: Sequence[str] = ()


class ContentPlace(NamedTuple):
    """Where a file's content is in the layer: its first frame, the offset in that frame, and the size in bytes."""

    frame: int
    offset: int
    size: int


@dataclasses.dataclass
class Index:
    """The files of an image, as the dry link needs them (``job_filesystem.Files``).

    Attributes:
        entries: the facts about each path.
        contents: the content of files that is kept.
        programs: the names of programs that wheels provide.
        places: where the content of small files and of ELF files is.
        packages: Python packages by path, and their imports; the empty path has the imports of plugins.
        imports: the top-level imports of files in packages.
        read: returns the content of a small file.
        code: the instruction sets of ELF files.
    """

    entries: Mapping[str, Indexed]
    contents: Mapping[str, bytes]
    programs: Collection[str] = ()
    places: Mapping[str, ContentPlace] = dataclasses.field(default_factory=dict)
    packages: Mapping[str, PackageImports] = dataclasses.field(default_factory=dict)
    imports: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    read: Callable[[ContentPlace], bytes] | None = None
    code: CodeFacts | None = None

    def kind(self, path: str) -> str | None:
        entry = self.entries.get(path)
        return entry.kind if entry else FOLDER if path == "/" else None

    def target(self, path: str) -> str:
        return self.entries[path].target

    def facts(self, path: str) -> Facts | None:
        entry = self.entries[path]
        if entry.bad:
            raise BadElf(entry.bad)
        return entry.facts

    def content(self, path: str) -> bytes:
        """Return a small file's content, or a script's first line if its content is missing. Raises IntegrityError."""
        place, entry = self.places.get(path), self.entries.get(path)
        if place and self.read and not (entry and entry.facts):
            return self.read(place)
        script = _SCRIPT + os.fsencode(entry.target) if entry and entry.kind == FILE and entry.target else b""
        return self.contents.get(path, script)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        top = path.rstrip("/") + "/"
        inside = (entry[len(top) :] for entry in self.entries if entry.startswith(top))
        return [name for name in inside if name and "/" not in name]

    def record(self) -> json_records.Record:
        """Return the index as a JSON record."""
        return {
            "entries": {
                path: [value.record() if isinstance(value, Facts) else value for value in entry]
                for path, entry in self.entries.items()
            },
            "contents": {path: base64.b64encode(data).decode() for path, data in self.contents.items()},
            "programs": sorted(self.programs),
            "places": self.places,
            "imports": self.imports,
            "packages": {path: list(map(sorted, imports)) for path, imports in self.packages.items()},
        }


def of_image(bundle: Bundle, cache: Path | None = None, facts: "LayerFacts | None" = None) -> Index:
    """Return the index of a bundle's image, using the folder ``cache`` if given.

    Each frame is verified as it is read. Raises IntegrityError.

    Args:
        facts: the facts that were read while the layer was made.
    """
    manifest = bundle.manifest
    key = manifest.image.layer_digest.rpartition(":")[2]
    return _of_frames(bundle, member_segments(manifest, layer_member(manifest)), key, cache, facts or LayerFacts())


def of_overlay(bundle: Bundle, member: str, cache: Path | None = None) -> Index:
    """Return the index of a bundle's overlay, with paths below ``lib``. Raises IntegrityError."""
    segments = member_segments(bundle.manifest, member)
    key = hashlib.sha256("".join(segment.sha256 for segment in segments).encode()).hexdigest()
    return _of_frames(bundle, segments, key, cache, _OverlayFacts())


def _of_frames(bundle: Bundle, segments: list[Segment], key: str, cache: Path | None, facts: "LayerFacts") -> Index:
    frame = functools.lru_cache(_FRAMES_AT_HAND)(frames.reader(bundle.manifest.codec, bundle.read))
    kept = CachedFacts(_file(cache, key), SCHEMA, VERSION)
    index = kept.load(_read_index)
    if index is None:
        index = facts.index(frame, segments)
        kept.save(index.record())
    places = index.places

    def elf(path: str) -> ReadAt | None:
        return frames.across(frame, segments, *places[path]) if path in places else None

    def content(place: ContentPlace) -> bytes:
        return frames.across(frame, segments, *place)(0, place.size)

    return dataclasses.replace(index, read=content, code=CodeFacts(elf, _file(cache, f"{key}.code")))


def of_app(bundle: Bundle) -> Index:
    """Return the index of a bundle's app folder. Raises IntegrityError."""
    entries: dict[str, Indexed] = {}
    contents: dict[str, bytes] = {}
    elves: dict[str, ReadAt] = {}
    for member in bundle.manifest.members:
        if member.name.startswith(APP_PREFIX):
            data = b"".join(map(bundle.read, member_segments(bundle.manifest, member.name)))
            executable = bool(member.mode & 0o111)
            path = "/" + member.name[len(APP_PREFIX) :]
            read_at = _at(data, 0, len(data))
            entries[path] = _indexed(read_at)._replace(executable=executable)
            if entries[path].facts:
                elves[path] = read_at
            elif len(data) <= SMALL:
                contents[path] = data
    code = CodeFacts(elves.get, None)
    return Index(_with_folders(entries), contents, code=code)


def of_site(files: Mapping[str, Facts], links: Mapping[str, str]) -> Index:
    """Return the index of captured files of a site, with facts only, and of its links, by absolute path."""
    entries = {path: Indexed(LINK, target) for path, target in links.items()}
    return Index(_with_folders(entries | {path: Indexed(FILE, facts=facts) for path, facts in files.items()}), {})


def _with_folders(entries: Mapping[str, Indexed]) -> Mapping[str, Indexed]:
    return {**dict.fromkeys(folders_of(entries), Indexed(FOLDER)), **entries}


def _at(data: bytes, start: int, length: int) -> ReadAt:
    return lambda offset, size: data[start + offset : start + min(offset + size, length)]


def _file(cache: Path | None, name: str) -> Path | None:
    return cache / f"{name}.json" if cache else None


def _read_entry(
    name: str, kind: str, target: str, facts: Any, bad: str, executable: bool, kernels: Sequence[str]
) -> Indexed:
    elf = records.read(Facts, json_records.Fields(facts, name, own=True)) if facts else None
    return Indexed(kind, target, elf, bad, executable, tuple(kernels))


def _read_index(fields: json_records.Fields) -> Index:
    return Index(
        {name: _read_entry(name, *entry) for name, entry in fields.child("entries").record.items()},
        {name: base64.b64decode(text) for name, text in fields.mapping("contents").items()},
        fields.texts("programs"),
        {name: ContentPlace(*map(int, numbers)) for name, numbers in fields.child("places").record.items()},
        {name: PackageImports(*map(frozenset, sets)) for name, sets in fields.child("packages").record.items()},
        {name: list(map(str, modules)) for name, modules in fields.child("imports").record.items()},
    )


# ------------------------------------------------------------------------------------------------ reading the layer


class LayerFacts:
    """Reads the facts about a layer frame by frame, perhaps while the layer is made."""

    def __init__(self) -> None:
        self._entries: dict[str, Indexed] = {}
        self._contents: dict[str, bytes] = {}
        self._programs: set[str] = set()
        self._places: dict[str, ContentPlace] = {}
        self._packages = package_imports.Collector()
        self._later: list[tuple[TarEntry, ContentPlace]] = []

    def see(self, number: int, data: bytes) -> None:
        """Read a frame, given its number and decompressed bytes. All frames except REST must be given, in order."""
        position = 0
        while position < len(data) and data[position : position + tarformat.BLOCK] != _EMPTY:
            entry, position = tarformat.decode(data, position)
            place = ContentPlace(number, position, entry.size)
            position += entry.size
            is_cut = position > len(data)
            self._add(entry, place, _at(b"" if is_cut else data, place.offset, entry.size))
            if is_cut or entry.kind == HARDLINK:  # its file may need other frames
                self._later.append((entry, place))
            position += tarformat.padding(entry.size)

    def index(self, frame: Callable[[Segment], bytes], segments: list[Segment]) -> Index:
        """Return the index of a layer with these frames. Frames are read if they are needed or were not given."""
        seen = bool(self._entries)
        with progress.bar("link", sum(segment.size for segment in segments)) as advance:
            for number, segment in enumerate(segments):
                advance(segment.size)
                if not seen and segment.holds != tarformat.REST:
                    self.see(number, frame(segment))
                for entry, place in self._later:
                    self._add(entry, place, frames.across(frame, segments, *place))
                self._later = []
        packages = self._packages
        return Index(self._entries, self._contents, self._programs, self._places, packages.packages(), packages.modules)

    def _add(self, entry: TarEntry, place: ContentPlace, read_at: ReadAt) -> None:
        """Add an entry. If ``read_at`` reads nothing, the entry is added again later."""
        path = "/" + os.fsdecode(entry.path)
        target = "/" + os.fsdecode(entry.target)
        if entry.kind == HARDLINK:
            self._entries[path] = self._entries[target]
            if target in self._places:
                self._places[path] = self._places[target]
        elif entry.kind == tarformat.FILE:
            found = self._entries[path] = _indexed(read_at)._replace(executable=bool(entry.mode & 0o111))
            match = PACKAGED.match(path) if entry.size <= package_imports.MAX_TEXT else None
            if match:
                self._packages.add(match[1], match[2], match[3], functools.partial(read_at, 0, entry.size))
            if path in _WANTED:
                self._contents[path] = read_at(0, min(entry.size, SMALL))
            elif found.facts or (entry.size <= MAX_TEXT and _may_be_read(path, found)):
                self._places[path] = place
        else:
            self._entries[path] = Indexed(_KINDS[entry.kind], target[1:])


class _OverlayFacts(LayerFacts):
    """Reads the facts about the files of wheels, with paths below ``lib``, and the names of their programs."""

    def _add(self, entry: TarEntry, place: ContentPlace, read_at: ReadAt) -> None:
        folder, _, inner = os.fsdecode(entry.path).partition("/")
        if folder == BIN and entry.kind == tarformat.FILE and "/" not in inner:
            self._programs.add(inner)
        if folder != LIB or not inner:
            return
        is_file = entry.kind != tarformat.FOLDER
        found = self._entries[f"/{inner}"] = _indexed(read_at) if is_file else Indexed(FOLDER)
        if found.facts:
            self._places[f"/{inner}"] = place
        name, slash, rest = inner.partition("/")
        if is_file and entry.size <= package_imports.MAX_TEXT:
            self._packages.add("", name, slash + rest, functools.partial(read_at, 0, entry.size))


def _may_be_read(path: str, entry: Indexed) -> bool:
    """Return whether jobs may run or source a file, so that its content is needed."""
    if entry.facts or entry.bad:
        return False
    name = posixpath.basename(path)
    if name.endswith(".py") and _OWN_LIBRARY.search(path):
        return entry.executable
    return (
        entry.executable or bool(entry.target) or path.endswith(_TEXTS) or ("." not in name and "/share/" not in path)
    )


def _indexed(read_at: ReadAt) -> Indexed:
    start = read_at(0, len(_MAGIC))
    if start.startswith(_SCRIPT):
        line = read_at(0, _LINE)[len(_SCRIPT) :].partition(b"\n")[0]
        return Indexed(FILE, line.decode("utf-8", "surrogateescape").strip(" \t"))
    if start != _MAGIC:
        return Indexed(FILE)
    try:
        kernels = (*fatbin.kernels(read_at), *offload_bundles.kernels(read_at))
        return Indexed(FILE, facts=dynamic.facts(read_at, narrow=True), kernels=kernels)
    except BadElf as error:
        return Indexed(FILE, bad=str(error))


_EMPTY = bytes(tarformat.BLOCK)
