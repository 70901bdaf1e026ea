"""Log files, one per command, below the root folder."""

import io
import logging
import os
import sys
import time
from contextlib import suppress
from typing import Optional

_KEPT = 50


class _LogFile(logging.FileHandler):
    """A log file that accepts any text in any locale."""

    def _open(self) -> io.TextIOWrapper:
        return io.open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's own name
        """Discard a line that cannot be written: on a full disk, ``gc`` must still work and print only its output."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # buffered lines that cannot be written
            super().close()


def start_log(folder: str, command: str) -> Optional[str]:
    """Log to a new file in ``folder``, and return its path; None, without an error, if it cannot be written."""
    try:
        os.makedirs(folder, exist_ok=True)
        for old in sorted(name for name in os.listdir(folder) if name.endswith(".log"))[:-_KEPT]:
            os.unlink(os.path.join(folder, old))
        path = os.path.join(folder, "%s-%d-%s.log" % (time.strftime("%Y%m%d-%H%M%S"), os.getpid(), command))
        handler = _LogFile(path)
    except OSError:
        return None
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logger = logging.getLogger("deployer")
    # Remove the log files of earlier commands in this process.
    for earlier in [handler for handler in logger.handlers if isinstance(handler, _LogFile)]:
        logger.removeHandler(earlier)
        earlier.close()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return path
