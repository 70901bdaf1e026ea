"""The parts of a bundle that a site lacks, as one stream or as files in a folder."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from deployer.connected.bundle.pyz import make_pyz
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import delta, sealed_file
from deployer.contract.bundle.delta import Ending, HeldSegments, Part, Range
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.bundle.sealed_file import Seal
from deployer.system import age, files, process

#: A list of all files with their SHA-256 for ``sha256sum -c``. Written last.
SUMS = "SHA256SUMS"
README = "README.txt"
#: Bytes of one encrypted file. The site decrypts all of it before it uses any, and may ask for a passphrase each time.
ENCRYPTED_FILE = 256 * 1024**2
#: The largest usual block of a medium's file system: exFAT on large sticks.
_BLOCK = 128 * 1024


class Shipment(NamedTuple):
    """The parts of a bundle to send to a site.

    Attributes:
        ending: the end of the bundle, including its manifest. It is always sent.
        data: the compressed ending.
        parts: the parts that the site lacks.
    """

    ending: Ending
    data: bytes
    parts: list[Part]

    @property
    def size(self) -> int:
        """Return the number of bytes to send."""
        return len(self.data) + sum(part.size for part in self.parts)


def shipment_for(stream: IO[bytes], seal: Seal, manifest: Manifest, held: HeldSegments) -> Shipment:
    """Return the parts of an open bundle to send to a site that has the segments ``held``."""
    ending = Ending(seal.offset, seal.end + sealed_file.TAIL - seal.offset)
    data = delta.compress(b"".join(_read(stream, ending)))
    return Shipment(ending, data, delta.cut(delta.missing(manifest.segments, held)))


def split(what: Shipment, room: int) -> list[Shipment]:
    """Divide a shipment, in order, into several whose parts need at most ``room`` bytes on a disk, or have one part."""
    pieces: list[list[Part]] = [[]]
    left = room
    for part in what.parts:
        if on_disk(part) > left and pieces[-1]:
            pieces.append([])
            left = room
        pieces[-1].append(part)
        left -= on_disk(part)
    return [what._replace(parts=parts) for parts in pieces]


def on_disk(part: Part) -> int:
    """Return the bytes that a part needs at most on a medium: whole blocks, with what encryption adds (0.03 %)."""
    return ((part.size + part.size // 1024) // _BLOCK + 1) * _BLOCK


def new_folder(folder: Path) -> None:
    """Make a folder. Raises UsageError if it is not empty."""
    with files.errors_named(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            hint = "give a new or empty folder: parts of different bundles must not mix"
            raise UsageError(f"{folder} is not empty", hint)


def as_stream(stream: IO[bytes], what: Shipment, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the shipment in the format of the site's ``take``, which installs it.

    ``advance`` is called with the number of bytes in each piece.
    """
    yield b"%s %d\n" % (what.ending.name.encode(), len(what.data))
    yield what.data
    advance(len(what.data))
    for part in what.parts:
        yield b"%s %d\n" % (part.name.encode(), part.size)
        for piece in _read(stream, part):
            yield piece
            advance(len(piece))
    yield delta.END


def as_files(
    stream: IO[bytes],
    what: Shipment,
    folder: Path,
    advance: Callable[[int], None],
    more: Mapping[str, bytes] = {},
    encrypt: Sequence[str] = (),
) -> list[Path]:
    """Write the shipment and the deployer.pyz that receives it into a new or empty folder. Return the files.

    The written files are removed after an error.

    Args:
        more: other files, by their names. Those that end with ``delta.ENCRYPTED`` are encrypted.
        encrypt: a command that encrypts. Then several parts are one stream, in a file of up to 256 MiB.

    Raises:
        UsageError: the folder is not empty.
        SpaceError: not enough space for the files.
    """
    new_folder(folder)
    written: list[Path] = []
    sums = ""

    def write(name: str, pieces: Iterator[bytes]) -> str:
        digest = hashlib.sha256()
        written.append(folder / name)
        with files.published(str(folder / name)) as target:
            for piece in pieces:
                digest.update(piece)
                target.write(piece)
                advance(len(piece))
        return f"{digest.hexdigest()}  {name}\n"

    def write_encrypted(name: str, content: bytes) -> str:
        written.append(folder / name)
        with files.published(str(folder / name)) as target:
            process.run(encrypt, age.SECONDS, stdin=content, stdout=target)
        return f"{files.sha256_file(str(folder / name))}  {name}\n"

    try:
        sums += write("deployer.pyz", iter([make_pyz()]))
        for name, content in more.items():
            sums += write_encrypted(name, content) if name.endswith(delta.ENCRYPTED) else write(name, iter([content]))
        if encrypt:
            for number, few in enumerate(split(what, ENCRYPTED_FILE), 1):
                content = b"".join(as_stream(stream, few, advance))
                sums += write_encrypted(f"{number:04}{delta.ENCRYPTED}", content)
        else:
            sums += write(what.ending.name, iter([what.data]))
            for part in what.parts:
                sums += write(part.name, _read(stream, part))
        write(SUMS, iter([sums.encode()]))
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def _read(stream: IO[bytes], place: Range) -> Iterator[bytes]:
    stream.seek(place.offset)
    left = place.size
    while left:
        piece = stream.read(min(left, files.CHUNK))
        if not piece:
            raise UsageError("the bundle was cut while it was sent", "start again with the complete file")
        left -= len(piece)
        yield piece
