"""The laptop's side of a notebook, with a fake connection and a fake Jupyter on a port of this machine."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from deployer.cli.laptop import notebook
from deployer.connected.transfer.remote import Attended
from deployer.contract.base.errors import TransferError

TOKEN = "5" * 48
LINE = f"deployer-answer:10.1.0.5 4711 lab {TOKEN}".encode()


class FakeRemote:
    """A connection whose command prints these lines."""

    host = "login1"

    def __init__(self, *lines: bytes) -> None:
        self.lines, self.events = lines, []  # type: tuple[bytes, ...], list[Any]

    def attach(self, words: Sequence[str], caller: Sequence[str], heard: Callable[[bytes], bool]) -> Attended:
        self.events.append([line for line in self.lines if not heard(line)])
        return Attended(0, "", "")

    @contextlib.contextmanager
    def tunnel(self, *words: object) -> Iterator[None]:
        self.events.append(words)
        yield
        self.events.append("closed")


class JupyterHandler(http.server.BaseHTTPRequestHandler):
    """Answers only those who know the token."""

    def do_GET(self) -> None:
        known = self.path == "/api/status" and self.headers["Authorization"] == f"token {TOKEN}"
        self.send_response(200 if known else 403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.HTTPServer(("127.0.0.1", 0), JupyterHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_the_address_is_printed_when_the_notebook_answers(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    remote: Any = FakeRemote(b"noise", LINE)
    assert notebook.show(remote, ["notebook", "trained"], [], port) == 0
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/lab?token={TOKEN}\n"
    assert remote.events == [(port, "10.1.0.5", "4711"), [b"noise"], "closed"]


@pytest.mark.parametrize(
    "line",
    [
        f"deployer-answer:10.1.0.5:22 4711 lab {TOKEN}",  # would lead elsewhere
        f"deployer-answer:-oProxyCommand=x 4711 lab {TOKEN}",
        f"deployer-answer:10.1.0.5 4711 ../evil {TOKEN}",
        "deployer-answer:10.1.0.5 4711 lab <script>",
    ],
)
def test_an_answer_of_another_form_opens_nothing(line: str, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    remote: Any = FakeRemote(line.encode())
    notebook.show(remote, ["notebook"], [], port)
    assert remote.events == [[line.encode()]]
    assert capsys.readouterr().out == ""


@pytest.mark.thorough
def test_a_port_that_the_login_node_cannot_reach(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "_ATTEMPTS", 2)
    remote: Any = FakeRemote(LINE.replace(b"5555", b"6666"))  # whoever answers there does not know our token
    with pytest.raises(TransferError, match=r"login1 cannot reach port 4711 of the node 10\.1\.0\.5") as caught:
        notebook.show(remote, ["notebook"], [], port)
    assert "AllowTcpForwarding" in caught.value.hint
    assert capsys.readouterr().out == ""
