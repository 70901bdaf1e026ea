"""Rules layers.*: wasted bytes in the layers of the built image."""

import os
import posixpath
from collections.abc import Iterable, Iterator

from deployer.connected.image.lint import finding
from deployer.connected.rootfs.entries import FileEntries, shown
from deployer.contract.base.tarformat import FILE, FOLDER
from deployer.contract.rules.findings import Finding

#: The minimum to report. Each installation of a package rewrites the list of packages, which wastes some bytes.
MIN_BYTES = 1024 * 1024

#: Folders that no job needs.
_LEFT = (
    b"var/lib/apt/lists", b"var/cache/apt", b"var/cache/dnf", b"var/cache/yum", b"root/.cache", b"root/.conda/pkgs",
    b"opt/conda/pkgs", b"tmp", b"var/tmp",
)  # fmt: skip
_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_SHOWN = 4


def wasted(layers: Iterable[FileEntries], image: str) -> Iterator[Finding]:
    """Yield layers.hidden and layers.leftover for the layers of an image, the lowest first."""
    held: dict[bytes, int] = {}  # the files visible so far: path to size
    hidden: dict[bytes, int] = {}
    for layer in layers:
        _apply(layer, held, hidden)
    left = {path: size for path, size in held.items() if path.startswith(tuple(folder + b"/" for folder in _LEFT))}
    for code, sizes in (("layers.hidden", hidden), ("layers.leftover", left)):
        total = sum(sizes.values())
        if total >= MIN_BYTES:
            yield finding(code, image, size=f"{total / 1e6:.1f} MB", paths=_largest(sizes))


def _apply(layer: FileEntries, held: dict[bytes, int], hidden: dict[bytes, int]) -> None:
    """Move the files hidden by a layer from ``held`` to ``hidden``, then add the layer's files."""
    gone: list[bytes] = []
    brought: dict[bytes, int] = {}
    replaced: set[bytes] = set()
    for member in layer:
        path = posixpath.normpath(member.path).lstrip(b"/")
        folder, name = os.path.split(path)
        if name == _OPAQUE:
            gone.append(folder)
        elif name.startswith(_WHITEOUT):
            gone.append(os.path.join(folder, name[len(_WHITEOUT) :]))
        elif member.kind != FOLDER:
            replaced.add(path)
            if member.kind == FILE and member.data is not None:
                brought[path] = member.data.size
    below = tuple(path + b"/" if path else b"" for path in gone)  # everything is below the root
    exact = replaced | set(gone)
    for path in [path for path in held if path in exact or path.startswith(below)]:
        hidden[path] = hidden.get(path, 0) + held.pop(path)
    held.update(brought)


def _largest(sizes: dict[bytes, int]) -> str:
    """Return the largest folders (at most two names deep) and files, with their sizes."""
    groups: dict[bytes, int] = {}
    for path, size in sizes.items():
        group = b"/".join(path.split(b"/")[:3])
        groups[group] = groups.get(group, 0) + size
    largest = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    words = [f"/{shown(path)} {size / 1e6:.1f} MB" for path, size in largest[:_SHOWN]]
    return ", ".join(words) + (", ..." if len(largest) > _SHOWN else "")
