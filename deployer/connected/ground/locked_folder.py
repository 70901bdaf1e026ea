"""Private temporary folders. If a process is killed, the next one removes the folder that it left."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import IO, Any

SSH, PARTS, REHEARSAL = "ssh", "parts", "rehearsal"
#: The names that tempfile makes for these purposes. Nothing else is removed.
_NAME = re.compile(rf"deployer-(?:{SSH}|{PARTS}|{REHEARSAL})-[a-z0-9_]{{8}}")
_LOCK = "lock"
#: Age in seconds from which a folder without a lock counts as abandoned: its process was killed before it made the
#: lock.
_STALE = 24 * 3600


class LockedFolder(tempfile.TemporaryDirectory[str]):
    """A private folder, locked as long as its process lives.

    Args:
        purpose: SSH, PARTS or REHEARSAL.
        parent: the folder in which it is made; None: that for temporary files.
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


def lock(stream: IO[Any], how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> None:
    """Lock a file until it is closed; nothing is done on a file system without locks. Raises BlockingIOError."""
    try:
        fcntl.flock(stream, how)
    except BlockingIOError:
        raise
    except OSError:
        pass


def reap(parent: Path) -> None:
    """Remove the folders of this user in ``parent`` whose process was killed."""
    for path in parent.iterdir():
        if not _NAME.fullmatch(path.name):
            continue
        try:
            found = path.lstat()
            # Look only into our own folders: /tmp is shared, and other users may use the same names there.
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and _is_left(path, found.st_mtime):
                shutil.rmtree(path)
        except OSError:
            continue  # another process removed it first, or it cannot be removed: neither is an error of this command


def _is_left(path: Path, made: float) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return time.time() - made > _STALE
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
