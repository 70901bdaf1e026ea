"""A plain host of files, with faults on demand."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.lab.internet.answers import Answer, Request, content, moved, text


class Fault(enum.Enum):
    """What can be wrong with a file."""

    CUT = "the first answer ends in the middle of the body; parts are served afterwards"
    HTML = "a page of HTML with status 200"
    OTHER = "other bytes of the same length from the second time on"
    GONE = "404"
    MOVED = "301 to another address"
    SLOW = "the body takes some seconds"
    BROKEN = "500 at the first time"


@dataclass
class _File:
    body: bytes
    headers: Mapping[str, str]
    fault: Fault | None = None
    detail: str = ""
    given: int = 0


@dataclass
class FileHost:
    """The handler of a host of files.

    Attributes:
        ranges: whether the host serves parts of files.
        password: what every request must show as ``Authorization``; empty if nothing.
    """

    ranges: bool = True
    password: str = ""
    _files: dict[str, _File] = field(default_factory=dict)

    def put(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Serve these bytes at a path, which may end with a query."""
        self._files[path] = _File(body, headers or {})

    def fault(self, path: str, fault: Fault | None, detail: str = "") -> None:
        """Break a file, or mend it with ``None``.

        Args:
            path: of a file that :meth:`put` brought.
            fault: what is wrong.
            detail: of :attr:`Fault.MOVED` the new address, of :attr:`Fault.SLOW` the seconds.
        """
        found = self._files[path]
        found.fault, found.detail, found.given = fault, detail, 0

    def __call__(self, request: Request) -> Answer:
        if self.password and request.headers.get("authorization") != self.password:
            return text(401, "who are you?", **{"WWW-Authenticate": 'Basic realm="lab"'})
        found = self._files.get(request.target) or self._files.get(request.path)
        if found is None or found.fault is Fault.GONE:
            return text(404, "not found")
        if request.method not in ("GET", "HEAD"):
            return text(405, "files are only read here")
        if request.method == "GET":
            found.given += 1
        return self._answer(request, found)

    def _answer(self, request: Request, found: _File) -> Answer:
        if found.fault is Fault.MOVED:
            return moved(found.detail, 301)
        if found.fault is Fault.HTML:
            return text(200, "<!DOCTYPE html><html><body>Please log in.</body></html>", "text/html; charset=utf-8")
        if found.fault is Fault.BROKEN and found.given == 1 and request.method == "GET":
            return text(500, "try again")
        body = found.body
        if found.fault is Fault.OTHER and found.given > 1:
            body = bytes(byte ^ 1 for byte in body)
        answer = content(request, body, found.headers, self.ranges)
        if found.fault is Fault.CUT and found.given == 1 and request.method == "GET":
            answer.cut = len(answer.body) // 2
        if found.fault is Fault.SLOW:
            answer.seconds = float(found.detail)
        return answer
