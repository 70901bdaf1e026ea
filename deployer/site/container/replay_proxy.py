"""A proxy on a node's own address that answers with what `fetch` recorded (``contract.site.replay``).

It answers for the recorded hosts with their certificate, which only this job trusts. A request for another host goes
on to the network, as it would without a proxy: programs of a job ask each other over HTTP too.

Other users of the node cannot use it: a connection must come from a process of this user, and show the token.
"""

import base64
import hmac
import json
import os
import re
import select
import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, BinaryIO, Set, Tuple
from urllib.parse import SplitResult, urlsplit

from deployer.contract.base.text import printable
from deployer.contract.site import replay
from deployer.system import payload

#: The most connections at once, and addresses to complain about.
_CONNECTIONS, _MOST = 256, 1000
#: Seconds to connect to a host; bytes of a part of an answer.
_REACH, _CHUNK = 10.0, 65536
_NOT_RECORDED = "not recorded by `deployer fetch` on the laptop"


class ReplayProxy:
    """Answers requests in threads, with the recorded answers in a folder. Raises OSError."""

    def __init__(self, folder: str, token: str) -> None:
        self.folder, self.login = folder, b"Basic " + base64.b64encode(b"deployer:" + token.encode())
        with open(os.path.join(folder, replay.HOSTS), encoding="utf-8") as stream:
            self.hosts = stream.read().split()
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(os.path.join(folder, replay.KEY))
        self.complained: Set[str] = set()
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    def serve(self, listener: int, alive: int) -> None:
        """Accept connections from a socket until the other end of the pipe ``alive`` is closed."""
        with socket.socket(fileno=listener) as accepting:
            while alive not in select.select([listener, alive], [], [])[0]:
                if self._places.acquire(timeout=1.0):
                    connection, peer = accepting.accept()
                    threading.Thread(target=self._answer, args=(connection, peer), daemon=True).start()

    def _answer(self, connection: socket.socket, peer: Tuple[str, int]) -> None:
        with connection, suppress(OSError, ValueError):  # the program may send anything, and leave
            if _is_own(peer[1]):
                _Exchange(connection, peer, self)  # type: ignore[arg-type]
        self._places.release()


class _Exchange(BaseHTTPRequestHandler):
    """One connection of a program, with all its requests."""

    protocol_version = "HTTP/1.1"
    rbufsize = 0  # bytes after a request may be for another host
    timeout = 30.0  # seconds for the next bytes of a request
    server: ReplayProxy  # type: ignore[assignment]
    _origin = ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Print nothing."""

    def do_CONNECT(self) -> None:
        """Answer for a recorded host; lead to another one."""
        if self._origin or not self._is_admitted():
            return
        where = urlsplit("//" + self.path)
        if where.hostname not in self.server.hosts or where.port != 443:
            self._pass_on(where, b"")
        else:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with self.server.tls.wrap_socket(self.connection, server_side=True) as self.request:
                self._origin = f"https://{where.hostname}"
                self.setup()
                self.handle()

    def _answer(self) -> None:
        if not self._origin and not self._is_admitted():
            return
        where = urlsplit(self._origin or self.path)
        path = self.path if self._origin else "/" + self.path.partition("://")[2].partition("/")[2]
        url = f"{where.scheme}://{where.netloc.rpartition('@')[2].lower()}{path}"
        if self.command in ("GET", "HEAD"):
            with suppress(FileNotFoundError), open(os.path.join(self.server.folder, replay.name(url)), "rb") as stream:
                self._send(stream)
                return
        if where.scheme != "http":
            self._refuse(url)
            return
        own = ("connection", "keep-alive", "proxy-connection", "proxy-authorization")
        kept = [f"{name}: {value}" for name, value in self.headers.items() if name.lower() not in own]
        head = [f"{self.command} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
        self._pass_on(where, "\r\n".join(head).encode("latin-1"))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815

    def _is_admitted(self) -> bool:
        given = (self.headers.get("Proxy-Authorization") or "").encode("latin-1", "replace")
        if hmac.compare_digest(given, self.server.login):
            return True
        self.send_error(407)
        return False

    def _refuse(self, what: str) -> None:
        """Send an error, and print it once per address. Parameters may be logins, so they are not printed."""
        shown, complained = f"{self.command} {what.partition('?')[0]}", self.server.complained
        if shown not in complained and len(complained) < _MOST:
            complained.add(shown)
            payload.complain(f"deployer: {printable(shown)}: {_NOT_RECORDED}, and cannot be reached")
        self.send_error(502, _NOT_RECORDED)

    def _send(self, stream: BinaryIO) -> None:
        """Send a recorded answer, or a part of it."""
        headers = json.loads(stream.readline().decode())
        start = stream.tell()
        size = os.fstat(stream.fileno()).st_size - start
        status, first, last = _part(self.headers.get("Range") or "", size)
        if status != 200:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{size}" if last else f"bytes */{size}"
        self.send_response(status)
        for item in {**headers, "Content-Length": str(last - first), "Accept-Ranges": "bytes"}.items():
            self.send_header(*item)
        self.end_headers()
        stream.seek(start + first)
        if self.command == "GET":
            for chunk in iter(lambda: stream.read(min(_CHUNK, start + last - stream.tell())), b""):
                self.wfile.write(chunk)

    def _pass_on(self, where: SplitResult, head: bytes) -> None:
        """Lead the program to a host, after the beginning of its request; empty: a tunnel for any bytes."""
        self.close_connection = True
        try:
            far = socket.create_connection((where.hostname or "", where.port or 80), _REACH)
        except (OSError, UnicodeError):  # no host can have such a name
            self._refuse(self.path)
            return
        with far:
            far.settimeout(None)
            self.connection.settimeout(None)
            far.sendall(head)
            if not head:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(far, self.connection), daemon=True)
            back.start()
            _copy(self.connection, far)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Send all that arrives on to another socket."""
    with suppress(OSError):
        for chunk in iter(lambda: source.recv(_CHUNK), b""):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


def _part(asked: str, size: int) -> Tuple[int, int, int]:
    """Return the status, the first byte, and the end of the bytes for a Range header: one part, or the whole."""
    match = re.match(r"bytes=(\d{1,18})-(\d{0,18})\Z", asked.strip())
    if not match:
        return 200, 0, size
    first, last = int(match.group(1)), min(size, int(match.group(2) or size) + 1)
    return (206, first, last) if first < last else (416, 0, 0)


def _is_own(port: int) -> bool:
    """Return whether a process of this user has a socket with this port; gRPC's and Java's are of IPv6."""
    rows = []
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open("/proc/net/" + name, encoding="ascii") as table:
            rows += [line.split() for line in table]
    return any(row[1].endswith(":%04X" % port) and row[7] == str(os.getuid()) for row in rows)
