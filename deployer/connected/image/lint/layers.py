"""Rule layers.leftover: bytes in the built image that no job needs."""

from collections.abc import Iterator

from deployer.connected.image.lint import finding
from deployer.connected.linker.commands import ListedTree
from deployer.connected.rootfs.entries import shown
from deployer.contract.rules.findings import Finding

#: The minimum to report.
MIN_BYTES = 1024 * 1024

#: Folders that no job needs.
_LEFT = (
    b"var/lib/apt/lists", b"var/cache/apt", b"var/cache/dnf", b"var/cache/yum", b"root/.cache", b"root/.conda/pkgs",
    b"opt/conda/pkgs", b"tmp", b"var/tmp",
)  # fmt: skip
_SHOWN = 4


def leftover(tree: ListedTree, image: str) -> Iterator[Finding]:
    """Yield layers.leftover for the root filesystem of an image."""
    folders = tuple(folder + b"/" for folder in _LEFT)
    sizes = {entry.path: entry.size for entry in tree.entries() if entry.path.startswith(folders)}
    total = sum(sizes.values())
    if total >= MIN_BYTES:
        yield finding("layers.leftover", image, size=f"{total / 1e6:.1f} MB", paths=_largest(sizes))


def _largest(sizes: dict[bytes, int]) -> str:
    """Return the largest folders (at most two names deep) and files, with their sizes."""
    groups: dict[bytes, int] = {}
    for path, size in sizes.items():
        group = b"/".join(path.split(b"/")[:3])
        groups[group] = groups.get(group, 0) + size
    largest = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    words = [f"/{shown(path)} {size / 1e6:.1f} MB" for path, size in largest[:_SHOWN]]
    return ", ".join(words) + (", ..." if len(largest) > _SHOWN else "")
