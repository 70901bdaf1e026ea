"""A submission that the site has not answered: the same command again leads to one job, not to two.

This side chooses the end of the job's name (``run --token``) before the site may submit the job, and keeps it in a file
until the site has reported the job. The same command finds that file and gives the same name again. The site makes one
job of a name, and answers with it.

A file is locked while its process lives: then its submission may still be answered, and it is another one.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from deployer.connected.ground import xdg
from deployer.system import files

#: Hexadecimal digits of a digest in the name of a file.
_DIGITS = 16
#: Seconds after which nobody repeats a command for its answer.
_KEPT = 30 * 24 * 3600


class UnansweredJob(NamedTuple):
    """A job that a site may have submitted.

    Attributes:
        site: the name of the site.
        job: the name of the job.
    """

    site: str
    job: str


class Submission:
    """A submission by this command.

    Args:
        scope: ``others`` knows submissions of the same scope.
        name: the beginning of the job's name.
        site: the name of the site.
        words: the command. The same scope, name, site and words are the same submission.

    Attributes:
        job: the name of the job.
        token: its end, for ``run --token``.
    """

    def __init__(self, scope: str, name: str, site: str, words: Sequence[str]) -> None:
        self._folder, self._scope, self._site = xdg.state_folder("submissions"), _digest(scope), site
        self._begin = f"{self._scope}-{_digest(scope, name, site, *words)}-"
        self._file: IO[str] | None = None
        for path in sorted(self._folder.glob(f"{self._begin}*")):
            self._file = _taken(path)
            if self._file:
                self._path = path
                break
        else:
            end = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
            self._path = self._folder / f"{self._begin}{name}-{end}"
        self.job = self._path.name[len(self._begin) :]
        self.token = self.job[len(name) + 1 :]

    def record(self) -> None:
        """Keep the name of the job, before the site may submit it. Raises DeployerError."""
        if self._file:
            return
        part = self._path.with_name(f".{self._path.name}")
        with files.errors_named(f"write {self._path}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._reap()
            self._file = part.open("x", encoding="utf-8")
            try:
                _lock(self._file)
                self._file.write(self._site)
                self._file.flush()
                os.fsync(self._file.fileno())
                part.rename(self._path)
            except OSError:
                part.unlink(missing_ok=True)
                self.close()
                raise

    def answered(self) -> None:
        """Forget it: the site has reported the job."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.close()

    def others(self) -> Iterator[UnansweredJob]:
        """Yield the jobs of this scope whose submission by other words had no answer, and forget them."""
        for path in sorted(self._folder.glob(f"{self._scope}-*")):
            found = None if path.name.startswith(self._begin) else _taken(path)
            if found:
                with found:
                    yield UnansweredJob(found.read(), path.name.split("-", 2)[2])
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others have the file: this process gets no answer any more."""
        if self._file:
            self._file.close()
            self._file = None

    def _reap(self) -> None:
        """Remove old files."""
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEPT:
                    path.unlink()


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def _taken(path: Path) -> IO[str] | None:
    """Return an open file that no living process has; None: it has one, or was removed just now."""
    with contextlib.ExitStack() as cleanup:
        try:
            stream = cleanup.enter_context(path.open("r+", encoding="utf-8"))
            _lock(stream)
        except (FileNotFoundError, BlockingIOError):
            return None
        if os.fstat(stream.fileno()).st_nlink:
            cleanup.pop_all()
            return stream
    return None


def _lock(stream: IO[str]) -> None:
    """Lock a file; nothing is done on a file system without locks. Raises BlockingIOError."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
