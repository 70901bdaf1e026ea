"""The lab's one error: an expected failure, shown as one line and, when there is one, a hint of what to do next."""

from __future__ import annotations


class LabError(Exception):
    """An expected failure. The command line prints it as ``lab: error: ...``, never as a traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
