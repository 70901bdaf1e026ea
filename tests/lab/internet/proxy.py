"""The proxy that leads every host name to a handler, and the lab's CA."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

import trustme

from tests.lab.internet.answers import Answer, Handler, Request, text
from tests.lab.internet.files import FileHost
from tests.lab.internet.github import GitHub
from tests.lab.internet.hub import Hub
from tests.lab.internet.openml import OpenML

_PIECES = 20


class Seen(NamedTuple):
    """One request that a host answered; ``path`` is as sent, with its query."""

    host: str
    method: str
    path: str
    status: int


class Internet:
    """A proxy on 127.0.0.1 and the hosts behind it, up inside ``with``.

    Attributes:
        requests: what was asked, in the order of the answers.
        hub: the host huggingface.co and its CDN.
        github: github.com and its other hosts.
        openml: api.openml.org.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare it; the CA's certificate is written into the folder."""
        self.requests: list[Seen] = []
        self.hub = Hub()
        self.github = GitHub()
        self.openml = OpenML()
        self._hosts: dict[str, Handler] = {**self.hub.hosts, **self.github.hosts, **self.openml.hosts}
        self._authority = trustme.CA(organization_name="deployer's lab")
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._certificate = folder / "internet-ca.pem"
        folder.mkdir(parents=True, exist_ok=True)
        self._authority.cert_pem.write_to_path(self._certificate)

    def serve(self, host: str, handler: Handler) -> None:
        """Lead a host name to a handler, in place of any other."""
        self._hosts[host] = handler

    def files(self, host: str) -> FileHost:
        """Return the file host of this name; the first call makes it."""
        found = self._hosts.get(host)
        if found is None:
            found = self._hosts[host] = FileHost()
        if not isinstance(found, FileHost):
            raise TypeError(f"{host} is not a host of files")
        return found

    def unplug(self, host: str) -> None:
        """Forget a host: requests to it get 502 from then on."""
        self._hosts.pop(host, None)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a process uses this internet.

        Raises:
            RuntimeError: it is not up.
        """
        if self._server is None:
            raise RuntimeError("the lab's internet is not up: use it in a with statement")
        proxy = f"http://127.0.0.1:{self._server.server_address[1]}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        authority = str(self._certificate)
        return {
            **dict.fromkeys(names, proxy),
            "no_proxy": "",
            "NO_PROXY": "",
            "REQUESTS_CA_BUNDLE": authority,
            "SSL_CERT_FILE": authority,
        }

    def __enter__(self) -> Internet:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def knows(self, host: str) -> bool:
        """Return whether a host of this name is served."""
        return host in self._hosts

    def context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context with the certificate of a host."""
        with self._lock:
            if host not in self._contexts:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.set_alpn_protocols(["http/1.1"])
                self._authority.issue_cert(host).configure_cert(context)
                self._contexts[host] = context
            return self._contexts[host]

    def answer(self, request: Request) -> Answer:
        """Return what the host answers, and remember it."""
        handler = self._hosts.get(request.host)
        found = text(502, f"no such host: {request.host}") if handler is None else handler(request)
        self.requests.append(Seen(request.host, request.method, request.target, found.status))
        return found


class _Server(http.server.ThreadingHTTPServer):
    """The proxy's server; it ends the connections that are open when it stops."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, internet: Internet) -> None:
        self.internet = internet
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Connection)

    def stop(self) -> None:
        self.shutdown()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # SSLSocket's own would pull TLS from its reader
        self.server_close()  # waits for the threads


class _Connection(http.server.BaseHTTPRequestHandler):
    """A connection of a client: requests to the proxy, or, after CONNECT, to one host over TLS."""

    server: _Server
    protocol_version = "HTTP/1.1"
    host = ""

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        if self.host:
            self.connection.close()  # the TLS socket took the server's one over

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client went away, or refused the certificate
            super().handle()

    def log_message(self, *_: object) -> None:  # quiet: `Internet.requests` has it
        pass

    def do_CONNECT(self) -> None:
        host, _, port = self.path.rpartition(":")
        if not self.server.internet.knows(host) or port != "443":
            self.server.internet.requests.append(Seen(host, "CONNECT", self.path, 502))
            self._send(text(502, f"no such host: {self.path}"))
            return
        self.send_response_only(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        self.server.open.discard(self.connection)
        self.host = host
        self.connection = self.server.internet.context(host).wrap_socket(self.connection, server_side=True)
        self.server.open.add(self.connection)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False

    def _asked(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers: Mapping[str, str] = {name.lower(): value for name, value in self.headers.items()}
        target = self.path if self.host else parts._replace(scheme="", netloc="").geturl() or "/"
        scheme, host = ("https", self.host) if self.host else ("http", parts.hostname or "")
        self._send(self.server.internet.answer(Request(self.command, scheme, host, target, headers, body)))

    def do_GET(self) -> None:
        self._asked()

    def do_HEAD(self) -> None:
        self._asked()

    def do_POST(self) -> None:
        self._asked()

    def do_PUT(self) -> None:
        self._asked()

    def do_DELETE(self) -> None:
        self._asked()

    def do_OPTIONS(self) -> None:
        self._asked()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        bare = self.command == "HEAD" or answer.status in (204, 304)
        if answer.chunked and not bare:
            self.send_header("Transfer-Encoding", "chunked")
        elif answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if bare:
            return
        body = answer.body if answer.cut is None else answer.body[: answer.cut]
        if answer.chunked:
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n"
        step = max(len(body) // _PIECES, 1) if answer.seconds else max(len(body), 1)
        for start in range(0, len(body), step):
            time.sleep(answer.seconds / _PIECES)
            self.wfile.write(body[start : start + step])
            self.wfile.flush()
        if answer.cut is not None:
            self.close_connection = True
