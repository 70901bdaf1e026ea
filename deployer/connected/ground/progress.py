"""Progress bars for all long work, shown only if stderr is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from deployer.system import terminal

if TYPE_CHECKING:
    from tqdm import tqdm

_Result = TypeVar("_Result")
#: Seconds between two looks at a folder.
_REFRESH = 0.2


@contextmanager
def far_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar for work on another machine while the block runs.

    Yields:
        A function to call with the bytes done and the total bytes, or None if stderr is not a terminal. A new total
        restarts the bar.
    """
    if not terminal.shows_progress():
        yield None
        return
    with _tqdm(what, None) as shown:

        def tell(done: int, total: int) -> None:
            if total != shown.total:
                shown.reset(total)
            shown.update(min(done, total) - shown.n)

        yield tell


@contextmanager
def bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar for ``total`` bytes (None: unknown) on stderr while the block runs.

    Yields:
        A function to call with the number of bytes done since the last call.
    """
    shown = _tqdm(what, total)

    def advance(count: int) -> None:
        shown.update(count)

    with shown:
        yield advance


@contextmanager
def parts_bar(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar for several downloads while the block runs; its total grows as downloads begin.

    Yields:
        A function to call with the name of a download, the bytes done and the total bytes.
    """
    parts: dict[str, tuple[int, int]] = {}
    with _tqdm(what, None) as shown:

        def tell(part: str, done: int, total: int) -> None:
            parts[part] = done, max(done, total)
            shown.total = sum(each for _, each in parts.values())
            shown.update(sum(each for each, _ in parts.values()) - shown.n)

        yield tell


def of_folder(what: str, folder: Path, total: int | None, work: Callable[[], _Result]) -> _Result:
    """Do work that fills a folder, show a bar of the folder's size meanwhile, and return the result of the work."""
    with ThreadPoolExecutor(1, "work") as pool, bar(what, total) as advance:
        running = pool.submit(work)
        shown = 0
        while wait([running], timeout=_REFRESH).not_done:
            now = _size(folder)
            advance(max(0, now - shown))
            shown = max(shown, now)
        return running.result()


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the work moves and removes files meanwhile
            total += file.lstat().st_size
    return total


def _tqdm(what: str, total: int | None) -> tqdm[NoReturn]:
    from tqdm import tqdm  # only here: a rehearsal in a container has Python's library alone

    silent = not terminal.shows_progress()
    return tqdm(desc=what, total=total, unit="B", unit_scale=True, leave=False, disable=silent)
