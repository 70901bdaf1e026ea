"""Unanswered submissions: repeating the same command leads to one job, not two.

The laptop chooses the end of the job's name (``run --token``) before the site may submit the job. A file keeps it until
the site has reported the job. A repeated command finds that file and uses the same name again. The site makes one job
per name and reports it. If the connection breaks after the report, the file records this, because the user may have
observed how that job ended.

A file is locked while its process is alive. Then its submission may still be answered, so another process ignores it.
A file that cannot be used, such as root's, causes a warning.
"""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from deployer.connected.ground import xdg
from deployer.connected.ground.locked_folder import lock
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import DeployerError, IntegrityError, MissingTool, Refused, SpaceError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.system import files, terminal

#: Hexadecimal digits of the digest in a file's name.
_DIGITS = 16
#: Seconds after which a command is no longer repeated for its answer.
_KEPT = 30 * 24 * 3600
#: Seconds after which a site has certainly installed the received bundle and submitted its job.
_LATE = 3 * 3600
#: The second line of the file if the site reported the job before the connection broke.
_REPORTED = "reported"
#: Exit codes of the site's `run` that prove that nothing was submitted; and those that also occur before a submission.
_CERTAIN = (UsageError.exit_code, MissingTool.exit_code)
_ANSWERS = (*_CERTAIN, Refused.exit_code, IntegrityError.exit_code, SpaceError.exit_code)


class UnansweredJob(NamedTuple):
    """A job that the site may have submitted, or may still submit.

    Attributes:
        job: the name of the job.
        path: its record.
    """

    job: str
    path: Path

    @property
    def is_late(self) -> bool:
        """Whether the site would have submitted the job by now."""
        with contextlib.suppress(OSError):
            return time.time() - self.path.stat().st_mtime > _LATE
        return True

    def forget(self) -> None:
        """Remove the record: the user knows the job, or there is none."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class Submission:
    """A submission by this command.

    Args:
        scope: ``others`` returns only submissions with the same scope.
        name: the beginning of the job's name.
        site: the name of the site.
        words: the command. The same scope, name, site and words are the same submission.

    Attributes:
        job: the name of the job.
        token: the end of the name, for ``run --token``.
        recorded: repeating the command finds the job.
        is_reported: the site reported the job to an earlier process.
    """

    def __init__(self, scope: str, name: str, site: str, words: Sequence[str]) -> None:
        self._folder, self._scope, self._site = xdg.state_folder("submissions"), _digest(scope), site
        self._begin = f"{self._scope}-{_digest(scope, name, site, *words)}-"
        self._file: IO[str] | None = None
        self.is_reported = False
        for path in sorted(self._folder.glob(f"{self._begin}*")):
            self._file = _taken(path)
            if self._file:
                self._path = path
                self.is_reported = _REPORTED in self._file.read().split("\n")[1:]
                break
        else:
            end = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
            self._path = self._folder / f"{self._begin}{name}-{end}"
        self.job = self._path.name[len(self._begin) :]
        self.token = self.job[len(name) + 1 :]

    @property
    def recorded(self) -> bool:
        return self._file is not None

    def record(self) -> None:
        """Record the job's name before the site may submit the job. Raises DeployerError."""
        if self._file:
            return
        part = self._path.with_name(f".{self._path.name}")
        with files.errors_named(f"write {self._path}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._reap()
            self._file = part.open("x", encoding="utf-8")
            try:
                lock(self._file)
                self._file.write(self._site)
                self._file.flush()
                os.fsync(self._file.fileno())
                part.rename(self._path)
            except OSError:
                part.unlink(missing_ok=True)
                self.close()
                raise

    def reported(self) -> None:
        """Record that the site has reported the job, so that the user may observe how it ends."""
        if self._file:
            with contextlib.suppress(OSError):
                self._file.seek(0, os.SEEK_END)
                self._file.write(f"\n{_REPORTED}")
                self._file.flush()

    def answered(self) -> None:
        """Remove the record, because this process knows the job."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.close()

    def ended(self, code: int, remote: Remote) -> None:
        """Remove the record if this exit code of the site's `run` proves that nothing was submitted."""
        certain = code in _CERTAIN
        with contextlib.suppress(DeployerError):  # then it may have submitted
            certain = certain or (code in _ANSWERS and status_of(remote, self.job) is None)
        if certain:
            self.answered()

    def others(self) -> Iterator[UnansweredJob]:
        """Yield this scope and site's unanswered jobs that were submitted with other words."""
        for path in sorted(self._folder.glob(f"{self._scope}-*")):
            stream = None if path.name.startswith(self._begin) else _taken(path)
            if stream:
                with stream:
                    if stream.read().partition("\n")[0] == self._site:
                        yield UnansweredJob(path.name.split("-", 2)[2], path)

    def close(self) -> None:
        """Release the file to others: this process will receive no more answers."""
        if self._file:
            self._file.close()
            self._file = None

    def _reap(self) -> None:
        """Remove old files."""
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEPT:
                    path.unlink()


def status_of(remote: Remote, job: str) -> Fields | None:
    """Return the status of a job, or None if the site has no job of this name."""
    try:
        return remote.site(["status", job])
    except DeployerError as error:  # errors from the site's program have only an exit code
        if error.exit_code != UsageError.exit_code:
            raise
        return None


def is_active(remote: Remote, job: str) -> bool:
    """Return whether a job has not ended. Raises DeployerError."""
    status = status_of(remote, job)
    return status is not None and status.flag("active")


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def _taken(path: Path) -> IO[str] | None:
    """Open a file that no living process holds. Return None if one holds it, or it was just removed."""
    with contextlib.ExitStack() as cleanup:
        try:
            stream = cleanup.enter_context(path.open("r+", encoding="utf-8"))
            lock(stream)
        except (FileNotFoundError, BlockingIOError):
            return None
        except OSError as error:
            terminal.warn(f"a job that had no answer may not be found: cannot read {path}: {error.strerror}")
            return None
        if os.fstat(stream.fileno()).st_nlink:
            cleanup.pop_all()
            return stream
    return None
