"""Progress of long operations at the site: the amount done, the rate, and the remaining time."""

import os
import sys
import time

from deployer.contract.base import dialogue
from deployer.site.storage import space
from deployer.system import terminal

#: Seconds between two lines.
_REFRESH = 0.2


class Meter:
    """A progress meter: one line on a terminal, lines for a laptop that requests them, otherwise no output.

    The byte count starts again when the total changes.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.told = os.environ.get(dialogue.PROGRESS) == "1"
        self.shown = terminal.shows_progress() and not self.told
        self.total = self.done = self.width = 0
        self.last = self.began = 0.0

    def __call__(self, count: int, total: int) -> None:
        """Add ``count`` bytes of ``total``."""
        now = time.time()
        if total != self.total:
            self.total, self.done, self.began = total, 0, now
        self.done += count
        if now - self.last <= _REFRESH:
            return
        self.last = now
        if self.told:
            try:
                sys.stderr.write("%s%d %d\n" % (dialogue.PROGRESS_LINE, self.done, self.total))
                sys.stderr.flush()
            except OSError:  # the laptop has disconnected: the work continues
                self.told = False
        elif self.shown:
            text = line(self.what, self.done, self.total, now - self.began)[: terminal.columns() - 1]
            sys.stderr.write("\r" + text.ljust(self.width))
            sys.stderr.flush()
            self.width = len(text)

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the line."""
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0


def line(what: str, done: int, total: int, seconds: float) -> str:
    """Return the amount done, the rate, and the remaining time at this rate."""
    part = "%s %3d %% of %s" % (what, 100 * done // max(total, 1), space.human(total))
    if not (done and seconds > 0):
        return part
    left = int(max(total - done, 0) * seconds / done)
    return "%s, %s/s, %d:%02d left" % (part, space.human(done / seconds), left // 60, left % 60)
