"""A strict reader of foreign tars: ustar, GNU (long names, base-256 numbers, sparse files) and PAX.

Python's tarfile needs about 50 us per member. This reader keeps names as bytes and locates contents without copying
them. It refuses two faults that tarfile accepts: a wrong checksum in the middle, and a missing end.

Format: POSIX.1-2001 pax; GNU tar manual, "Basic Tar Format" and "Storing Sparse Files".
"""

import os
from collections.abc import Callable
from typing import IO, Any, NamedTuple, Protocol

from deployer.connected.rootfs.entries import DEVICE, Extent, FileEntries, FileEntry, Stored
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import BLOCK, FILE, FOLDER, HARDLINK, SYMLINK, padding

_KINDS = {
    **dict.fromkeys((b"0", b"\0", b"7", b"S"), FILE),
    **dict.fromkeys((b"5", b"D"), FOLDER),
    b"1": HARDLINK,
    b"2": SYMLINK,
    **dict.fromkeys((b"3", b"4", b"6"), DEVICE),
}
_CHUNK = 1024 * 1024
#: Bytes allowed for the PAX headers and long names of one member, and for all global headers. A name has at most 4096.
_MAX_META = 1024 * 1024
_MAX_PIECES = 65536  # per sparse file
_ZEROS = b"\0" * BLOCK


class TarSource(Protocol):
    """A source from which a tar is read, forward only."""

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end."""

    def store(self, size: int) -> tuple[IO[bytes], int]:
        """Skip ``size`` bytes. Return a file that contains them and their offset. Raises EOFError at the tar's end."""


class Slice:
    """An uncompressed tar in a file, starting at ``offset``. Contents are not copied."""

    def __init__(self, stream: IO[bytes], offset: int = 0, size: int | None = None) -> None:
        self._stream = stream
        self._position = offset
        self._end = os.fstat(stream.fileno()).st_size if size is None else offset + size

    def read(self, size: int) -> bytes:
        data = os.pread(self._stream.fileno(), min(size, self._end - self._position), self._position)
        self._position += len(data)
        return data

    def store(self, size: int) -> tuple[IO[bytes], int]:
        start = self._position
        if start + size > self._end:
            raise EOFError
        self._position += size
        return self._stream, start


class Spooled:
    """A tar from a pipe or a decompressor. Contents are copied to ``spool``."""

    def __init__(self, read: Callable[[int], bytes], spool: IO[bytes]) -> None:
        self._read = read
        self._spool = spool
        self._kept = spool.seek(0, os.SEEK_END)

    def read(self, size: int) -> bytes:
        data = self._read(size)
        while data and len(data) < size:
            more = self._read(size - len(data))
            if not more:
                break
            data += more
        return data

    def store(self, size: int) -> tuple[IO[bytes], int]:
        start, left = self._kept, size
        while left:
            data = self._read(min(left, _CHUNK))
            if not data:
                raise EOFError
            self._spool.write(data)
            left -= len(data)
        self._kept += size
        return self._spool, start


class _Header(NamedTuple):
    """The relevant fields of a header block."""

    kind: bytes
    name: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    target: bytes


def entries_of(source: TarSource) -> FileEntries:
    """Yield the entries of a tar in order. Raises UsageError if it is not a tar or is truncated."""
    try:
        yield from _Reader(source).entries()
    except EOFError:
        raise UsageError("the tar is cut off", "write or copy the complete file again") from None


class _Reader:
    def __init__(self, source: TarSource) -> None:
        self._source = source
        self._count = 0
        self._defaults: dict[bytes, bytes] = {}  # from global PAX headers
        self._held = self._held_always = 0  # bytes of headers in memory: for the next member, and for all members

    def entries(self) -> FileEntries:
        extra: dict[bytes, bytes] = {}
        sparse: list[tuple[bytes, bytes]] = []  # GNU.sparse.offset and numbytes, which occur repeatedly
        while True:
            block = self._block()
            if block == _ZEROS:
                return
            header = _parse(block, self._count)
            self._count += 1
            if header.kind == b"L":
                extra[b"path"] = self._meta(header.size).rstrip(b"\0")
            elif header.kind == b"K":
                extra[b"linkpath"] = self._meta(header.size).rstrip(b"\0")
            elif header.kind in b"xX":
                records = _records(self._meta(header.size))
                sparse = [record for record in records if record[0] in (b"GNU.sparse.offset", b"GNU.sparse.numbytes")]
                extra.update(records)
            elif header.kind == b"g":
                self._defaults.update(_records(self._meta(header.size)))
                self._held_always += header.size
            elif header.kind == b"V":
                self._skip(header.size)
            else:
                yield self._entry(block, header, {**self._defaults, **extra}, sparse)
                extra, sparse = {}, []
                self._held = self._held_always

    def _entry(
        self, block: bytes, header: _Header, pax: dict[bytes, bytes], sparse: list[tuple[bytes, bytes]]
    ) -> FileEntry:
        kind = _KINDS.get(header.kind)
        path = pax.get(b"GNU.sparse.name") or pax.get(b"path") or header.name
        if kind is None:
            raise UsageError(f"the tar has a member of the unknown kind {header.kind!r}: {path!r}")
        size = _pax_int(pax, b"size", header.size)
        if header.kind == b"\0" and path.endswith(b"/"):  # before POSIX, folders had no kind of their own
            kind = FOLDER
        data = None
        if kind == FILE:
            if header.kind == b"S":
                data = self._old_sparse(block, size)
            elif b"GNU.sparse.major" in pax or b"GNU.sparse.size" in pax:
                data = self._pax_sparse(pax, size, sparse)
            else:
                data = self._stored(size, ((0, size),), size)
        elif header.kind not in (b"1", b"2", b"3", b"4", b"5", b"6"):
            self._skip(size)
        owner = (_pax_int(pax, b"uid", header.uid), _pax_int(pax, b"gid", header.gid))
        mtime = pax.get(b"mtime")
        return FileEntry(
            kind,
            path,
            header.mode & 0o7777,
            _seconds(mtime) if mtime else header.mtime,
            pax.get(b"linkpath") or header.target,
            data,
            owner != (0, 0),
            any(name.startswith((b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")) for name in pax) if pax else False,
        )

    # --- content ---

    def _stored(self, packed: int, pieces: tuple[tuple[int, int], ...], size: int) -> Stored:
        """Skip ``packed`` bytes, which are the ``pieces`` (start, length) of a file of ``size`` bytes."""
        stream, offset = self._source.store(packed)
        self._skip(padding(packed))
        extents, end = [], 0
        for start, length in pieces:
            if start < end or length < 0 or start + length > size:
                raise UsageError("the tar has a sparse file whose pieces overlap or are outside it")
            extents.append(Extent(start, offset, length))
            offset += length
            end = start + length
        if sum(length for _, length in pieces) != packed:
            raise UsageError("the tar has a sparse file whose pieces are not as long as what is stored")
        return Stored(stream, size, tuple(extents))

    def _old_sparse(self, block: bytes, packed: int) -> Stored:
        """Read GNU's old format: four pieces in the header, then 21 in each following block."""
        pieces = _pieces(block, 386, 4)
        more, size = block[482], _number(block[483:495])
        while more:
            block = self._block()
            pieces += _pieces(block, 0, 21)
            _check_pieces(len(pieces))
            more = block[504]
        return self._stored(packed, tuple(pieces), size)

    def _pax_sparse(self, pax: dict[bytes, bytes], packed: int, listed: list[tuple[bytes, bytes]]) -> Stored:
        """Read GNU's formats 0.0 (one record per number), 0.1 (one record) and 1.0 (a map before the content)."""
        if pax.get(b"GNU.sparse.major") == b"1":
            text = b""
            wanted = 1
            while text.count(b"\n") < wanted:
                text += self._block()
                packed -= BLOCK
                if b"\n" in text:
                    count = _decimal(text.partition(b"\n")[0])
                    _check_pieces(count)
                    wanted = 1 + 2 * count
                if len(text) > _MAX_META or packed < 0:
                    raise UsageError("the tar has a sparse file whose map has no end")
            numbers = [_decimal(word) for word in text.split(b"\n")[1:wanted]]
            size = _decimal(pax.get(b"GNU.sparse.realsize", b""))
        else:
            words = pax[b"GNU.sparse.map"].split(b",") if b"GNU.sparse.map" in pax else [value for _, value in listed]
            numbers = [_decimal(word) for word in words if word]
            size = _decimal(pax.get(b"GNU.sparse.size", b""))
        return self._stored(packed, tuple(zip(numbers[::2], numbers[1::2], strict=False)), size)

    # --- blocks ---

    def _block(self) -> bytes:
        block = self._source.read(BLOCK)
        if len(block) < BLOCK:
            if self._count == 0:
                raise UsageError("the file is not a tar archive")
            raise EOFError
        return block

    def _meta(self, size: int) -> bytes:
        self._held += size
        if self._held > _MAX_META:
            raise UsageError(f"the tar has headers of {self._held} bytes for one member; {_MAX_META} are allowed")
        data = self._source.read(size)
        self._skip(padding(size))
        if len(data) < size:
            raise EOFError
        return data

    def _skip(self, size: int) -> None:
        while size:
            data = self._source.read(min(size, _CHUNK))
            if not data:
                raise EOFError
            size -= len(data)


def _parse(block: bytes, count: int) -> _Header:
    if count == 0 and block[148:156].strip(b" 01234567\0"):
        raise UsageError("the file is not a tar archive")
    stated = _number(block[148:156])
    # Some old programs summed the bytes as signed numbers.
    if stated != sum(block[:148]) + sum(block[156:]) + 8 * 0x20 and stated != _signed_sum(block):
        raise UsageError(
            "the file is not a tar archive" if count == 0 else f"the tar's header {count} has a wrong checksum"
        )
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345:346] != b"\0":
        # star stores times in the last 24 bytes of the prefix.
        name = _text(block[345 : 476 if block[508:512] == b"tar\0" else 500]) + b"/" + name
    return _Header(
        block[156:157],
        name,
        _number(block[100:108]),
        _number(block[108:116]),
        _number(block[116:124]),
        _size(block[124:136]),
        _number(block[136:148]),
        _text(block[157:257]),
    )


def _signed_sum(block: bytes) -> int:
    rest = block[:148] + block[156:]
    return sum(rest) - 256 * sum(byte > 127 for byte in rest) + 8 * 0x20


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Return a number in octal or in GNU's base-256, which may be negative."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ~(1 << (8 * len(field) - 1))
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    try:
        return int(field.replace(b"\0", b" ").strip() or b"0", 8)
    except ValueError:
        raise UsageError(f"the tar has an invalid number: {field!r}") from None


def _size(field: bytes) -> int:
    size = _number(field)
    if size < 0:
        raise UsageError("the tar has a member of negative size")
    return size


def _check_pieces(count: int) -> None:
    if count > _MAX_PIECES:
        raise UsageError(f"the tar has a sparse file of {count} pieces; {_MAX_PIECES} are allowed")


def _pieces(block: bytes, start: int, count: int) -> list[tuple[int, int]]:
    found = []
    for at in range(start, start + 24 * count, 24):
        if block[at] == 0:
            break
        found.append((_number(block[at : at + 12]), _number(block[at + 12 : at + 24])))
    return found


def _records(data: bytes) -> list[tuple[bytes, bytes]]:
    """Parse PAX records, each ``LENGTH KEY=VALUE\\n``, where the length includes itself."""
    records = []
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + 20)
        length = _decimal(data[position:space]) if space > 0 else 0
        record = data[space + 1 : position + length]
        name, equals, value = record[:-1].partition(b"=")
        if length <= space - position or position + length > len(data) or record[-1:] != b"\n" or not equals:
            raise UsageError("the tar has an invalid PAX header")
        records.append((name, value))
        position += length
    return records


def _pax_int(pax: dict[bytes, bytes], key: bytes, default: int) -> int:
    return _decimal(pax[key]) if pax.get(key) else default


def _decimal(word: bytes) -> int:
    if not word.isdigit():
        raise UsageError(f"invalid number in PAX header: {word!r}")
    return int(word)


def _seconds(word: bytes) -> int:
    """Return a PAX time in whole seconds, rounded down as Python does for a .pyc's header."""
    whole, _, fraction = word.partition(b".")
    digits: Any = whole.removeprefix(b"-")
    seconds = _decimal(digits)
    return seconds if whole == digits else -seconds - bool(fraction.strip(b"0"))
