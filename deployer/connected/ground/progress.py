"""Progress bars of one look for all long work, silent where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm


@contextmanager
def far_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar for work that is done elsewhere; yield what takes the bytes done and the bytes in all, None if nobody
    looks. A new total begins the bar anew."""
    if not sys.stderr.isatty():
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
    """Show a bar for ``total`` bytes (None: unknown) on stderr while the block runs; yield what moves it."""
    shown = _tqdm(what, total)

    def advance(count: int) -> None:
        shown.update(count)

    with shown:
        yield advance


def _tqdm(what: str, total: int | None) -> tqdm[NoReturn]:
    silent = not sys.stderr.isatty()
    return tqdm(desc=what, total=total, unit="B", unit_scale=True, leave=False, disable=silent)
