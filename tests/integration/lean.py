"""python -m tests.integration.lean [IMAGE...]: what images can do without, rule by rule.

Without arguments: all images of the engine. A row has the megabytes of the whole image; of what `pack` leaves out
always (caches) and with `lean`; and of debug sections, which it keeps. All are compressed at `pack`'s level.
"""

import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path

import zstandard
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from deployer.connected.bundle import sources
from deployer.connected.ground import engine
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import unused
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.tarformat import FILE

RULES = list(unused.rules(Rootfs(), lean=True).groupindex)
ALL, COPIES, DEBUG = "all", "copies_linked", "debug sections"


class Compressed:
    """The size of a tar of some contents, compressed at the level of `pack`."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._writer = zstandard.ZstdCompressor(level=3, threads=2).stream_writer(self._out, closefd=False)
        self._size = 0

    def add(self, path: str, content: bytes) -> None:
        header = tarfile.TarInfo(path)
        header.size = len(content)
        self._writer.write(header.tobuf() + content + bytes(-len(content) % tarfile.BLOCKSIZE))
        self._size += self._out.tell()
        self._out.seek(0)
        self._out.truncate()

    def megabytes(self) -> float:
        self._writer.close()
        return (self._size + self._out.tell()) / 1e6


def debug_sections(content: bytes) -> bytes:
    try:
        sections = ELFFile(io.BytesIO(content)).iter_sections()
        return b"".join(section.data() for section in sections if section.name.startswith((".debug_", ".zdebug_")))
    except (ELFError, OSError, ValueError):
        return b""


def megabytes(image: str, scratch: Scratch) -> list[float]:
    root = sources.read_image(image, scratch).root
    rules = unused.rules(root, lean=True)
    nodes = {id(node): (path, node) for path, node in root.walk() if node.kind == FILE}
    kept = [node for path, node in nodes.values() if not rules.match(path)]
    copies = {nodes[id(copy)][0] for copy, _ in unused.copies(kept)}
    sizes = {rule: Compressed() for rule in [ALL, *RULES, COPIES, DEBUG]}
    for path, node in nodes.values():  # each file once, however many names it has
        content, shown = node.data.read(0, node.data.size) if node.data else b"", os.fsdecode(path)
        sizes[ALL].add(shown, content)
        if match := rules.match(path):
            sizes[str(match.lastgroup)].add(shown, content)
        elif path in copies:
            sizes[COPIES].add(shown, content)
        elif content.startswith(b"\x7fELF") and (debug := debug_sections(content)):
            sizes[DEBUG].add(shown, debug)
    return [size.megabytes() for size in sizes.values()]


def main() -> None:
    names = sys.argv[1:] or sorted({tag for image in engine.connect().images.list() for tag in image.tags})
    print("image", ALL, *RULES, COPIES, DEBUG, sep="\t")
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        for name in names:
            print(name, *(f"{size:.1f}" for size in megabytes(name, scratch)), sep="\t", flush=True)


if __name__ == "__main__":
    main()
