"""The recorder between a program and the lab's internet: what the program gets, and what is recorded."""

import hashlib
import http.client
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deployer.connected.fetch.downloads import DownloadStore, shown
from deployer.connected.fetch.recorder import FetchRules, Recorder
from deployer.connected.rehearse.world import doors
from tests.lab.internet import Fault, Internet
from tests.lab.internet.hub import TOKEN

HOST, PLAIN = "data.example.org", "plain.example.org"
BODY = b"0123456789abcdef" * 40_000


class Got(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


class Program:
    """A program that reaches the recorder through doors on this machine."""

    def __init__(self, recorder: Recorder, ports: tuple[int, int]) -> None:
        self._recorder, (self._secure, self._plain) = recorder, ports
        self._context = ssl.create_default_context(cadata=recorder.certificate.decode())

    def get(self, url: str, method: str = "GET", **headers: str) -> Got:
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        if scheme == "https":
            connection: http.client.HTTPConnection = _Tls(host, self._secure, self._context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self._plain, timeout=20)
        connection.request(method, "/" + path, headers={"Host": host, **headers})
        response = connection.getresponse()
        try:
            return Got(
                response.status, response.read(), {name.lower(): value for name, value in response.headers.items()}
            )
        finally:
            connection.close()
            self._recorder.settle()


class _Tls(http.client.HTTPSConnection):
    """A connection to a door on this machine, with the name of the real host."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, timeout=20)
        self._name, self._own = host, context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._own.wrap_socket(self.sock, server_hostname=self._name)


Start = Callable[..., tuple[Program, Recorder]]


@pytest.fixture
def internet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Internet]:
    with Internet(tmp_path / "internet") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        made.files(HOST).put("/a.bin", BODY)
        made.files(PLAIN).put("/b.bin", b"plain")
        yield made


@pytest.fixture
def start(internet: Internet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    made: list[Recorder] = []
    monkeypatch.setattr(doors, "ADDRESS", "127.0.0.1")
    monkeypatch.setattr(doors, "PORTS", (0, 0))

    def begin(**rules: object) -> tuple[Program, Recorder]:
        values = {"locked": None, "logins": lambda _: "", **rules}
        recorder = Recorder(DownloadStore(tmp_path / "store"), FetchRules(**values))  # type: ignore[arg-type]
        made.append(recorder)
        return Program(recorder, doors.open_for(recorder.doors)), recorder

    yield begin
    for recorder in made:
        recorder.close()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_a_file_arrives_whole_and_is_recorded(start: Start) -> None:
    program, recorder = start()
    assert program.get(f"https://{HOST}/a.bin").body == BODY
    assert program.get(f"http://{PLAIN}/b.bin").body == b"plain"
    found = recorder.records.downloads
    assert {url: (each.sha256, each.size) for url, each in found.items()} == {
        f"https://{HOST}/a.bin": (digest(BODY), len(BODY)),
        f"http://{PLAIN}/b.bin": (digest(b"plain"), 5),
    }
    assert recorder.records.asked == {HOST: 1, PLAIN: 1}
    assert recorder.records.received == len(BODY) + 5


def test_a_cut_download_continues_where_it_was_cut(start: Start, internet: Internet) -> None:
    internet.files(HOST).fault("/a.bin", Fault.CUT)
    program, recorder = start()
    assert program.get(f"https://{HOST}/a.bin").body == BODY
    assert [seen.status for seen in internet.requests] == [200, 206]
    assert recorder.records.received == len(BODY)


def test_a_cut_that_cannot_continue_is_a_cut_for_the_program_too(start: Start, internet: Internet) -> None:
    internet.files(HOST).fault("/a.bin", Fault.CUT)
    internet.files(HOST).ranges = False
    program, recorder = start()
    with pytest.raises(http.client.IncompleteRead):
        program.get(f"https://{HOST}/a.bin")
    assert recorder.records.downloads == {}
    assert list(recorder.records.refusals) == [f"https://{HOST}/a.bin"]


def test_what_has_not_changed_is_not_downloaded_again(start: Start, internet: Internet) -> None:
    program, _ = start()
    program.get(f"https://{HOST}/a.bin")
    program, recorder = start()
    assert program.get(f"https://{HOST}/a.bin").body == BODY
    assert [seen.status for seen in internet.requests] == [200, 304]
    assert recorder.records.received == 0
    assert recorder.records.downloads[f"https://{HOST}/a.bin"].sha256 == digest(BODY)
    internet.files(HOST).put("/a.bin", b"new")
    assert program.get(f"https://{HOST}/a.bin").body == b"new"


def test_a_damaged_file_of_the_cache_is_not_used(start: Start, tmp_path: Path) -> None:
    program, _ = start()
    program.get(f"https://{HOST}/a.bin")
    (body,) = (tmp_path / "store").glob("*.body")
    body.write_bytes(b"x" * len(BODY))
    assert program.get(f"https://{HOST}/a.bin").body == BODY


def test_the_file_of_the_lock_comes_from_the_cache_without_a_network(start: Start, internet: Internet) -> None:
    program, _ = start()
    program.get(f"https://{HOST}/a.bin")
    internet.unplug(HOST)
    program, _ = start(locked={f"https://{HOST}/a.bin": digest(BODY)})
    assert program.get(f"https://{HOST}/a.bin").body == BODY


def test_the_program_never_gets_the_end_of_another_file_than_the_lock_s(start: Start) -> None:
    program, recorder = start(locked={f"https://{HOST}/a.bin": "0" * 64})
    with pytest.raises(http.client.IncompleteRead):
        program.get(f"https://{HOST}/a.bin")
    (refusal,) = recorder.records.refusals.values()
    assert "not the file in the lock" in refusal.why
    assert digest(BODY) in refusal.why


@pytest.mark.parametrize(
    ("fault", "detail", "why"),
    [
        (Fault.GONE, "", "it is gone (not found)"),
        (Fault.MOVED, "https://other.example/x", "moved to https://other.example/x"),
    ],
)
def test_a_file_of_the_lock_that_is_gone_or_moved_is_named(
    start: Start, internet: Internet, fault: Fault, detail: str, why: str
) -> None:
    internet.files(HOST).fault("/a.bin", fault, detail)
    program, recorder = start(locked={f"https://{HOST}/a.bin": digest(BODY)})
    program.get(f"https://{HOST}/a.bin")
    assert [each.why for each in recorder.records.refusals.values()] == [why]


def test_a_page_instead_of_a_file_is_seen(start: Start, internet: Internet) -> None:
    internet.files(HOST).fault("/a.bin", Fault.HTML)
    program, recorder = start()
    program.get(f"https://{HOST}/a.bin")
    assert [each.is_page for each in recorder.records.downloads.values()] == [True]


def test_an_unknown_host_is_no_answer(start: Start) -> None:
    program, recorder = start()
    assert program.get("https://unknown.example/x").status == 502
    assert list(recorder.records.refusals) == ["https://unknown.example/x"]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "192.168.1.2"])
def test_hosts_of_private_networks_are_refused(start: Start, internet: Internet, host: str) -> None:
    program, recorder = start()
    assert program.get(f"http://{host}/latest/meta-data").status == 403
    assert internet.requests == []
    assert "private network" in next(iter(recorder.records.refusals.values())).why


def test_the_login_reaches_the_hub_alone_and_nothing_else(start: Start, internet: Internet, tmp_path: Path) -> None:
    made = internet.hub.add("org/model", {"model.safetensors": BODY, "config.json": b"{}"}, gated=True)
    revision = made.revision("main")
    secret = TOKEN
    program, recorder = start(logins=lambda host: f"Bearer {secret}" if host == "huggingface.co" else "")
    first = program.get(f"https://huggingface.co/org/model/resolve/{revision}/model.safetensors")
    assert first.status == 302
    assert program.get(first.headers["location"]).body == BODY
    program.get(f"https://{HOST}/a.bin")
    assert f"https://huggingface.co/org/model/resolve/{revision}/model.safetensors" in recorder.records.downloads
    written = [path.read_text() for path in (tmp_path / "store").glob("*.json")]
    assert not [text for text in (*written, *recorder.records.downloads) if secret in text or "Signature" in text]
    program, recorder = start()
    assert program.get(f"https://huggingface.co/org/model/resolve/{revision}/config.json").status in (401, 403)
    assert "gated" in next(iter(recorder.records.refusals.values())).why


def test_parts_and_questions_are_passed_on_but_are_not_files(start: Start) -> None:
    program, recorder = start()
    got = program.get(f"https://{HOST}/a.bin", Range="bytes=0-9")
    assert (got.status, got.body) == (206, BODY[:10])
    assert program.get(f"https://{HOST}/a.bin", method="HEAD").headers["content-length"] == str(len(BODY))
    assert recorder.records.downloads == {}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:word@h.example/a?id=7&token=x&confirm=t", "https://h.example/a?id=7&confirm=t"),
        ("https://h.example/a?Expires=1&Signature=x&Key-Pair-Id=K&X-Amz-Date=2", "https://h.example/a"),
        ("https://h.example/a?api_key=k#frag", "https://h.example/a"),
    ],
)
def test_logins_in_addresses_are_left_out(url: str, expected: str) -> None:
    assert shown(url) == expected


def test_an_older_file_of_the_cache_is_not_taken_for_the_lock_s(start: Start, internet: Internet) -> None:
    program, _ = start()
    program.get(f"https://{HOST}/a.bin")
    program, recorder = start(locked={f"https://{HOST}/a.bin": "0" * 64})
    with pytest.raises(http.client.IncompleteRead):
        program.get(f"https://{HOST}/a.bin")
    assert [seen.status for seen in internet.requests] == [200, 200]
    assert recorder.records.downloads == {}
