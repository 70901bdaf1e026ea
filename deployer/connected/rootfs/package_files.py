"""The files that an image's packages list in dpkg's file lists and pip's RECORD.

The image itself makes these claims: a list may contain a file that its package never had. Sources: dpkg(1) for
``info/*.list``; PyPA, "Recording installed projects", for RECORD.
"""

import csv
import posixpath
import re
from collections.abc import Iterable

from deployer.connected.rootfs.entries import FileContent

_DPKG = "var/lib/dpkg/info/"
_DPKG_LIST = re.compile(rf"{_DPKG}([^/]+)\.list")
_RECORD = re.compile(r"(?:(.*)/)?[^/]+\.dist-info/RECORD")
#: Top-level folders that are links into /usr. Package lists use the paths without /usr.
_MERGED = re.compile(r"(bin|sbin|lib|lib32|lib64|libx32)/")
_BYTECODE = re.compile(r"(.*/)?__pycache__/([^/.]+)\.[^/]+\.pyc")


class PackageFiles:
    """The paths that the packages of an image list, from the lists passed to ``add``."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._names: set[str] = set()

    @classmethod
    def of(cls, files: Iterable[tuple[str, FileContent]]) -> "PackageFiles":
        """Return the paths that the lists among some files have."""
        packages = cls()
        for path, content in files:
            if cls.is_list(path):
                packages.add(path, content.read(0, content.size))
        return packages

    @staticmethod
    def is_list(path: str) -> bool:
        """Return whether a file is a package's file list."""
        return bool(_DPKG_LIST.fullmatch(path) or _RECORD.fullmatch(path))

    def add(self, path: str, content: bytes) -> None:
        """Read a package's file list from ``path``."""
        lines = content.decode("utf-8", "surrogateescape").splitlines()
        debian, python = _DPKG_LIST.fullmatch(path), _RECORD.fullmatch(path)
        if debian:
            self._names.add(debian[1])
            paths = (line.lstrip("/") for line in lines)
            self._paths.update(f"usr/{path}" if _MERGED.match(path) else path for path in paths)
        elif python:
            names = [posixpath.join(python[1] or "", row[0]) for row in csv.reader(lines) if row]
            self._paths.update(posixpath.normpath(name) if "./" in name else name for name in names)

    def __contains__(self, path: str) -> bool:
        bytecode = _BYTECODE.fullmatch(path)
        source = f"{bytecode[1] or ''}{bytecode[2]}.py" if bytecode else path
        own = path.startswith(_DPKG) and path.removeprefix(_DPKG).rpartition(".")[0] in self._names
        return own or path in self._paths or source in self._paths
