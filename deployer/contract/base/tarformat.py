"""The only tar dialect that deployer writes and reads: GNU tar with everything variable held constant.

A header is a pure function of an entry, and only such headers are accepted. This normal form cannot express devices,
sparse files, global headers, odd numbers or owner names, so they are refused.

Format: GNU tar manual, "Basic Tar Format"; POSIX.1-1988 ustar for the common fields.
"""

import re
import zlib
from typing import NamedTuple, Optional, Sequence, Tuple, Union

from deployer.contract.base.errors import IntegrityError

BLOCK = 512

#: The modification time of everything: 1980-01-01, the earliest that zip files can hold, so that tools using zip agree.
MTIME = 315532800

FOLDER, FILE, SYMLINK, HARDLINK = b"5", b"0", b"2", b"1"
_LONG_NAME, _LONG_LINK = b"L", b"K"

# The content of a layer's frame: whole entries of one section, in this order, or the rest of the file that the previous
# frame began. No link exists while files are written, so no path can lead out of the root. A frame, or a FILES frame
# with its RESTs, can be unpacked without the others.
FOLDERS, FILES, REST, LINKS = "folders", "files", "rest", "links"
HOLDINGS = (FOLDERS, FILES, REST, LINKS)
SECTIONS = {FOLDER: FOLDERS, FILE: FILES, HARDLINK: LINKS, SYMLINK: LINKS}

_MAGIC = b"ustar  \0"
_MAX_OCTAL = 8**11 - 1
_MAX_NAME = 4096  # Linux's PATH_MAX: a longer name cannot be created
#: Limits for paths on a site: Linux's NAME_MAX; PATH_MAX, less space for the path of the root folder; and the depth of
#: nested folders, which recursive programs must be able to traverse.
MAX_NAME, MAX_PATH, MAX_DEPTH = 255, 3072, 256
_BASE_256 = 0x80

#: Every block that ``_block`` writes, with its variable parts as groups: name, mode, size, checksum, kind, target.
_FORM = re.compile(
    b"(.{100})(0000[0-7]{3})\\0(?:0000000\\0){2}([0-7]{11}\\0|\\x80.{11})%011o\\0"
    b"([0-7]{6})\\0 (.)(.{100})ustar  \\0\\0{247}" % MTIME,
    re.DOTALL,
)
#: The sum of a block's bytes outside these groups; the checksum's own field counts as eight blanks.
_SUM_FIXED = 14 * 0x30 + sum(b"%011o" % MTIME) + 8 * 0x20 + sum(_MAGIC)
#: Name, mode and target of the block that precedes a long name or target.
_LONG_FIELDS = (b"././@LongLink".ljust(100, b"\0"), b"0000000", bytes(100))

Buffer = Union[bytes, bytearray, memoryview]


class TarEntry(NamedTuple):
    """A file, folder or link in a tar.

    Attributes:
        kind: FILE, FOLDER, or a kind of link.
        path: relative; the bytes of the file system.
        mode: the low nine permission bits.
        size: bytes of a file; 0 for all others.
        target: the target of a link, else empty.
    """

    kind: bytes
    path: bytes
    mode: int
    size: int = 0
    target: bytes = b""


def padding(size: int) -> int:
    """Return the number of zeros that follow ``size`` bytes of content."""
    return -size % BLOCK


def encode(entry: TarEntry) -> bytes:
    """Return the header of an entry: 512 bytes, or more if a name or target is longer than 100 bytes."""
    name = entry.path + b"/" if entry.kind == FOLDER else entry.path
    long_target = _long(_LONG_LINK, entry.target) if len(entry.target) > 100 else b""
    long_name = _long(_LONG_NAME, name) if len(name) > 100 else b""
    block = _block(name[:100], entry.mode, entry.size, entry.kind, entry.target[:100])
    return long_target + long_name + block


def header_size(entry: TarEntry) -> int:
    """Return the size of ``encode(entry)`` without encoding."""
    name = len(entry.path) + (entry.kind == FOLDER)
    longer = [length + 1 for length in (name, len(entry.target)) if length > 100]
    return BLOCK + sum(BLOCK + length + padding(length) for length in longer)


def decode(data: Buffer, position: int) -> Tuple[TarEntry, int]:
    """Read the header at ``position``; return its entry and the position of its content.

    It accepts exactly what ``encode`` writes: ``_FORM`` or the checks here require the only form of each field, and
    property tests compare the result with ``encode`` itself.

    Raises:
        IntegrityError: ``encode`` would not have written this header, or the path is not plain and relative.
    """
    long_name = long_target = None
    while True:
        field, mode, size_field, checksum, kind, target_field = _block_fields(data, position)
        position += BLOCK
        size = _size(size_field)
        if int(checksum, 8) != _SUM_FIXED + _sum(b"".join((field, mode, size_field, kind, target_field))):
            raise IntegrityError("a tar header does not have its checksum: {!r}".format(field.rstrip(b"\0")))
        if kind not in (_LONG_NAME, _LONG_LINK):
            break
        # encode() writes a long target, then a long name, and each once.
        if (field, mode, target_field) != _LONG_FIELDS or long_name or (long_target and kind == _LONG_LINK):
            raise IntegrityError("a tar header is not in the normal form: {!r}".format(field.rstrip(b"\0")))
        text, position = _long_text(data, position, size)
        if kind == _LONG_NAME:
            long_name = text
        else:
            long_target = text
    if kind not in SECTIONS:
        raise IntegrityError(f"a tar header is of kind {kind!r}, which is not folder, file or link")
    name, target = _text(field, long_name), _text(target_field, long_target)
    path = name[:-1] if kind == FOLDER else name
    check_path(path)
    if (kind == FOLDER) != name.endswith(b"/") or b"\0" in target:
        raise IntegrityError(f"a tar header is not in the normal form: {path!r}")
    if (size and kind != FILE) or bool(target) != (kind in (SYMLINK, HARDLINK)):
        raise IntegrityError(f"a tar header contradicts itself: {path!r}")
    return TarEntry(kind, path, int(mode, 8), size, target), position


def _block_fields(data: Buffer, position: int) -> Sequence[bytes]:
    """Return name, mode, size, checksum, kind and target of the block at ``position``, as bytes."""
    match = _FORM.match(data, position)
    if match:
        return match.groups()
    if len(data) - position < BLOCK:
        raise IntegrityError("a tar header is cut off")
    name = bytes(data[position : position + 100]).rstrip(b"\0")
    raise IntegrityError(f"a tar header is not in the normal form: {name!r}")


def _size(field: bytes) -> int:
    if field[0] != _BASE_256:
        return int(field[:-1], 8)
    size = int.from_bytes(field[1:], "big")
    if size <= _MAX_OCTAL:
        raise IntegrityError("a tar header has a size in two forms: %d" % size)
    return size


def _long_text(data: Buffer, position: int, size: int) -> Tuple[bytes, int]:
    """Return the long name or target of ``size`` bytes at ``position``, and the position of the next block."""
    if not 101 < size <= _MAX_NAME + 1:
        raise IntegrityError("a tar header announces a name of %d bytes" % size)
    end = position + size + padding(size)
    text = bytes(data[position : position + size - 1])
    if bytes(data[position + size - 1 : end]) != b"\0" * (1 + padding(size)):
        raise IntegrityError("a long name in a tar header is cut off or not in the normal form")
    return text, end


def _text(field: bytes, long_text: Optional[bytes]) -> bytes:
    if long_text is None:
        return field.rstrip(b"\0")
    if field != long_text[:100]:
        raise IntegrityError(f"a tar header has a name in two forms: {long_text!r}")
    return long_text


def check_path(path: bytes) -> None:
    """Raise IntegrityError unless ``path`` is relative, not too long, and made of plain names: no "", "." or ".."."""
    framed = b"/%b/" % path
    if b"\0" in path or b"//" in framed or b"/./" in framed or b"/../" in framed:
        raise IntegrityError(f"a path is not plain and relative: {path!r}")
    excess = too_long(path)
    if excess:
        raise IntegrityError(f"a path {excess}: {path[:200]!r}")


def too_long(path: bytes) -> str:
    """Return how ``path`` exceeds the limits of a site; empty if it does not."""
    if len(path) <= MAX_NAME:
        return ""  # it cannot be too deep either
    if len(path) > MAX_PATH:
        return "has %d bytes (at most %d)" % (len(path), MAX_PATH)
    depth = path.count(b"/") + 1
    if depth > MAX_DEPTH:
        return "is %d folders deep (at most %d)" % (depth, MAX_DEPTH)
    longest = max(map(len, path.split(b"/")))
    return "has a name of %d bytes (at most %d)" % (longest, MAX_NAME) if longest > MAX_NAME else ""


def _long(kind: bytes, text: bytes) -> bytes:
    content = text + b"\0"
    return _block(b"././@LongLink", 0, len(content), kind, b"") + content + b"\0" * padding(len(content))


def _block(name: bytes, mode: int, size: int, kind: bytes, target: bytes) -> bytes:
    head = b"".join(
        [
            name.ljust(100, b"\0"),
            b"%07o\0" % (mode & 0o777),
            b"%07o\0" % 0,  # uid and gid: the owner is whoever unpacks
            b"%07o\0" % 0,
            # Octal can hold up to 8 GiB; larger sizes use GNU's base-256 with the top bit set.
            b"%011o\0" % size if size <= _MAX_OCTAL else b"\x80" + size.to_bytes(11, "big"),
            b"%011o\0" % MTIME,
        ]
    )
    rest = kind + target.ljust(100, b"\0") + _MAGIC
    rest = rest.ljust(BLOCK - len(head) - 8, b"\0")  # no owner names, no device numbers
    return head + b"%06o\0 " % (_sum(head + rest) + 8 * 0x20) + rest


def _sum(data: bytes) -> int:
    """Return the sum of the bytes of a header, or of parts of it."""
    # The low half of Adler-32 is the sum of the bytes plus one if that is below 65521, which is always so here.
    return (zlib.adler32(data) & 0xFFFF) - 1
