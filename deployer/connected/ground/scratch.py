"""What is open while a bundle is packed: sources, the spool, and checks that go on beside the work."""

import contextlib
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO


class Scratch(contextlib.ExitStack):
    """Keeps files open until the block ends. The spool, in ``folder``, has no name: a kill leaves nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._spool: IO[bytes] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._checks: list[Future[None]] = []

    @property
    def spool(self) -> IO[bytes]:
        """Return the file for contents that cannot stay where they are."""
        if self._spool is None:
            # Unbuffered: it is written by one and read by others through its descriptor.
            self._spool = self.enter_context(tempfile.TemporaryFile(dir=self._folder, buffering=0))
        return self._spool

    def open(self, path: Path) -> IO[bytes]:
        """Return ``path`` open for reading."""
        return self.enter_context(open(path, "rb", buffering=0))

    def temporary(self) -> IO[bytes]:
        """Return another file without a name."""
        return self.enter_context(tempfile.TemporaryFile(dir=self._folder, buffering=0))

    def check_beside(self, check: Callable[[], None]) -> None:
        """Run ``check`` beside the work; what it raises comes from ``settle``."""
        if self._pool is None:
            self._pool = self.enter_context(ThreadPoolExecutor(1, "check"))
            self.callback(self._cancel)
        self._checks.append(self._pool.submit(check))

    def settle(self) -> None:
        """Wait for the checks and raise what the first of them that failed raised."""
        for check in self._checks:
            check.result()

    def _cancel(self) -> None:
        for check in self._checks:
            check.cancel()
