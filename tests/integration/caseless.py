"""A folder without case, as macOS has them, for kernels that cannot mount ext4 with casefold: FUSE over another folder.

python -m tests.integration.caseless FOLDER MOUNTPOINT serves it until it is unmounted. It is not a test.
"""

import os
import sys
from typing import Any

import mfusepy

_TIMES = ("st_atime", "st_mtime", "st_ctime")
_STATE = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_ino", "st_rdev")


class Caseless(mfusepy.Operations):  # type: ignore[misc]
    """Passes each call on to the folder, with each name as it is spelled there."""

    use_ns = True

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _real(self, path: str) -> str:
        real = self._folder
        for name in filter(None, path.split("/")):
            there = name
            if not os.path.lexists(os.path.join(real, name)) and os.path.isdir(real):
                there = next((each for each in os.listdir(real) if each.casefold() == name.casefold()), name)
            real = os.path.join(real, there)
        return real

    def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
        state = os.lstat(self._real(path))
        return {
            **{name: getattr(state, name) for name in _STATE},
            **{name: getattr(state, name + "_ns") for name in _TIMES},
        }

    def readdir(self, path: str, fh: Any) -> list[str]:
        return [".", "..", *os.listdir(self._real(path))]

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        os.rename(self._real(old), self._real(new))

    def link(self, target: str, source: str) -> None:
        os.link(self._real(source), self._real(target))

    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._real(target))

    def utimens(self, path: str, times: Any = None) -> None:
        os.utime(self._real(path), ns=times, follow_symlinks=False)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._real(path), uid, gid, follow_symlinks=False)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._real(path), mode)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._real(path), mode)

    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._real(path))

    def truncate(self, path: str, length: int, fh: Any = None) -> None:
        os.truncate(self._real(path), length)

    def unlink(self, path: str) -> None:
        os.unlink(self._real(path))


if __name__ == "__main__":
    mfusepy.FUSE(Caseless(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True, allow_other=True)
