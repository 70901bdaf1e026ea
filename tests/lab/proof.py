"""The proof that no way leads out of the cluster: the same download works on the laptop and fails on each node."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tests.lab import linux
from tests.lab.command import Result, run
from tests.lab.errors import LabError
from tests.lab.node import in_network_of, inside
from tests.lab.site import LAPTOP, LAPTOP_ADDRESS, LOGIN, USER, Site

_PORT = 8080
#: An address of the network that is set aside for documentation: without a route it fails at once.
_ELSEWHERE = "192.0.2.1"
_TIMEOUT_S = 15.0

_DOWNLOAD = """\
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=3).read().decode().strip())
except OSError as error:
    sys.exit(str(getattr(error, "reason", error)))
"""
_CONTENT = b"outside"


@dataclass(frozen=True)
class Attempt:
    """A download that was tried on a node and, as it must, failed."""

    node: str
    url: str
    failure: str


def prove_no_way_out(site: Site, pids: Mapping[str, int]) -> list[Attempt]:
    """Try to get out from every node; return how each attempt failed. Raise if one did not, or if the laptop's did."""
    near = f"http://{LAPTOP_ADDRESS}:{_PORT}/"
    far = f"http://{_ELSEWHERE}/"
    wanted = [(LOGIN, near), *((node, far) for node in site.slurm_nodes if node in pids)]
    with _download_server(pids[LAPTOP]), ThreadPoolExecutor() as pool:
        control = pool.submit(run, [*in_network_of(pids[LAPTOP]), *_download(near)], timeout=_TIMEOUT_S)
        tried = [(node, url, pool.submit(_try_as_user, pids[node], url)) for node, url in wanted if node in pids]
        if control.result().check("the laptop cannot download from itself").stdout.encode().strip() != _CONTENT:
            raise LabError("the laptop's download brought something else")
        return [_must_fail(node, url, future.result()) for node, url, future in tried]


def _download(url: str) -> list[str]:
    return ["/usr/bin/python3", "-I", "-c", _DOWNLOAD, url]


def _try_as_user(holder: int, url: str) -> Result:
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"]
    return run([*inside(holder), *user, *_download(url)], timeout=_TIMEOUT_S)


def _must_fail(node: str, url: str, result: Result) -> Attempt:
    if result.returncode == 0:
        raise LabError(f"{node} is not cut off: it downloaded {url}", "see docs/lab.md, How it works")
    words = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Attempt(node, url, words)


class _Handler(socketserver.StreamRequestHandler):
    timeout = 5

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + _CONTENT + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def _download_server(laptop: int) -> Iterator[None]:
    """Serve one file in the laptop's network while the block runs."""
    server: list[_Server] = []
    failed: list[OSError] = []
    listening = threading.Event()

    def serve() -> None:  # a thread of its own, for it alone changes its network
        try:
            linux.set_network_namespace(laptop)
            server.append(_Server((LAPTOP_ADDRESS, _PORT), _Handler))
        except OSError as error:
            failed.append(error)
            return
        finally:
            listening.set()
        server[0].serve_forever(poll_interval=0.02)

    thread = threading.Thread(target=serve, name="lab-download-server", daemon=True)
    thread.start()
    listening.wait(_TIMEOUT_S)
    if failed:
        raise LabError(f"nothing can listen on the laptop: {failed[0]}")
    try:
        yield
    finally:
        server[0].shutdown()
        server[0].server_close()
        thread.join(_TIMEOUT_S)
