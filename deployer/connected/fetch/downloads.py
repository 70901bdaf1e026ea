"""Downloads of earlier fetches, by URL: a file that has not changed is not downloaded again.

Each entry is a body, ``KEY.body``, and ``KEY.json``: its digest, its size and the server's validators. Only the user
can write there, and a body whose digest is not the recorded one is not used.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from deployer.connected.ground import caches
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError
from deployer.system import files

_SCHEMA = "download"
#: Names of parameters in URLs whose values are logins or change with each request.
_SECRET = re.compile(
    r"(?i)token|secret|passw|auth|credential|signature|^sig$|policy|expires|key-?(pair-?)?id|^(x-amz|x-goog)-|^api_?key$"
)
#: Headers that a client needs with a stored body. The first two are the server's validators.
_KEPT_HEADERS = ("etag", "last-modified", "content-type", "content-disposition", "content-encoding", "x-repo-commit")


class Download(NamedTuple):
    """A downloaded body.

    Attributes:
        url: its address, without logins.
        sha256: the digest of the body, in hexadecimal.
        size: bytes.
        headers: headers of the answer, by their names in lower case.
        place: the address under which the store has it, if another one led there.
    """

    url: str
    sha256: str
    size: int
    headers: Mapping[str, str]
    place: str = ""

    @property
    def kind(self) -> str:
        """Return the media type that the server states; empty: none."""
        return self.headers.get("content-type", "").partition(";")[0].strip()

    @property
    def is_page(self) -> bool:
        """Return whether the server says that it is a web page."""
        return self.kind == "text/html"


def shown(url: str) -> str:
    """Return a URL without user names, passwords and secret parameters: it is printed, and committed in the lock."""
    parts = urlsplit(url)
    plain = [
        (name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if not _SECRET.search(name)
    ]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, urlencode(plain), ""))


class BodyWriter:
    """Writes a body to the cache while it arrives."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash, self.size = stream, hashlib.sha256(), 0

    def write(self, chunk: bytes) -> None:
        """Add a part of the body. Raises DeployerError."""
        self._hash.update(chunk)
        with files.errors_named("write the downloads of fetch"):
            self._stream.write(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        """Return the digest of what was written."""
        return self._hash.hexdigest()


class DownloadStore:
    """The stored downloads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or caches.FETCH.folder

    def find(self, url: str) -> Download | None:
        """Return the stored download of a URL, or None."""
        path = self._path(url)
        try:
            fields = json_records.loads(files.read_bytes(f"{path}.json"), _SCHEMA, f"{path}.json", own=True)
            headers = {name: fields.text(name) for name in _KEPT_HEADERS if fields.maybe_text(name)}
            stored = Download(fields.text("url"), fields.text("sha256"), fields.number("size"), headers)
            if stored.size != os.stat(f"{path}.body").st_size or files.sha256_file(f"{path}.body") != stored.sha256:
                return None
            for name in (".body", ".json"):  # its last use
                os.utime(path + name)
        except (DeployerError, OSError, KeyError):
            return None
        return stored

    def open(self, url: str) -> IO[bytes]:
        """Open a stored body. Raises OSError."""
        return open(self._path(url) + ".body", "rb")

    @contextlib.contextmanager
    def writing(self, url: str, headers: Mapping[str, str]) -> Iterator[BodyWriter]:
        """Yield a writer; the download is stored if the block ends without an error. Raises DeployerError."""
        path = self._path(url)
        with files.published(f"{path}.body", 0o600) as stream:
            writer = BodyWriter(stream)
            yield writer
        kept = {name: value for name, value in headers.items() if name in _KEPT_HEADERS}
        record = {"url": shown(url), "sha256": writer.sha256, "size": writer.size, **kept}
        files.write_text(f"{path}.json", json.dumps(json_records.stamped(_SCHEMA, record)), 0o600)

    def _path(self, url: str) -> str:
        return str(self._folder / caches.key(shown(url)))
