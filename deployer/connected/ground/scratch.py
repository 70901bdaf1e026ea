"""Open files and parallel checks while a bundle is packed."""

import contextlib
import functools
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO


class Scratch(contextlib.ExitStack):
    """Keep source and temporary files open until the block ends, and run checks in parallel.

    Temporary files are in ``folder`` and have no name, so a killed process leaves none.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._pool: ThreadPoolExecutor | None = None
        self._checks: list[Future[None]] = []

    @functools.cached_property
    def spool(self) -> IO[bytes]:
        """Return the common temporary file for contents that must be copied from their source."""
        return self.temporary()

    def open(self, path: Path) -> IO[bytes]:
        """Return ``path`` open for reading."""
        return self.enter_context(open(path, "rb", buffering=0))

    def temporary(self) -> IO[bytes]:
        """Return a new temporary file without a name; unbuffered, because others read it through its descriptor."""
        return self.enter_context(tempfile.TemporaryFile(dir=self._folder, buffering=0))

    def check_beside(self, check: Callable[[], None]) -> None:
        """Run ``check`` in another thread. ``settle`` raises its error, if any."""
        if self._pool is None:
            self._pool = self.enter_context(ThreadPoolExecutor(1, "check"))
            self.callback(self._cancel)
        self._checks.append(self._pool.submit(check))

    def settle(self) -> None:
        """Wait for all checks, and raise the first error."""
        for check in self._checks:
            check.result()

    def _cancel(self) -> None:
        for check in self._checks:
            check.cancel()
