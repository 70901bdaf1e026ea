"""The internet of a simulated node: it answers the node's requests from the real hosts, and records each of them.

Connections arrive through the node's doors (``world.doors``). TLS ends here, with certificates of an authority that
only this run's container trusts. Requests go on to the real host with this machine's proxies and CA certificates. The
token of the user's own login is added here: the program never has it, and cannot write it anywhere.
"""

import contextlib
import http.client
import ipaddress
import os
import re
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import requests
import trustme
import urllib3

from deployer import __version__
from deployer.connected.fetch.downloads import BodyWriter, Download, DownloadStore, shown
from deployer.contract.base.errors import DeployerError, IntegrityError, SpaceError, TransferError
from deployer.contract.site import replay

#: Seconds to connect to a host, and to wait for its next bytes.
TIMEOUT = (20.0, 120.0)
#: How often a cut download is continued.
TRIES = 6
#: Seconds to wait for answers after the program's end.
_SETTLE = 10.0
_CHUNK = 256 * 1024
#: The most connections at once, bytes of a request's body, and different addresses that are recorded.
_CONNECTIONS, _MAX_BODY, _MOST = 256, 64 * 1024 * 1024, 100_000
_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*|\[[0-9a-fA-F:.]+\]")
_HOST_HEADER = re.compile(rf"({_HOST.pattern})(:[0-9]{{1,5}})?")
_REDIRECTED, _MOVED = (301, 302, 303, 307, 308), (301, 308)
#: Headers that belong to one connection, and those by which a server would send another body than the file's.
_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"}
_CONDITIONS = ("range", "if-none-match", "if-modified-since", "if-range", "authorization", "cookie")
_CUT = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


#: Libraries ask a hub for files that a repository may have.
NO_FILE = "the repository has no such file"


class Refusal(NamedTuple):
    """A request that did not get a file.

    Attributes:
        url: the address, without logins.
        status: the status of the answer; 0: there was none.
        why: the reason, in words.
    """

    url: str
    status: int
    why: str


class Records:
    """What the program asked for. Several threads add to it.

    Attributes:
        downloads: the bodies, by URL.
        refusals: the requests without a file, by URL.
        asked: all requested hosts, with the number of requests.
        exact: the addresses of all requests by their names in a replay: these addresses may contain logins.
        received: bytes that came over the network.
        full: the error if the disk was full.
        led: the first address of each one to which a host led the program.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.downloads: dict[str, Download] = {}
        self.refusals: dict[str, Refusal] = {}
        self.asked: dict[str, int] = {}
        self.exact: dict[str, str] = {}
        self.received = 0
        self.full: SpaceError | None = None
        self.led: dict[str, str] = {}

    def name(self, url: str) -> str:
        """Return the address by which a file is known: without logins, and that which led to it, if any."""
        return self.led.get(shown(url), shown(url))

    def ask(self, host: str, url: str) -> None:
        """Count a request."""
        with self._lock:
            self.exact.update({replay.name(url): shown(url)} if len(self.exact) < _MOST else {})
            if host in self.asked or len(self.asked) < _MOST:
                self.asked[host] = self.asked.get(host, 0) + 1

    def receive(self, count: int) -> None:
        """Count bytes from the network."""
        with self._lock:
            self.received += count

    def add(self, download: Download) -> None:
        """Record a body."""
        with self._lock:
            if len(self.downloads) < _MOST:
                self.downloads[download.url] = download
            self.refusals.pop(download.url, None)

    def refuse(self, url: str, status: int, why: str) -> None:
        """Record a request without a file."""
        with self._lock:
            if len(self.refusals) < _MOST:
                self.refusals[self.name(url)] = Refusal(self.name(url), status, why)

    def lead(self, url: str, location: str) -> None:
        """Record that a host leads from an address to another."""
        with self._lock:
            if len(self.led) < _MOST:
                self.led[shown(location)] = self.name(url)


class FetchRules(NamedTuple):
    """How requests are answered.

    Attributes:
        locked: the digest of each URL of the lock, which the body must have; None: any.
        logins: returns the Authorization header of the user's own login for a host, or an empty text.
        private: whether the program may reach hosts of private networks.
        verify: a file with CA certificates for the real hosts; None: this machine's.
    """

    locked: Mapping[str, str] | None
    logins: Callable[[str], str]
    private: bool = False
    verify: str | None = None


class Recorder:
    """Answers the requests that come through the doors, in threads, until it is closed."""

    def __init__(self, store: DownloadStore, rules: FetchRules) -> None:
        self.records, self.rules, self.store = Records(), rules, store
        self._authority = trustme.CA()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock, self._local = threading.Lock(), threading.local()
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        self._folder = tempfile.TemporaryDirectory(prefix="deployer-fetch-")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._closed, self._active, self._idle = False, 0, threading.Condition()
        self.doors = os.path.join(self._folder.name, "doors")
        self._socket.bind(self.doors)
        self._socket.listen(1)
        threading.Thread(target=self._await_doors, daemon=True).start()

    @property
    def certificate(self) -> bytes:
        """Return the certificate of this run's authority, in PEM."""
        return bytes(self._authority.cert_pem.bytes())

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request that is being answered."""
        with self._idle:
            self._active += 1
        try:
            yield
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def settle(self) -> None:
        """Wait a short time until every answer is recorded: the program may have ended right after one."""
        with self._idle:
            self._idle.wait_for(lambda: not self._active, _SETTLE)

    def close(self) -> None:
        """Accept nothing more."""
        self._closed = True
        with contextlib.suppress(OSError):  # accept() in another thread does not end when the socket is closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._folder.cleanup()

    def _await_doors(self) -> None:
        with contextlib.suppress(OSError):  # closed before a node opened its doors
            connection, _ = self._socket.accept()
            with connection:
                _, descriptors, _, _ = socket.recv_fds(connection, 16, 2)
            for descriptor, secure in zip(descriptors, (True, False), strict=True):
                listener = socket.socket(fileno=descriptor)
                threading.Thread(target=self._accept, args=(listener, secure), daemon=True).start()

    def _accept(self, listener: socket.socket, secure: bool) -> None:
        with listener:
            while not self._closed:
                self._places.acquire()
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connection, secure), daemon=True).start()

    def _serve(self, connection: socket.socket, secure: bool) -> None:
        connection.settimeout(TIMEOUT[1])
        with contextlib.ExitStack() as end, contextlib.suppress(OSError, ValueError):  # the program may send anything
            end.callback(self._places.release)
            if secure:
                outer = self._context("localhost")
                outer.sni_callback = self._choose
                connection = outer.wrap_socket(connection, server_side=True)
            with connection:
                _Exchange(connection, "https" if secure else "http", self)

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if not name or not _HOST.fullmatch(name):
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        connection.context = self._context(name)
        return None

    def _context(self, name: str) -> ssl.SSLContext:
        with self._lock:
            if name not in self._contexts:
                made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                made.set_alpn_protocols(["http/1.1"])
                self._authority.issue_cert(name).configure_cert(made)
                self._contexts[name] = made
            return self._contexts[name]

    def session(self) -> requests.Session:
        """Return this thread's connections to real hosts."""
        if not hasattr(self._local, "session"):
            self._local.session = new_session(self.rules.verify)
        made: requests.Session = self._local.session
        return made

    def is_private(self, host: str) -> bool:
        """Return whether a host is this machine or in a private network, and not behind this machine's proxy."""
        if getproxies() and not proxy_bypass(host):
            return not host.strip("[]").strip(".0123456789abcdef:") and _is_private(host.strip("[]"))
        try:
            found = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
        except OSError:
            return False
        return any(map(_is_private, found))


def new_session(verify: str | None) -> requests.Session:
    """Return connections to real hosts; ``verify`` is a file with CA certificates, None: this machine's."""
    made = requests.Session()
    made.auth = lambda request: request  # otherwise, logins of ~/.netrc
    made.verify = verify or True
    return made


def _is_private(address: str) -> bool:
    try:
        return not ipaddress.ip_address(address.partition("%")[0]).is_global
    except ValueError:
        return False


class _Exchange(BaseHTTPRequestHandler):
    """One connection of the program, with all its requests."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"deployer/{__version__}", ""

    def __init__(self, connection: socket.socket, scheme: str, recorder: Recorder) -> None:
        self._scheme, self._recorder, self.is_begun = scheme, recorder, False
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Print nothing."""

    def _answer(self) -> None:
        with self._recorder.answering():
            self._answer_one()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815

    def _answer_one(self) -> None:
        self.is_begun = False
        host = (self.headers.get("Host") or "").strip().lower()
        if not _HOST_HEADER.fullmatch(host) or not self.path.startswith("/"):
            self.close_connection = True
            self._send_error(400, "invalid request")
            return
        url, recorder = f"{self._scheme}://{host}{self.path}", self._recorder
        name = urlsplit(url).hostname or ""
        recorder.records.ask(name, url)
        if not recorder.rules.private and recorder.is_private(name):
            recorder.records.refuse(url, 0, "it is in a private network (--private allows it)")
            self._send_error(403, "a host in a private network")
            return
        try:
            with contextlib.closing(_Request(self, url, self._body(), recorder)) as request:
                request.answer()
        except (*_CUT, DeployerError) as error:
            if isinstance(error, SpaceError):
                recorder.records.full = error
            recorder.records.refuse(url, 0, error.message if isinstance(error, DeployerError) else _reason(error))
            self.close_connection = True
            if not self.is_begun:
                with contextlib.suppress(OSError):
                    self._send_error(502, "no answer")

    def _body(self) -> bytes | None:
        """Return the body of the request."""
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            return b"".join(self._chunks())
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MAX_BODY:
            raise TransferError("it wanted to send more than 64 MiB")
        return self.rfile.read(length) if length else None

    def _chunks(self) -> Iterator[bytes]:
        total = 0
        while size := int(self.rfile.readline(80).partition(b";")[0], 16):
            total += size
            if total > _MAX_BODY:
                raise TransferError("it wanted to send more than 64 MiB")
            yield self.rfile.read(size)
            self.rfile.readline(80)
        self.rfile.readline(80)

    def _send_error(self, status: int, text: str) -> None:
        self.begin(status, text, {"content-length": "0"})

    def begin(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        """Send the status and the headers of an answer."""
        self.is_begun = True
        self.send_response_only(status, reason)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()


class _Request:
    """One request to a real host."""

    def __init__(self, exchange: _Exchange, url: str, body: bytes | None, recorder: Recorder) -> None:
        self._exchange, self._url, self._body, self._recorder = exchange, url, body, recorder
        self._records, self._rules = recorder.records, recorder.rules
        self._name = self._records.name(url)
        self._response: requests.Response | None = None
        kept = {name: value for name, value in exchange.headers.items() if name.lower() not in _HOP}
        self._headers = {**kept, "Accept-Encoding": "identity"}
        self._headers.pop("Content-Length", None)
        plain = not any(name.lower() in _CONDITIONS for name in kept)
        self._stored = recorder.store.find(url) if exchange.command == "GET" and plain else None
        login = recorder.rules.logins(urlsplit(url).hostname or "")
        if login and not any(name.lower() == "authorization" for name in kept):
            self._headers["Authorization"] = login
        self._whole = exchange.command == "GET" and not any(name.lower() in ("range", "if-range") for name in kept)

    def close(self) -> None:
        """Give the connection back."""
        if self._response is not None:
            self._response.close()

    def answer(self) -> None:
        """Answer the program, and record it. Raises one of _CUT, DeployerError."""
        stored, wanted = self._stored, (self._rules.locked or {}).get(self._name)
        if stored and wanted == stored.sha256:
            self._from_store(stored)
            return
        if wanted:
            stored = None
        conditions = {}
        if stored:
            pairs = (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
            conditions = {name: stored.headers[key] for name, key in pairs if key in stored.headers}
        response = self._ask(conditions)
        if stored and conditions and response.status_code == 304:
            self._from_store(stored)
            return
        self._note(response)
        headers = {name.lower(): value for name, value in response.headers.items() if name.lower() not in _HOP}
        if self._exchange.command == "HEAD" or response.status_code in (204, 304) or response.status_code < 200:
            self._exchange.begin(response.status_code, response.reason or "", headers)
            return
        if not (self._whole and response.status_code == 200):
            self._exchange.wfile.write(self._relay(headers, self._pieces()))
            return
        with self._recorder.store.writing(self._url, headers) as writer:
            try:
                end = self._relay(headers, self._pieces(), writer)
            except _CUT as error:  # an OSError would be taken for one of the cache
                raise TransferError(_reason(error)) from error
            if wanted not in (None, writer.sha256):
                self._cut()
                raise IntegrityError(f"it is not the file in the lock: SHA-256 {writer.sha256}, {writer.size} bytes")
        # The program has the end of a file only when it is stored and recorded: the job may end right after it.
        self._records.add(Download(self._name, writer.sha256, writer.size, headers, self._url))
        self._exchange.wfile.write(end)

    def _ask(self, more: Mapping[str, str]) -> requests.Response:
        self.close()
        self._response = self._recorder.session().request(
            self._exchange.command, self._url, headers={**self._headers, **more}, data=self._body, stream=True,
            allow_redirects=False, timeout=TIMEOUT,
        )  # fmt: skip
        return self._response

    def _from_store(self, stored: Download) -> None:
        headers = {**stored.headers, "content-length": str(stored.size)}
        self._exchange.begin(200, "OK", headers)
        with self._recorder.store.open(self._url) as stream:
            while chunk := stream.read(_CHUNK):
                self._exchange.wfile.write(chunk)
        self._records.add(stored._replace(url=self._name, place=self._url))

    def _note(self, response: requests.Response) -> None:
        """Record an answer that is not the file."""
        code, locked = response.status_code, self._rules.locked
        if code >= 400 and self._exchange.command in ("GET", "HEAD"):
            self._records.refuse(self._url, code, status_in_words(code, response.headers))
        elif code in _REDIRECTED and (location := response.headers.get("location")):
            self._records.lead(self._url, urljoin(self._url, location))
            if code in _MOVED and locked and self._name in locked:
                self._records.refuse(self._url, code, "moved to " + shown(urljoin(self._url, location)))

    def _relay(self, headers: dict[str, str], pieces: Iterator[bytes], writer: BodyWriter | None = None) -> bytes:
        """Send an answer but its last bytes, and return these. A body of unknown size is sent in chunks.

        Args:
            writer: also receives the body.
        """
        assert self._response is not None  # noqa: S101  for mypy
        chunked = "content-length" not in headers
        if chunked and self._exchange.request_version == "HTTP/1.0":
            chunked, self._exchange.close_connection = False, True
        more = {"transfer-encoding": "chunked"} if chunked else {}
        self._exchange.begin(self._response.status_code, self._response.reason or "", {**headers, **more})
        held = b""
        try:
            for piece in pieces:
                self._exchange.wfile.write(held)
                held = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
                if writer:
                    writer.write(piece)
        except (*_CUT, DeployerError):
            self._cut()
            raise
        return held + (b"0\r\n\r\n" if chunked else b"")

    def _cut(self) -> None:
        """End the connection: the program must see that the body is not whole."""
        with contextlib.suppress(OSError):  # the program has already gone
            self._exchange.connection.shutdown(socket.SHUT_RDWR)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the body. A cut download of a file continues where it was cut."""
        response = self._response
        assert response is not None  # noqa: S101  for mypy
        whole = int(response.headers.get("content-length", -1)) if self._whole else -1
        validator = response.headers.get("etag", "") or response.headers.get("last-modified", "")
        done, tries = 0, 0
        while True:
            try:
                for piece in response.raw.stream(_CHUNK, decode_content=False):
                    done += len(piece)
                    self._records.receive(len(piece))
                    yield piece
                if whole < 0 or done >= whole:
                    return
                raise OSError("the connection was cut")
            except _CUT:
                tries += 1
                if whole < 0 or not validator or validator.startswith("W/") or tries == TRIES:
                    raise
            with contextlib.suppress(*_CUT):
                response = self._ask({"Range": f"bytes={done}-", "If-Range": validator})
                continues = response.status_code == 206
                if not continues or not response.headers.get("content-range", "").startswith(f"bytes {done}-"):
                    raise TransferError("it was cut, and its server does not continue it")


def status_in_words(code: int, headers: Mapping[str, str]) -> str:
    """Return an error status in words; hubs say more in a header."""
    reason = {
        "GatedRepo": "it is gated: accept its terms on its page, and log in (hf auth login, or HF_TOKEN)",
        "RevisionNotFound": "the hub has no such revision",
        "RepoNotFound": "the hub has no such repository, or only for people who are logged in",
        "EntryNotFound": NO_FILE,
    }.get(headers.get("x-error-code", ""))
    known = {401: "it requires a login", 403: "it forbids that", 404: "it is gone (not found)", 410: "it is gone"}
    return reason or known.get(code, f"the server answered with status {code}")


def _reason(error: Exception) -> str:
    """Return why there was no answer, in one line without addresses of objects."""
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted on this machine (`ca_bundle` in the settings, or REQUESTS_CA_BUNDLE)"
    if isinstance(error, requests.exceptions.Timeout):
        return "it did not answer in time"
    if isinstance(error, requests.exceptions.ConnectionError):
        return "it cannot be reached"
    return str(error) or type(error).__name__
