"""Progress bars for long operations, shown only if stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, TypeVar

from deployer.connected.ground import caches
from deployer.contract.base.errors import DeployerError
from deployer.system import terminal

if TYPE_CHECKING:
    from tqdm import tqdm

_Result = TypeVar("_Result")
#: Seconds between two checks of a folder.
_REFRESH = 0.2
#: Seconds to wait for a slow check when the work has ended.
_LAST_LOOK = 1


@contextmanager
def far_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar for work on another machine while the block runs.

    Yields:
        A function to call with the bytes done and the total bytes, or None if stderr is not a terminal. A new total
        restarts the bar.
    """
    with contextlib.ExitStack() as shown:
        yield late_far_bar(what, shown)


def late_far_bar(what: str, shown: contextlib.ExitStack) -> Callable[[int, int], None] | None:
    """Return a function like that of ``far_bar``, for a bar made in ``shown`` at the first call.

    If ``shown`` is closed, the next call makes a new bar.
    """
    if not terminal.shows_progress():
        return None
    bars: list[tqdm[NoReturn]] = []

    def tell(done: int, total: int) -> None:
        if not bars:
            shown.callback(bars.clear)
            bars.append(shown.enter_context(_tqdm(what, total)))
        if total != bars[0].total:
            bars[0].reset(total)
        bars[0].update(min(done, total) - bars[0].n)

    return tell


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
    """Show one bar for several downloads while the block runs. Its total grows as downloads begin.

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
    """Do work that fills a folder, showing a bar of the folder's size. Return the result of the work."""
    return of_size(what, lambda: caches.size(folder) if folder.is_dir() else 0, total, work)


def of_size(
    what: str, size: Callable[[], int], total: int | None, work: Callable[[], _Result], every: float = _REFRESH
) -> _Result:
    """Do work, showing a bar of the value that ``size`` returns. Return the result of the work.

    Args:
        size: returns the bytes done. It is called in its own thread, and a DeployerError from it ends that thread.
        every: seconds between two calls of ``size``.
    """
    if not terminal.shows_progress():
        return work()
    done = threading.Event()

    def look() -> None:
        shown = 0
        with contextlib.suppress(DeployerError, OSError):  # the work reports the error
            while not done.wait(every):
                now = size()
                if done.is_set():  # the bar may already be closed
                    return
                advance(max(0, now - shown))
                shown = max(shown, now)

    # The work stays in this thread, so Ctrl-C and SIGTERM end the program that it runs.
    with bar(what, total) as advance:
        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            return work()
        finally:
            done.set()
            watcher.join(timeout=_LAST_LOOK)


def show_beside(line: str, stream: IO[str] | None = None) -> None:
    """Print a line on standard error or another stream, even while a bar is on the screen."""
    from tqdm import tqdm

    out = stream or sys.stderr
    tqdm.write(terminal.safe(terminal.marked(line, out)), file=out)  # noqa: TID251  escaped
    out.flush()


def _tqdm(what: str, total: int | None) -> tqdm[NoReturn]:
    from tqdm import tqdm  # only here: a rehearsal in a container has only the standard library

    silent = not terminal.shows_progress()
    return tqdm(desc=what, total=total, unit="B", unit_scale=True, leave=False, disable=silent)
