"""The bytecode of deployer.pyz in the user's cache folder; without it, each start compiles the imported modules.

::

    $XDG_CACHE_HOME/deployer/pyz/DIGEST-PYTHON-MAGIC     DIGEST: of the .pyz (SHA-256); the rest: of the interpreter

Bytecode is code. A .pyz proves its content by its digest, but nothing proves the origin of files beside it: they may
have come on the same medium, or with an image. So bytecode is kept where only this user's programs write. It is used
only if nobody else can have written it. An unsafe, damaged or missing file is not an error: the sources are compiled.
Each start computes the digest of the .pyz, so the times of files, and the clocks behind them, do not matter.

Each start compiles this module, so it is small and imports little. ``tool_compiler`` makes the files.
"""

import marshal
import os
import stat
import sys
from binascii import crc32
from importlib.machinery import ModuleSpec  # not in find_spec, which an import there would call again
from types import CodeType, ModuleType
from typing import Any, Dict, Optional, Tuple

#: By module name: whether it is a package, and the start, size and CRC-32 of its bytecode.
ModuleIndex = Dict[str, Tuple[bool, int, int, int]]
#: Bytes of a file; Python 3.11 needs 2 MB.
MAX_SIZE = 32 * 1024 * 1024
#: Bytes of the size and of the CRC-32 of the index.
_WORD = 4
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Modules:
    """Finds and loads modules of the .pyz from bytecode. Other modules come from the .pyz."""

    def __init__(self, archive: str, sources: Any, index: ModuleIndex, codes: bytes) -> None:
        self._archive, self._sources, self._index, self._codes = archive, sources, index, codes

    def find_spec(self, name: str, *_: Any) -> Optional[ModuleSpec]:
        """Return how to load a module; None if it is not here, or damaged."""
        if name not in self._index or not self._code(name):
            return None
        file, is_package = self._file(name), self.is_package(name)
        spec = ModuleSpec(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102

    def get_code(self, name: str) -> CodeType:
        """Return the module's code."""
        return marshal.loads(self._code(name))  # type: ignore[no-any-return]  # noqa: S302

    def get_source(self, name: str) -> Optional[str]:
        """Return the module's source, for tracebacks."""
        return self._sources.get_data(self._file(name)).decode()  # type: ignore[no-any-return]

    def get_data(self, path: str) -> bytes:
        """Return a file of the .pyz."""
        return self._sources.get_data(path)  # type: ignore[no-any-return]

    def is_package(self, name: str) -> bool:
        """Return whether the module is a package."""
        return self._index[name][0]

    def _file(self, name: str) -> str:
        path = os.path.join(self._archive, *name.split("."))
        return os.path.join(path, "__init__.py") if self.is_package(name) else path + ".py"

    def _code(self, name: str) -> bytes:
        """Return the module's bytecode; empty if the file is damaged there."""
        _, start, size, checksum = self._index[name]
        code = self._codes[start : start + size]
        return code if len(code) == size and crc32(code) == checksum else b""


def use(archive: str, sources: Any) -> bool:
    """Let Python import the modules of the .pyz from its bytecode, and return whether there is any.

    Args:
        archive: the path of the .pyz.
        sources: the loader of its sources.
    """
    place = folder()
    if place is None:
        return False
    try:
        descriptor = os.open(place, _OPEN | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        if not is_safe(os.fstat(descriptor)):
            return False
        with open(archive, "rb") as stream:
            key = key_of(stream.read())
        parsed = _parsed(_read(key, descriptor), key)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    if parsed:
        sys.meta_path.insert(0, Modules(archive, sources, *parsed))
    return parsed is not None


def folder() -> Optional[str]:
    """Return the folder for bytecode, which may not exist; None if the user has no folder for caches."""
    home = os.environ.get("HOME", "")
    top = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(top, "deployer", "pyz") if os.path.isabs(top) else None


def key_of(content: bytes) -> str:
    """Return the name of the file with the bytecode of a .pyz for this Python."""
    from hashlib import sha256
    from importlib.util import MAGIC_NUMBER

    magic = "".join(f"{byte:02x}" for byte in MAGIC_NUMBER)
    return "-".join([sha256(content).hexdigest(), sys.implementation.cache_tag or "unknown", magic])


def is_safe(state: os.stat_result) -> bool:
    """Return whether only this user can have written this file, or the content of this folder."""
    alone = stat.S_ISDIR(state.st_mode) or (stat.S_ISREG(state.st_mode) and state.st_nlink == 1)
    return alone and state.st_uid == os.geteuid() and not stat.S_IMODE(state.st_mode) & 0o077


def _read(name: str, descriptor: int) -> bytes:
    """Return the content of a file in an open folder; empty if it is not safe.

    The open file is checked, so that another file cannot replace it in between.
    """
    with os.fdopen(os.open(name, _OPEN, dir_fd=descriptor), "rb") as stream:
        state = os.fstat(stream.fileno())
        safe = stat.S_ISREG(state.st_mode) and is_safe(state) and state.st_size <= MAX_SIZE
        return stream.read() if safe else b""


def written(key: str, codes: Dict[str, Tuple[bool, bytes]]) -> bytes:
    """Return the content of the file named ``key``.

    Args:
        key: what ``key_of`` returned.
        codes: by module name: whether it is a package, and its bytecode as marshal writes it.
    """
    index, at = {}, 0
    for name, (is_package, code) in codes.items():
        index[name] = (is_package, at, len(code), crc32(code))
        at += len(code)
    table = marshal.dumps(index)
    words = b"".join(word.to_bytes(_WORD, "little") for word in (len(table), crc32(table)))
    return b"".join([key.encode(), b"\n", words, table, *(code for _, code in codes.values())])


def _parsed(data: bytes, key: str) -> Optional[Tuple[ModuleIndex, bytes]]:
    """Return the index and the bytecode of a file; None if it is not the one named ``key``, or damaged."""
    begin = len(key) + 1
    if data[:begin] != key.encode() + b"\n":
        return None
    size, checksum = (int.from_bytes(data[at : at + _WORD], "little") for at in (begin, begin + _WORD))
    begin += 2 * _WORD
    table = data[begin : begin + size]
    if len(table) != size or crc32(table) != checksum:
        return None
    return marshal.loads(table), data[begin + size :]  # noqa: S302
