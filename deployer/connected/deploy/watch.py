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
    states: dict[str, tuple[int, ...]] = {}
    for top in sorted(tops):
        states.update(_below(top))
    return states


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the paths that were added, removed or changed, sorted."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def wait(definition: Definition, before: Snapshot) -> list[str]:
    """Wait until files of a definition change and stop changing. Return the changed paths."""
    last = before
    while True:
        started = time.monotonic()
        now = snapshot(definition)
        paths = changed(before, now)
        if paths and now == last:  # an editor or `git checkout` has finished
            return paths
        last = now
        time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - started)))


def _below(top: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in names:
            path = os.path.join(folder, name)
            try:
                state = os.lstat(path)
            except FileNotFoundError:  # it was removed during the check
                continue
            yield path, (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_mode)
