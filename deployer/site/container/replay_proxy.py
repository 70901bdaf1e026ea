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
import threading
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, BinaryIO, Optional, Sequence, Set, Tuple

from deployer.contract.base.text import printable
from deployer.contract.site import replay
from deployer.system import payload

#: The most connections at once, and addresses to complain about.
_CONNECTIONS, _MOST = 256, 1000
#: Seconds to connect to a host, and for the next bytes of a request.
_REACH, _PATIENCE = 10.0, 30.0
_CHUNK = 65536
_URL = re.compile(r"(https?://)(?:[^/@]*@)?(\[[^/@\]]+\]|[^/@:]+)(?::(\d{1,5}))?(/.*)")
_NOT_RECORDED = "not recorded by deployer fetch"


class ReplayProxy:
    """Answers requests in threads, with the recorded answers in a folder."""

    def __init__(self, folder: str, hosts: Sequence[str], token: str) -> None:
        self.folder, self.hosts = folder, hosts
        self.login = b"Basic " + base64.b64encode(b"deployer:" + token.encode())
        self.tls = self._tls()
        self._places, self._lock = threading.BoundedSemaphore(_CONNECTIONS), threading.Lock()
        self._complained: Set[str] = set()

    def serve(self, listener: int, alive: int) -> None:
        """Accept connections from a socket until the other end of the pipe ``alive`` is closed."""
        with socket.socket(fileno=listener) as accepting:
            while alive not in select.select([listener, alive], [], [])[0]:
                if self._places.acquire(timeout=1.0):
                    connection, peer = accepting.accept()
                    threading.Thread(target=self._answer, args=(connection, peer), daemon=True).start()

    def complain(self, what: str) -> None:
        """Print once that a request has no answer."""
        with self._lock:
            if what not in self._complained and len(self._complained) < _MOST:
                self._complained.add(what)
                payload.complain(f"deployer: {printable(what)}: {_NOT_RECORDED} on the laptop, and cannot be reached")

    def _tls(self) -> Any:
        try:
            import ssl

            made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            made.load_cert_chain(os.path.join(self.folder, replay.KEY))
        except (ImportError, OSError) as error:
            payload.complain(f"deployer: recorded answers of https hosts cannot be used here: {error}")
            return None
        return made

    def _answer(self, connection: socket.socket, peer: Tuple[str, int]) -> None:
        with ExitStack() as end, suppress(OSError, ValueError):  # the program may send anything, and leave
            end.callback(self._places.release)
            end.enter_context(connection)
            if _is_own(peer[1], connection.getsockname()[1]):
                _Exchange(connection, peer, self)


class _Exchange(BaseHTTPRequestHandler):
    """One connection of a program, with all its requests."""

    protocol_version = "HTTP/1.1"
    rbufsize = 0  # bytes after a request may be for another host
    timeout = _PATIENCE

    def __init__(self, connection: socket.socket, peer: Tuple[str, int], proxy: ReplayProxy) -> None:
        self._proxy, self._is_within = proxy, False
        super().__init__(connection, peer, None)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Print nothing."""

    def do_CONNECT(self) -> None:
        """Answer for a recorded host; lead to another one."""
        if not self._is_admitted():
            return
        host, _, port = self.path.rpartition(":")
        if host.lower() not in self._proxy.hosts or port != "443":
            self._pass_on(host, port, None)
        elif self._proxy.tls is None or self._is_within:
            self._refuse()
        else:
            self.send_response_only(200, "OK")
            self.end_headers()
            with self._proxy.tls.wrap_socket(self.connection, server_side=True) as self.request:
                self._is_within = True
                self.setup()
                self.handle()

    def _answer(self) -> None:
        if not self._is_within and not self._is_admitted():
            return
        url = "https://" + (self.headers.get("Host") or "") + self.path if self._is_within else self.path
        match = _URL.fullmatch(url)
        if not match:
            self._refuse(400, "invalid request")
            return
        scheme, host, port, path = match.groups("")
        url = scheme + host.lower() + (":" + port if port else "") + path
        if self.command in ("GET", "HEAD"):
            with suppress(FileNotFoundError), open(os.path.join(self._proxy.folder, replay.name(url)), "rb") as stream:
                self._send(stream)
                return
        if self._is_within:
            self._refuse(what=url)
        else:
            kept = [f"{key}: {value}" for key, value in self.headers.items() if not _is_hop(key)]
            head = [f"{self.command} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
            self._pass_on(host, port or "80", "\r\n".join(head).encode("latin-1"))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815

    def _is_admitted(self) -> bool:
        given = self.headers.get("Proxy-Authorization") or ""
        if hmac.compare_digest(given.encode("latin-1", "replace"), self._proxy.login):
            return True
        self.close_connection = True
        self._begin(407, "another program's proxy", ("Proxy-Authenticate", "Basic"), ("Content-Length", "0"))
        return False

    def _begin(self, status: int, reason: str, *headers: Tuple[str, str]) -> None:
        self.send_response_only(status, reason)
        for name, value in (*headers, *([("Connection", "close")] if self.close_connection else [])):
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: int = 502, reason: str = _NOT_RECORDED, what: str = "") -> None:
        """Answer that there is no answer. Parameters of addresses may be logins, so they are not printed."""
        self._proxy.complain(self.command + " " + (what or self.path).partition("?")[0])
        self.close_connection = True
        self._begin(status, reason, ("Content-Length", "0"))

    def _send(self, stream: BinaryIO) -> None:
        """Send a recorded answer, or a part of it."""
        headers = json.loads(stream.readline().decode())
        start = stream.tell()
        size = os.fstat(stream.fileno()).st_size - start
        status, first, last = _part(self.headers.get("Range") or "", size)
        if status != 200:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{size}" if last else f"bytes */{size}"
        sent = {**headers, "Content-Length": str(last - first), "Accept-Ranges": "bytes"}
        self._begin(status, self.responses[status][0], *sent.items())
        stream.seek(start + first)
        left = last - first if self.command == "GET" else 0
        while left:
            chunk = stream.read(min(left, _CHUNK))
            self.wfile.write(chunk)
            left -= len(chunk) or left

    def _pass_on(self, host: str, port: str, head: Optional[bytes]) -> None:
        """Lead the program to a host, after this beginning of its request; None: a tunnel for any bytes."""
        self.close_connection = True
        try:
            far = socket.create_connection((host.strip("[]"), int(port)), _REACH)
        except (OSError, ValueError, OverflowError):  # no such port, and a name that no host has
            self._refuse()
            return
        with far:
            for each in (far, self.connection):
                each.settimeout(None)
            if head is None:
                self.send_response_only(200, "OK")
                self.end_headers()
            else:
                far.sendall(head)
            back = threading.Thread(target=_copy, args=(far, self.connection), daemon=True)
            back.start()
            _copy(self.connection, far)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Send all that arrives on to another socket."""
    with suppress(OSError):
        for chunk in iter(lambda: source.recv(_CHUNK), b""):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _is_hop(name: str) -> bool:
    return name.lower() in ("connection", "keep-alive") or name.lower().startswith("proxy-")


def _part(asked: str, size: int) -> Tuple[int, int, int]:
    """Return the status, the first byte, and the end of the bytes for a Range header: one part, or the whole."""
    match = re.match(r"bytes=(\d{0,18})-(\d{0,18})\Z", asked.strip())
    if not match or not any(match.groups()):
        return 200, 0, size
    begin, end = match.groups()
    first = int(begin) if begin else max(0, size - int(end))
    last = min(size, int(end) + 1) if begin and end else size
    return (206, first, last) if first < last else (416, 0, 0)


def _is_own(port: int, to: int) -> bool:
    """Return whether a process of this user has the socket with this port that is connected to the port ``to``."""
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table]
    except OSError:  # the token decides
        return True
    ends = ":%04X" % port, ":%04X" % to
    return any(row[1][-5:] == ends[0] and row[2][-5:] == ends[1] and row[7] == str(os.getuid()) for row in rows)
