"""ELF files made by hand: shared libraries that are nothing but what they need of others."""

import struct

_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_HEADER, _PROGRAM, _ENTRY = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")


def library(needed=(), rpath=None, runpath=None):
    """Return a 64-bit library that needs ``needed`` and has the loader search the folders given."""
    strings = bytearray(b"\0")

    def text(value):
        strings.extend(value.encode() + b"\0")
        return len(strings) - len(value) - 1

    entries = [(_NEEDED, text(name)) for name in needed]
    entries += [(tag, text(value)) for tag, value in ((_RPATH, rpath), (_RUNPATH, runpath)) if value]
    start = _HEADER.size + 2 * _PROGRAM.size
    table = start + (len(entries) + 3) * _ENTRY.size
    entries += [(_STRTAB, table), (_STRSZ, len(strings)), (0, 0)]
    body = b"".join(_ENTRY.pack(*entry) for entry in entries) + bytes(strings)
    size = start + len(body)
    head = _HEADER.pack(
        b"\x7fELF\x02\x01\x01" + bytes(9), 3, 62, 1, 0, _HEADER.size, 0, 0, 64, _PROGRAM.size, 2, 64, 0, 0
    )
    whole = _PROGRAM.pack(1, 5, 0, 0, 0, size, size, 4096)
    dynamic = _PROGRAM.pack(2, 6, start, start, start, table - start, table - start, 8)
    return head + whole + dynamic + body
