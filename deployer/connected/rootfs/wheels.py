"""Wheels, read and unpacked by pypa/installer, with stricter checks where leniency has no use.

An unpacked wheel is an overlay, a folder like a Python's prefix with site-packages at ``lib``::

    lib/        purelib and platlib: the entry in PYTHONPATH
    bin/        scripts and console scripts: the entry in PATH
    include/    headers, by distribution
    ...         data, as in the wheel
"""

import configparser
import contextlib
import csv
import io
import posixpath
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import installer
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme, parse_entrypoints, parse_metadata_file

from deployer.contract.base import tarformat
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.manifest import BIN, LIB

#: Used if the image's Python is not known: PATH in the container decides.
ANY_PYTHON = "/usr/bin/env python3"

#: RECORD cannot contain its own digest, and its signatures cover a RECORD that is not the installed one.
_NOT_RECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_DIGESTS = ("sha256=", "sha384=", "sha512=")
_INSTALLER = {"INSTALLER": b"deployer\n"}
_SCRIPT_NAME = re.compile(r"[\w.+-]*\w[\w.+-]*")
#: The file type of a mode if the archive was made on Unix: regular, or unspecified.
_TYPE, _PLAIN_TYPES = 0o170000, (0, 0o100000)
#: Bytes of a metadata file, which is held in memory.
_MAX_TEXT = 16 * 1024 * 1024
#: Bytes of the archive's list of files, at least 47 per file and 700 in memory: 60,000 files with usual names.
_MAX_LIST = 8 * 1024 * 1024
#: The errors of installer and zipfile for a file that is not a wheel, or is hostile.
_BROKEN = (
    *(InstallerError, InvalidRecordEntry, AssertionError, KeyError, csv.Error, configparser.Error, zipfile.BadZipFile),
    *(zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError, IndexError, OverflowError),
)


class Wheel(WheelFile):
    """An open wheel.

    Attributes:
        files: the digests of its files as in RECORD, by path in the overlay.
        scripts: the entry points that become scripts, MODULE:ATTRIBUTE, by path in the overlay.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        bounded = _Bounded(stream, name)
        archive = zipfile.ZipFile(bounded)
        bounded.is_listed = True
        super().__init__(archive)
        names = [info.filename for info in archive.infolist() if not info.is_dir() and _check_info(info)]
        version = parse_metadata_file(self.read_dist_info("WHEEL"))["Wheel-Version"] or ""
        if version.partition(".")[0] != "1":
            raise IntegrityError("it is not in version 1 of the wheel format")
        self.files = self._files(names)
        self.scripts: dict[str, str] = {}
        if "entry_points.txt" in self.dist_info_filenames:
            for script, module, attribute, _ in parse_entrypoints(self.read_dist_info("entry_points.txt")):
                if not _SCRIPT_NAME.fullmatch(script):
                    raise IntegrityError(f"its entry point {script!r} cannot be a script")
                self.scripts[f"{BIN}/{script}"] = f"{module}:{attribute}"

    def _files(self, names: Iterable[str]) -> dict[str, str]:
        """Return the digest of each file by its path in the overlay. Raises IntegrityError unless RECORD fits."""
        record = {row[0]: row[1] for row in parse_record_file(self.read_dist_info("RECORD").splitlines())}
        files: dict[str, str] = {}
        for name in names:
            digest, place = record.pop(name, ""), self._place(name)
            if not digest.startswith(_DIGESTS) and name.removeprefix(self.dist_info_dir + "/") not in _NOT_RECORDED:
                raise IntegrityError(f"its RECORD has no SHA-256 for {name}, or it has the file twice")
            if place in files:
                raise IntegrityError(f"it has {place} twice")
            files[place] = digest or self.distribution
        if record:
            raise IntegrityError(f"its RECORD lists {min(record)}, which is not in the archive")
        files.setdefault(f"{LIB}/{self.dist_info_dir}/INSTALLER", self.distribution)
        return files

    def _place(self, name: str) -> str:
        """Return the path in the overlay of a file of the archive."""
        folder, _, rest = name.partition("/")
        area, _, below = rest.partition("/")
        if folder != self.data_dir:
            return f"{LIB}/{name}"
        areas = self._areas()
        if area not in areas or not below:
            raise IntegrityError(f"{name} is in an unknown part of .data")
        return posixpath.join(areas[area], below)

    def _areas(self) -> dict[str, str]:
        return {"purelib": LIB, "platlib": LIB, "scripts": BIN, "headers": f"include/{self.distribution}", "data": ""}

    def unpack(self, root: Path, python: str) -> None:
        """Unpack it into the folder ``root``; ``python`` runs its scripts. All files must match RECORD."""
        self.validate_record()
        areas = {area: str(root / folder) for area, folder in self._areas().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # bytecode is left out
            installer.install(self, _Prefix(areas, python, "posix", overwrite_existing=True), _INSTALLER)


def _check_info(info: zipfile.ZipInfo) -> bool:
    """Raise IntegrityError unless a file of the archive is a regular one with a plain relative name."""
    # zipfile cuts a name at a NUL, and treats os.sep as a slash.
    if info.orig_filename != info.filename or "\\" in info.filename or not info.filename.isprintable():
        raise IntegrityError(f"it has a name that is not plain: {info.orig_filename!r}")
    tarformat.check_path(info.filename.encode("utf-8", "surrogateescape"))
    if info.external_attr >> 16 & _TYPE not in _PLAIN_TYPES:
        raise IntegrityError(f"{info.filename} is not a regular file")
    if ".dist-info/" in info.filename and info.file_size > _MAX_TEXT:
        raise IntegrityError(f"{info.filename} is too large")
    return True


class _Prefix(SchemeDictionaryDestination):
    def write_file(self, scheme: Scheme, path: Any, stream: BinaryIO, is_executable: bool) -> RecordEntry:
        return super().write_file(scheme, path, stream, is_executable or scheme == "scripts")

    def write_script(self, name: str, module: str, attr: str, section: Any) -> RecordEntry:
        # installer takes a blank in the interpreter for a part of its path, but ANY_PYTHON has an argument.
        script = Script(name, module, attr, section).generate("python", "posix")[1]
        return self.write_file(Scheme("scripts"), name, io.BytesIO(script), True)


class _Bounded:
    """A file that zipfile reads in pieces, because a hostile size would fill the memory.

    zipfile reads the list of files at once, so a list that is too large is refused. It reads contents in a loop.

    Attributes:
        is_listed: the list of files has been read.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream = stream
        self.name = name
        self.is_listed = False

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_LIST and not self.is_listed:
            raise zipfile.BadZipFile(f"its list of files has {size} bytes, and {_MAX_LIST} are allowed")
        return self._stream.read(_MAX_LIST if size < 0 else min(size, _MAX_LIST))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Name the wheel in the errors of the block, which reads it."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(f"{name}: {error.message}", error.hint) from error
    except _BROKEN as error:
        raise IntegrityError(f"{name} is not a valid wheel: {str(error) or type(error).__name__}") from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Wheel]:
    """Open a wheel. Raises IntegrityError, also for errors of the block, if it is not valid."""
    with open(path, "rb") as stream, named(path.name):
        yield Wheel(stream, path.name)


def added(wheels: Iterable[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield each wheel with the files that the earlier ones do not have, by their paths in the overlay.

    Raises:
        IntegrityError: a wheel is not valid.
        UsageError: two wheels cannot be in one overlay.
    """
    owners: dict[str, tuple[str, str]] = {}
    folders: set[str] = set()
    for path in wheels:
        with opened(path) as wheel:
            contents = {**wheel.scripts, **wheel.files}
        contents = {place: digest for place, digest in contents.items() if "/__pycache__/" not in place}
        new = [place for place in contents if place not in owners]
        for place, digest in contents.items():
            known, other = owners.setdefault(place, (digest, path.name))
            if known != digest:
                raise UsageError(f"{other} and {path.name} both contain {place}, with different content",
                    "require only one of them")  # fmt: skip
        folders |= folders_of(new)
        if both := folders & owners.keys():
            raise UsageError(f"{path.name}: {min(both)} is both a file and a folder", "require other wheels")
        yield path, new


def folders_of(files: Iterable[str]) -> set[str]:
    """Return all folders above files."""
    folders: set[str] = set()
    above = {posixpath.dirname(file) for file in files}
    while above - {""} - folders:
        folders |= above - {""}
        above = set(map(posixpath.dirname, above))
    return folders


def programs(wheels: Iterable[Path]) -> set[str]:
    """Return the names of the programs that wheels add to PATH."""
    files = (place for _, new in added(wheels) for place in new)
    return {posixpath.basename(place) for place in files if posixpath.dirname(place) == BIN}
