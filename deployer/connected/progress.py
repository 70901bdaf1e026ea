"""Progress bars of one look for all long work, silent where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm


@contextmanager
def bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar for ``total`` bytes (None: unknown) on stderr while the block runs; yield what moves it."""
    silent = not sys.stderr.isatty()
    shown: tqdm[NoReturn] = tqdm(desc=what, total=total, unit="B", unit_scale=True, leave=False, disable=silent)

    def advance(count: int) -> None:
        shown.update(count)

    with shown:
        yield advance
