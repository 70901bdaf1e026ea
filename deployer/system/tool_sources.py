"""The modules of deployer.pyz from one read of it, for starts that use no bytecode.

Python opens a zip file anew for each module. In a job from the installed folder, deployer.pyz is on the shared file
system, and each rank's probe imports a hundred modules.
"""

import struct

from deployer.system.tool_bytecode import Modules

MYPY = False
if MYPY:
    from types import CodeType
    from typing import Any

    from deployer.system.tool_bytecode import Index

#: Zip files: the last record, with the number of files and the place of the list; an entry of it, from its flags on;
#: and the lengths of name and extra field before a file's content.
_END, _LIST = b"PK\5\6", struct.Struct("<H4xI")
_ENTRY, _ENTRY_SIZE = struct.Struct("<10xH4xI4xI3H8xI"), 46
_LENGTHS, _HEADER_SIZE = struct.Struct("<2H"), 30
_STORED = 0
_SUFFIX, _PACKAGE = ".py", "/__init__.py"


class Sources(Modules):
    """Finds and loads modules from their sources. What it does not have comes from the zip file."""

    def get_code(self, name: str) -> "CodeType":
        """Return the module's code."""
        return compile(self._code(name), self._file(name), "exec", dont_inherit=True)


def read(archive: str, sources: "Any") -> "Sources":
    """Return what imports the modules of the .pyz from memory.

    Args:
        archive: the path of the .pyz.
        sources: its own loader.
    """
    with open(archive, "rb", 0) as stream:
        data = stream.read()
    return Sources(archive, sources, index(data), data)


def index(data: bytes) -> "Index":
    """Return where the modules of a zip file are; without those that are compressed."""
    found = {}
    count, at = _LIST.unpack_from(data, data.rindex(_END) + 10)
    for _ in range(count):
        method, checksum, size, length, extra, comment, header = _ENTRY.unpack_from(data, at)
        path = data[at + _ENTRY_SIZE : at + _ENTRY_SIZE + length].decode()
        at += _ENTRY_SIZE + length + extra + comment
        if method == _STORED and path.endswith(_SUFFIX):
            start = header + _HEADER_SIZE + sum(_LENGTHS.unpack_from(data, header + 26))
            is_package = path.endswith(_PACKAGE)
            name = path[: -len(_PACKAGE) if is_package else -len(_SUFFIX)].replace("/", ".")
            found[name] = (is_package, start, size, checksum)
    return found
