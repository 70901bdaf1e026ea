"""Overlays: wheels, unpacked and cut into frames, which a site installs in the same way as the layer.

Each wheel has its own frames, so a new version of one changes only its own. They are kept in the cache by everything
that they depend on, because unpacking and compressing take longer than the rest of most packs.
"""

import functools
import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import installer

from deployer.connected.bundle.layer import layer
from deployer.connected.bundle.layer.codecs import Codec
from deployer.connected.bundle.layer.compress import Press, Pressed
from deployer.connected.bundle.layer.framecache import CachedFrame
from deployer.connected.bundle.seal import BundleWriter
from deployer.connected.ground import caches
from deployer.connected.ground.caches import CachedFacts
from deployer.connected.rootfs import wheels
from deployer.connected.rootfs.entries import OnDisk
from deployer.contract.base import records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import FILE, FOLDER, FOLDERS, LINKS, TarEntry
from deployer.contract.bundle.manifest import ENGINE, FRAME, KIT_PREFIX, OURS, Segment, WheelOverlay
from deployer.system import files

#: Increase it when the same wheel gives other frames.
_VERSION = 1
_FRAMES = ".frames"


def by_name(carried: Mapping[str, Path]) -> dict[str, list[Path]]:
    """Return the wheels among a bundle's files by the names of their overlays."""
    overlays: dict[str, list[Path]] = {}
    for member, path in sorted(carried.items()):
        if member.endswith(".whl"):
            folder = member.removeprefix(OURS[0]).rpartition("/")[0]
            overlays.setdefault(ENGINE if member.startswith(KIT_PREFIX) else folder, []).append(path)
    return overlays


def write(
    writer: BundleWriter, name: str, wheelhouse: Sequence[Path], python: str | None, codec: Codec
) -> WheelOverlay:
    """Write the overlay of some wheels as a member.

    Args:
        python: the Python that runs their scripts; None: PATH decides.

    Raises:
        IntegrityError: a wheel is not valid, or the cache is damaged.
        UsageError: two wheels have the same file with different contents.
    """
    frames: list[tuple[Path, Segment]] = []
    entries = size = 0
    known: set[str] = set()
    for path, new in wheels.added(wheelhouse):
        folders = wheels.folders_of(new) - known
        known |= folders
        depends = (installer.__version__, files.sha256_file(str(path)), sorted(folders), sorted(new), python)
        key = caches.key(*depends, codec.record())
        kept = caches.OVERLAYS.folder / f"{key}{_FRAMES}"
        table = CachedFacts(kept.with_suffix(".json"), "overlay", _VERSION)
        part = table.load(functools.partial(records.read, _Part)) if kept.is_file() else None
        if part is None:
            part = _make(path, kept, sorted(folders), sorted(new), python or wheels.ANY_PYTHON, codec)
            table.save(records.plain(part))
        frames += [(kept, frame) for frame in part.frames]
        entries, size = entries + part.entries, size + part.bytes
    end = codec.compress(layer.END)
    last = Pressed(LINKS, len(layer.END), CachedFrame(end, hashlib.sha256(end).hexdigest()))
    frames.sort(key=lambda item: item[1].holds != FOLDERS)  # all folders come first
    overlay = WheelOverlay(name, [path.name for path in wheelhouse], entries, size)
    whole = sum(frame.size for _, frame in frames) + len(end)
    writer.frames(overlay.member, whole, itertools.chain(_read(frames), [last]))
    caches.OVERLAYS.trim()
    return overlay


class _Part(NamedTuple):
    """The frames of one wheel, with their places in its file in the cache. The numbers are as in ``WheelOverlay``."""

    frames: list[Segment]
    entries: int
    bytes: int


def _make(wheel: Path, kept: Path, folders: Sequence[str], names: Sequence[str], python: str, codec: Codec) -> _Part:
    """Unpack a wheel and write its frames into the file ``kept``."""
    frames = []
    with files.errors_named(f"write {kept}"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=caches.UNFINISHED, dir=kept.parent) as root,
            files.published(str(kept)) as stream,
        ):
            with wheels.opened(wheel) as source:
                source.unpack(Path(root), python)
            tree = _Tree(root, folders, names)
            pieces = (piece for piece in layer.pieces(tree, layer.LARGE, layer.LARGE) if piece.holds != LINKS)
            for holds, raw, (data, sha256) in Press(codec).frames(pieces):
                frames.append(Segment(FRAME, stream.tell(), len(data), sha256, raw, holds))
                stream.write(data)
    sizes = [file.size for file in tree.files] + [file.size for file in tree.files if file.path.endswith(b".py")]
    return _Part(frames, len(folders) + len(sizes), sum(sizes))


class _Tree:
    """The files of an unpacked wheel, in normal form."""

    def __init__(self, root: str, folders: Sequence[str], names: Sequence[str]) -> None:
        self._root = root
        self._folders = [TarEntry(FOLDER, os.fsencode(name), 0o755) for name in folders]
        states = ((name, os.stat(os.path.join(root, name))) for name in names)
        self.files = [
            TarEntry(FILE, os.fsencode(name), 0o755 if state.st_mode & 0o100 else 0o644, state.st_size)
            for name, state in states
        ]

    def entries(self) -> Iterator[TarEntry]:
        return itertools.chain(self._folders, self.files)

    def content(self, entry: TarEntry) -> OnDisk:
        return OnDisk(os.path.join(os.fsencode(self._root), entry.path), entry.size)


def _read(frames: Sequence[tuple[Path, Segment]]) -> Iterator[Pressed]:
    for path, of_one in itertools.groupby(frames, lambda item: item[0]):
        with open(path, "rb") as stream:
            for _, frame in of_one:
                stream.seek(frame.offset)
                data = stream.read(frame.size)
                if hashlib.sha256(data).hexdigest() != frame.sha256:
                    raise IntegrityError(f"{path} is damaged", f"remove {path}, then pack again")
                yield Pressed(frame.holds or "", frame.raw or 0, CachedFrame(data, frame.sha256))
