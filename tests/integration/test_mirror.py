"""A Debian base from another mirror than Debian's own: it serves all packages, and no trace of it stays."""

import subprocess
import tarfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deployer.connected.image.bases import base
from deployer.connected.image.definition.definition import Base
from deployer.connected.image.definition.settings import BuildSettings


class Mirror(ThreadingHTTPServer):
    """Hands on what another mirror has, and notes what was asked for."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.behind = behind
        self.asked: list[str] = []
        self.host = f"127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        try:
            with urllib.request.urlopen(self.server.behind + self.path, timeout=60) as answer:
                data = answer.read()
        except OSError:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def apt_files(tarball: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(tarball) as archive:
        for entry in archive.getmembers():
            if entry.isfile() and entry.name.lstrip("./").startswith("etc/apt/"):
                stream = archive.extractfile(entry)
                found[entry.name.lstrip("./")] = stream.read() if stream else b""
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)  # two bases, each fetched anew
@pytest.mark.needs("root", "mmdebstrap")
def test_another_mirror_serves_a_base_and_leaves_no_trace(tmp_path: Path) -> None:
    base._make(Base(debian="bookworm"), BuildSettings(), tmp_path / "plain.tar")
    plain = apt_files(tmp_path / "plain.tar")
    own = next(line for line in plain["etc/apt/sources.list"].decode().splitlines() if line.startswith("deb "))
    server = Mirror(own.split()[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        sources = f"deb http://{server.host} bookworm main\n"
        base._make(Base(debian="bookworm"), BuildSettings(sources=sources), tmp_path / "other.tar")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert any(path.endswith(".deb") for path in server.asked)
    assert apt_files(tmp_path / "other.tar") == plain
    found = subprocess.run(["grep", "-c", "-a", server.host, tmp_path / "other.tar"], capture_output=True, check=False)
    assert found.stdout == b"0\n"
