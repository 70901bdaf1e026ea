"""Read a wheel, an archive that declares the content of each of its files, and check it against that declaration.

Both sides read wheels here: the laptop before it keeps a wheel, the site when it unpacks one. A wheel is opened from a
stream that was verified. Its RECORD is checked too, because the wheel's maker may differ from the bundle's, and because
only the checks of names and paths protect the rest of the disk from an archive.
"""

import hashlib
import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Set

from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import wheel
from deployer.contract.bundle.wheel import WheelEntry, WheelFile
from deployer.system import files

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
#: Bytes of metadata, which is held in memory. A line of RECORD is about 100 bytes.
_MAX_TEXT = 16 * 1024 * 1024
#: Bytes of the archive's list of files, at least 47 per file and 700 in memory: 60,000 files with usual names.
_MAX_LIST = 8 * 1024 * 1024
#: The errors of zipfile for a file that is not an archive, or is hostile.
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, IndexError, OverflowError),
)


class Wheel:
    """An open wheel. Raises IntegrityError if it is not valid.

    Attributes:
        name: its file name.
        files: the files to install.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.name = name
        with self._named():
            self._archive = archive(stream)
            infos = [info for info in self._archive.infolist() if not info.is_dir()]
            for info in infos:
                _check_info(info)
            self._infos = {info.filename: info for info in infos}
            self.info = wheel.dist_info(name, self._infos)
            wheel.check_version(self.text(wheel.WHEEL))
            entries = [WheelEntry(info.filename, info.file_size, info.external_attr >> 16) for info in infos]
            record = self.text(wheel.RECORD)
            if record.count("\n") > 2 * len(infos) + 100 or record.count(",") > 20 * len(infos) + 100:
                raise IntegrityError("its RECORD lists more files than the wheel has")
            self.files: List[WheelFile] = wheel.files(self.info, entries, wheel.read_record(record))

    def text(self, name: str) -> str:
        """Return the text of a metadata file. Raises IntegrityError if it does not exist."""
        with self._named():
            info = self._infos.get(f"{self.info}/{name}")
            if info is None or info.file_size > _MAX_TEXT:
                raise IntegrityError(f"it has no {name}")
            return self._archive.read(info).decode("utf-8")

    def scripts(self, python: str) -> Dict[str, str]:
        """Return the scripts that its entry points define, name to text; ``python`` is the interpreter to name."""
        with self._named():
            if f"{self.info}/{wheel.ENTRY_POINTS}" not in self._infos:
                return {}
            return wheel.console_scripts(self.text(wheel.ENTRY_POINTS), python)

    def programs(self) -> Set[str]:
        """Return the names of the programs that it adds to PATH."""
        plain = (file.path.partition("/") for file in self.files)
        return {*self.scripts(""), *(name for folder, _, name in plain if folder == wheel.BIN and "/" not in name)}

    def chunks(self, file: WheelFile) -> Iterator[bytes]:
        """Yield a file's content. Raises IntegrityError after the last piece if it does not match RECORD."""
        digest = hashlib.new(file.digest.algorithm)
        with self._named(), self._archive.open(self._infos[file.name]) as stream:
            for chunk in iter(lambda: stream.read(files.CHUNK), b""):
                digest.update(chunk)
                yield chunk
            if digest.digest() != file.digest.value:
                raise IntegrityError(f"{file.name} does not have the digest of its RECORD")

    def check(self) -> None:
        """Read all files. Raises IntegrityError if one does not match RECORD."""
        self.scripts("python3")
        for file in self.files:
            for _ in self.chunks(file):
                pass

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the wheel in its errors."""
        try:
            yield
        except IntegrityError as error:
            if error.message.startswith(self.name):
                raise
            raise IntegrityError(f"{self.name}: {error.message}", error.hint) from error
        except BROKEN as error:
            raise _broken(self.name, error) from error


def archive(stream: IO[bytes]) -> zipfile.ZipFile:
    """Return an archive, open for reading. Raises BadZipFile if its list of files takes too much memory."""
    return zipfile.ZipFile(_Bounded(stream))


class _Bounded:
    """A file that refuses large reads: zipfile reads the list of files of an archive at once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_LIST:
            raise zipfile.BadZipFile("its list of files has %d bytes, and %d are allowed" % (size, _MAX_LIST))
        return self._stream.read(_MAX_LIST if size < 0 else size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Claim(NamedTuple):
    """The size that an archive claims, with the bytecode of its modules.

    Attributes:
        files: number of files.
        bytes: their size.
    """

    files: int
    bytes: int


def claim(stream: IO[bytes], name: str) -> Claim:
    """Return the claimed size of a wheel. Nothing is checked, so it is only good for estimating space."""
    try:
        infos = archive(stream).infolist()
    except BROKEN as error:
        raise _broken(name, error) from error
    modules = [info for info in infos if info.filename.endswith(".py")]
    return Claim(len(infos) + len(modules), sum(info.file_size for info in infos + modules))


def _broken(name: str, error: Exception) -> IntegrityError:
    return IntegrityError(f"{name} is not a complete wheel: {str(error) or type(error).__name__}")


def _check_info(info: zipfile.ZipInfo) -> None:
    # zipfile cuts a name at a NUL, and treats os.sep as a slash.
    if info.orig_filename != info.filename:
        raise IntegrityError(f"it has an unsafe name: {info.orig_filename!r}")
    if info.compress_type not in _METHODS or info.flag_bits & _ENCRYPTED:
        raise IntegrityError(f"{info.filename} is encrypted, or uses a compression that wheels do not allow")
