"""Watch the files of a definition. They are checked repeatedly, which works on every file system."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from deployer.connected.image.definition.definition import Definition

#: Seconds between two checks. A check may take only a fraction of the time, even with very many files.
_PAUSE = 0.3
_SHARE = 10
#: Folders that programs write while nobody changes anything.
_SKIPPED = frozenset({"__pycache__", ".git"})

#: The files of a definition, each with size, time, inode and mode.
Snapshot = Mapping[str, tuple[int, ...]]


def snapshot(definition: Definition) -> Snapshot:
    """Return the state of all files in a definition."""
    app = [definition.app_folder] if definition.app_folder else []
    tops = {definition.folder, definition.context_folder, *app, *definition.data_folders.values()}
    found: dict[str, tuple[int, ...]] = {}
    for top in sorted(tops):
        found.update(_below(top))
    return found


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the paths that were added, removed or changed, sorted."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def wait(definition: Definition, before: Snapshot) -> list[str]:
    """Wait until files of a definition change and stop changing. Return the changed paths."""
    last = before
    while True:
        started = time.monotonic()
        now = snapshot(definition)
        found = changed(before, now)
        if found and now == last:  # an editor or `git checkout` has finished
            return found
        last = now
        time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - started)))


def _below(top: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in names:
            path = os.path.join(folder, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:  # it was removed during the check
                continue
            yield path, (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode)
