"""Progress bars for all long work, shown only if stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm

from deployer.system import terminal


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


def _tqdm(what: str, total: int | None) -> tqdm[NoReturn]:
    silent = not terminal.shows_progress()
    return tqdm(desc=what, total=total, unit="B", unit_scale=True, leave=False, disable=silent)
