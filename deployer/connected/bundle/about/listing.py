"""List all files in a bundle's layer in one pass."""

import hashlib
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from deployer.connected.rootfs.entries import shown
from deployer.contract.base import json_records, tarformat
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK, TarEntry
from deployer.system.codec import decompressor
from deployer.system.trust.verify import Verification

_TYPES = {FOLDER: stat.S_IFDIR, FILE: stat.S_IFREG, SYMLINK: stat.S_IFLNK, HARDLINK: stat.S_IFREG}
_NAMES = {FOLDER: "folder", FILE: "file", SYMLINK: "symlink", HARDLINK: "hardlink"}


class ListedEntry(NamedTuple):
    """An entry of a layer.

    Attributes:
        entry: the entry.
        sha256: for a file, the digest of its content in hexadecimal, otherwise empty.
        head: the first bytes of its content, up to the requested number.
    """

    entry: TarEntry
    sha256: str
    head: bytes = b""

    def line(self) -> str:
        """Return mode, size in bytes, SHA-256, path, and link target."""
        entry = self.entry
        arrow = {SYMLINK: " -> ", HARDLINK: " = /"}.get(entry.kind, "")
        mode = stat.filemode(_TYPES[entry.kind] | entry.mode)
        return f"{mode} {entry.size:>12} {self.sha256 or '-':<64} /{shown(entry.path)}{arrow}{shown(entry.target)}"

    def record(self) -> json_records.Record:
        """Return the same fields for ``--json``. Paths have the same escapes."""
        entry = self.entry
        return {
            "kind": _NAMES[entry.kind],
            "mode": f"{entry.mode:04o}",
            "size": entry.size,
            "sha256": self.sha256 or None,
            "path": "/" + shown(entry.path),
            "target": shown(entry.target) or None,
        }


def files_of(bundle: Verification, wanted: Callable[[TarEntry], int] = lambda _: 0) -> Iterator[ListedEntry]:
    """Yield the entries of a bundle's layer in order, each with the requested first bytes of its file.

    Each frame is verified when it is read.

    Raises:
        IntegrityError: the layer is damaged.
    """
    decompress = decompressor(str(bundle.manifest.codec["name"]))
    left, digest, begun, head = 0, hashlib.sha256(), b"", 0
    entry: TarEntry | None = None
    for segment in bundle.layer_segments():
        data = bytes(decompress(bundle.read(segment), segment.raw or 0))
        position = 0
        while position < len(data):
            if entry is None:
                if data.startswith(b"\0" * tarformat.BLOCK, position):
                    return
                entry, position = tarformat.decode(data, position)
                left, digest, begun, head = entry.size, hashlib.sha256(), b"", wanted(entry)
            part = memoryview(data)[position : position + left]
            digest.update(part)
            begun += part[: max(0, head - len(begun))]
            position += len(part)
            left -= len(part)
            if left == 0:
                yield ListedEntry(entry, digest.hexdigest() if entry.kind == FILE else "", begun)
                position += tarformat.padding(entry.size)
                entry = None
    raise IntegrityError("the layer is cut off")
