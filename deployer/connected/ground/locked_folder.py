"""Private temporary folders. If a process is killed, the next process removes its folder."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import IO, Any

SSH, PARTS, REHEARSAL, BUILD = "ssh", "parts", "rehearsal", "build"
#: The name prefixes for these purposes. Nothing else is removed.
_NAME = re.compile(rf"deployer-(?:{SSH}|{PARTS}|{REHEARSAL}|{BUILD})-[a-z0-9_]{{8}}")
_LOCK = "lock"
#: Age in seconds at which a folder without a lock counts as abandoned: its process was killed before making the lock.
_STALE = 24 * 3600


class LockedFolder(tempfile.TemporaryDirectory[str]):
    """A private folder, locked while its process is alive.

    Args:
        purpose: SSH, PARTS, REHEARSAL or BUILD.
        parent: the parent folder; None: the folder for temporary files.
    """

    def __init__(self, purpose: str, parent: Path | None = None) -> None:
        folder = parent or Path(tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        reap(folder)
        super().__init__(prefix=f"deployer-{purpose}-", dir=folder)
        self._lock = os.open(Path(self.name, _LOCK), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def cleanup(self) -> None:
        """Remove the folder. A second call does nothing."""
        super().cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def lock(stream: IO[Any] | int, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> None:
    """Lock an open file or folder until it is closed, if the file system has locks. Raises BlockingIOError."""
    try:
        fcntl.flock(stream, how)
    except BlockingIOError:
        raise
    except OSError:
        pass


def reap(parent: Path) -> None:
    """Remove this user's folders in ``parent`` whose process was killed."""
    for path in parent.iterdir():
        if not _NAME.fullmatch(path.name):
            continue
        try:
            state = path.lstat()
            # Open only our own folders: /tmp is shared, and other users may use the same names.
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and _is_left(path, state.st_mtime):
                shutil.rmtree(path)
        except OSError:
            continue  # already removed, or not removable: neither is an error here


def _is_left(path: Path, modified: float) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return time.time() - modified > _STALE
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
