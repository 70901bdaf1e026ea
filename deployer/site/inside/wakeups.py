"""Signals as events for a selector."""

import os
import signal
from contextlib import suppress
from typing import Dict, Iterable, Set


class Wakeups:
    """Signal handlers that make ``fileno`` readable when a signal arrives. A new program gets the default handling."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._writer)
        self._before: Dict[int, object] = {number: signal.signal(number, lambda *_: None) for number in numbers}

    def fileno(self) -> int:
        """Return the descriptor for a selector."""
        return self._reader

    def take(self) -> Set[int]:
        """Return the signals that have arrived since the last call: Python writes their numbers."""
        numbers: Set[int] = set()
        with suppress(BlockingIOError):
            while True:
                numbers.update(os.read(self._reader, 512))
        return numbers

    def close(self) -> None:
        """Restore the earlier handling of the signals."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup)
        for end in (self._reader, self._writer):
            os.close(end)
