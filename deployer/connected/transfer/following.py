"""Copy the files of a job's folder to the laptop while the job writes them.

Each round lists the folder with one command and copies what has changed with one sftp session, both over the open
connection: a few hundredths of a second on the login node.
"""

import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

from deployer.connected.transfer.remote import Remote, RemoteFile
from deployer.contract.base.errors import TransferError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.system import files

#: Files of at most this many bytes are copied whole, in each round in which they have changed.
_SMALL = 1024 * 1024
#: The most bytes of a file that no pattern selects.
_MOST = 100_000_000
#: Larger files to which programs only append: of these, the new bytes are copied.
_APPENDED = re.compile(r"tfevents|\.(log|out|err|txt|csv|tsv|jsonl|wandb)$")
#: Rounds between two questions for the job's state, which start programs on the login node: the job's end shows in its
#: files first.
_ROUNDS = 18
#: The most seconds between two attempts to connect again.
_AGAIN = 60.0
#: In the laptop's folder: the name of the job. Its other names are the job's own, or ``.part`` files.
_MARKER = ".deployer-job"
_PART = ".deployer-part"
#: What the site's half reserves for the end of a job.
_RESERVE = ".spare"


class JobCopy:
    """The copy of one job's folder.

    Attributes:
        large: names of files that are not copied because of their size.
    """

    def __init__(self, job: str, target: Path, patterns: Sequence[str] = ()) -> None:
        """Continue or begin a copy in the folder ``target``.

        Args:
            patterns: shell patterns of names or paths: copy only these files, of any size.

        Raises:
            UsageError: the folder has other files.
        """
        self._target, self._patterns = target, patterns
        self._copied: dict[str, RemoteFile] = {}
        self._listed: Mapping[str, RemoteFile] = {}
        self._appended: set[str] = set()
        self.large: set[str] = set()
        marker = str(target / _MARKER)
        with files.errors_named(f"write {target}"):
            target.mkdir(parents=True, exist_ok=True)
            known = files.read_text(marker) if files.exists(marker) else None
            if known != job and (known is not None or any(target.iterdir())):
                raise UsageError(f"{target} has other files than those of {job}", "name a new folder")
            files.write_text(marker, job)

    def copy(self, remote: Remote, folder: str, last: bool = False) -> list[str]:
        """Copy what has changed since the last call, and return the names of the copied files.

        A large file that changes at each call is being written, and is copied when it no longer changes.

        Args:
            folder: the job's folder on the site.
            last: the job has ended: copy everything, and whole files instead of pieces.

        Raises:
            TransferError: the connection failed; call again.
            SpaceError: the disk is full.
        """
        listed = {name: state for name, state in remote.files_in(folder).items() if self._is_wanted(name, state)}
        if last:  # a program may also have changed what was there before
            for name in self._appended:
                self._copied[name] = RemoteFile(0, 0, "")
        changed = [name for name in sorted(listed) if self._is_due(name, listed[name], last)]
        self._listed = listed
        with files.errors_named(f"write {self._target}"):
            part = self._target / _PART
            files.remove_tree(str(part))
            part.mkdir()
            pairs = dict(self._pairs(changed, listed, part, last))
            if pairs:
                remote.get(folder, [(name, path, path.parent != part) for name, path in pairs.items()])
            for name, path in pairs.items():
                self._finish(name, path, listed[name])
            files.remove_tree(str(part))
        return [name for name in changed if self._copied.get(name) == listed[name]]

    def _pairs(
        self, names: Sequence[str], listed: Mapping[str, RemoteFile], part: Path, last: bool
    ) -> Iterator[tuple[str, Path]]:
        """Yield each name with the file to write: the copy itself if bytes are added, else a new file."""
        for number, name in enumerate(names):
            known, final = self._copied.get(name), self._target / name
            grows = known is not None and listed[name].inode == known.inode and listed[name].size > known.size
            appends = not last and grows and listed[name].size > _SMALL and _APPENDED.search(name) is not None
            if appends and files.is_file(str(final)):
                self._appended.add(name)
                yield name, final
            else:
                yield name, part / str(number)

    def _finish(self, name: str, path: Path, state: RemoteFile) -> None:
        final = self._target / name
        if path != final:
            if not files.is_file(str(path)) or path.stat().st_size < state.size:
                return  # it was removed or replaced meanwhile
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, final)
            self._appended.discard(name)
        self._copied[name] = state

    def _is_wanted(self, name: str, state: RemoteFile) -> bool:
        parts = PurePosixPath(name).parts
        if not name.isprintable() or name.startswith("/") or ".." in parts or parts[0] in (_MARKER, _PART, _RESERVE):
            return False
        if self._patterns:
            return any(fnmatch.fnmatch(name, each) or fnmatch.fnmatch(parts[-1], each) for each in self._patterns)
        if state.size > _MOST:
            self.large.add(name)
            return False
        return True

    def _is_due(self, name: str, state: RemoteFile, last: bool) -> bool:
        if self._copied.get(name) == state or self._has(name, state):
            return False
        small = state.size <= _SMALL or _APPENDED.search(name) is not None
        return last or small or self._listed.get(name) == state

    def _has(self, name: str, state: RemoteFile) -> bool:
        """Return whether an earlier command has copied this file: size and time are equal."""
        path = self._target / name
        if name in self._copied or not files.is_file(str(path)):
            return False
        there = path.stat()
        if (there.st_size, int(there.st_mtime)) != (state.size, int(float(state.time))):
            return False
        self._copied[name] = state
        return True


def follow(
    connect: Callable[[], AbstractContextManager[Remote]],
    words: Sequence[str],
    copies: Callable[[Fields], JobCopy],
    seconds: float,
    tell: Callable[[str], None],
    wait: Callable[[float], object] = time.sleep,
) -> Fields:
    """Copy the files of a job until it has ended, and return its last status. A lost connection is made again.

    Args:
        connect: makes a connection.
        words: the job, for ``status``; empty: the last job.
        copies: returns the copy for a status.
        seconds: the time between two rounds.
        tell: receives messages for the user.
        wait: waits for some seconds.
    """
    status: Fields | None = None
    pause = seconds
    while True:
        try:
            with connect() as remote:
                remote.prepare()
                pause = seconds
                while True:
                    status = remote.site(["status", *words])
                    words = [status.text("job")]
                    copy = copies(status)
                    active = status.flag("active")
                    for _ in range(_ROUNDS if active else 1):
                        remote.check_open()
                        names = copy.copy(remote, status.text("folder"), last=not active)
                        if names:
                            tell(f"copied {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else ""))
                        if not active:
                            return status
                        wait(seconds)
                        if "result.json" in names:
                            break
        except TransferError as error:
            if status is None:
                raise
            tell(f"{error.message}; trying again in {pause:.0f} s")
            wait(pause)
            pause = min(2 * pause, _AGAIN)
