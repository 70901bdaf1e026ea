"""What a host of the lab's internet receives and answers."""

from __future__ import annotations

import email.utils
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

#: The time of every file that has no other: seconds since 1970.
MODIFIED = 1_767_322_800


@dataclass(frozen=True)
class Request:
    """A request as a host receives it.

    Attributes:
        target: path and query as sent, still quoted.
        headers: the last one of each name; names in small letters.
    """

    method: str
    scheme: str
    host: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def quoted_path(self) -> str:
        """Return the path as sent, without the query."""
        return urlsplit(self.target).path

    @property
    def path(self) -> str:
        """Return the path without quotes."""
        return unquote(self.quoted_path)

    @property
    def query(self) -> dict[str, list[str]]:
        """Return the values of each word of the query."""
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def bearer(self) -> str:
        """Return the token that the client shows, or nothing."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else ""


@dataclass
class Answer:
    """What is sent back.

    Attributes:
        cut: so many bytes of the body are sent, then the connection ends.
        seconds: the body takes so long.
        chunked: the length is not sent ahead.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    seconds: float = 0.0
    chunked: bool = False


Handler = Callable[[Request], Answer]


def text(status: int, words: str, kind: str = "text/plain; charset=utf-8", **headers: str) -> Answer:
    """Return a short text."""
    return Answer(status, words.encode(), {"Content-Type": kind, **headers})


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return a value as JSON."""
    body = json.dumps(value).encode()
    return Answer(status, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})


def moved(location: str, status: int = 302, headers: Mapping[str, str] | None = None) -> Answer:
    """Lead to another address."""
    return Answer(status, b"", {"Location": location, **(headers or {})})


def content(request: Request, body: bytes, headers: Mapping[str, str] | None = None, ranges: bool = True) -> Answer:
    """Answer with a file: whole, a part of it, or 304.

    Args:
        headers: more headers; an ``ETag`` among them replaces the usual one.
        ranges: whether parts are served.
    """
    sent = {
        "Content-Type": "application/octet-stream",
        "ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"',
        "Last-Modified": email.utils.formatdate(MODIFIED, usegmt=True),
        **(headers or {}),
    }
    if _known(request, sent):
        return Answer(304, b"", sent)
    if not ranges:
        return Answer(200, body, sent)
    sent["Accept-Ranges"] = "bytes"
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    if asked is None or asked.group(0) == "bytes=-" or request.headers.get("if-range", sent["ETag"]) != sent["ETag"]:
        return Answer(200, body, sent)
    first, last = asked.groups()
    start = int(first) if first else max(len(body) - int(last), 0)
    end = min(int(last) + 1 if first and last else len(body), len(body))
    if start >= end:
        return Answer(416, b"", {**sent, "Content-Range": f"bytes */{len(body)}"})
    return Answer(206, body[start:end], {**sent, "Content-Range": f"bytes {start}-{end - 1}/{len(body)}"})


def _known(request: Request, sent: Mapping[str, str]) -> bool:
    """Return whether the client already has this version."""
    if "if-none-match" in request.headers:
        return sent["ETag"] in re.split(r"\s*,\s*", request.headers["if-none-match"])
    since = request.headers.get("if-modified-since", "")
    if not since:
        return False
    return email.utils.parsedate_to_datetime(sent["Last-Modified"]) <= email.utils.parsedate_to_datetime(since)
