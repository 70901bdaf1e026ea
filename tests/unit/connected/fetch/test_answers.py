"""Which answers are kept for a replay, and with which certificates."""

import json
import ssl
from pathlib import Path

import pytest

from deployer.connected.fetch import answers
from deployer.connected.fetch.downloads import Download, DownloadStore
from deployer.connected.fetch.recorder import Records
from deployer.contract.site import replay

HOST = "https://data.example.org/"


@pytest.fixture
def store(tmp_path: Path) -> DownloadStore:
    return DownloadStore(tmp_path / "store")


def asked(records: Records, store: DownloadStore, url: str, body: bytes, led_from: str = "", **headers: str) -> str:
    """Record an answer as the recorder does; return its digest."""
    records.ask("host", url)
    if led_from:
        records.ask("host", led_from)
        records.lead(led_from, url)
    with store.writing(url, headers) as writer:
        writer.write(body)
    records.add(Download(records.name(url), writer.sha256, writer.size, headers, url))
    return writer.sha256


def test_answers_without_a_file_are_kept_by_the_exact_address(store: DownloadStore, tmp_path: Path) -> None:
    records, target = Records(), tmp_path / "new" / "replay"
    kept = asked(records, store, HOST + "kept", b"kept")
    asked(records, store, HOST + "a?token=secret&x=1", b"a", **{"content-type": "text/csv", "etag": "1\x1b[2J"})
    asked(records, store, "https://cdn.example.org/b?Signature=1", b"b", led_from=HOST + "b")
    asked(records, store, "https://huggingface.co/api/models", b"{}")
    records.ask("host", HOST + "refused")
    assert answers.keep(records, store, {kept}, target, tmp_path / "last") == [HOST + "a?x=1", HOST + "b"]
    names = {replay.name(HOST + "a?token=secret&x=1"), replay.name(HOST + "b")}
    assert {path.name for path in target.iterdir()} == names | {"hosts", "key.pem", "certificates.pem"}
    head, _, body = (target / replay.name(HOST + "a?token=secret&x=1")).read_bytes().partition(b"\n")
    assert (json.loads(head), body) == ({"content-type": "text/csv"}, b"a")
    assert (target / "hosts").read_text() == "data.example.org"
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(target / "key.pem")
    trusted = ssl.create_default_context(cafile=str(target / "certificates.pem")).get_ca_certs()
    assert len(trusted) > 50
    assert (target / "certificates.pem").read_text().count("PRIVATE") == 0


def test_large_answers_are_left(store: DownloadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LARGEST", 10)
    monkeypatch.setattr(answers, "MOST", 15)
    records = Records()
    for name, size in (("a", 11), ("b", 10), ("c", 6), ("d", 5)):
        asked(records, store, HOST + name, name.encode() * size)
    assert answers.keep(records, store, (), tmp_path / "new", tmp_path / "last") == [HOST + "b", HOST + "d"]
    assert answers.keep(Records(), store, (), tmp_path / "none", tmp_path / "last") == []
    assert not (tmp_path / "none").exists()


def test_certificates_are_used_again_for_the_same_hosts(store: DownloadStore, tmp_path: Path) -> None:
    records = Records()
    asked(records, store, HOST + "a", b"a")
    for new, last in (("1", "0"), ("2", "1")):
        answers.keep(records, store, (), tmp_path / new, tmp_path / last)
    asked(records, store, "https://other.example.org/a", b"b")
    answers.keep(records, store, (), tmp_path / "3", tmp_path / "2")
    one, two, three = ((tmp_path / name / "key.pem").read_text() for name in "123")
    assert one == two != three
    assert (tmp_path / "3" / "hosts").read_text() == "data.example.org\nother.example.org"


def test_an_answer_that_another_fetch_replaced_is_left(store: DownloadStore, tmp_path: Path) -> None:
    records = Records()
    asked(records, store, HOST + "a", b"a")
    with store.writing(HOST + "a", {}) as writer:
        writer.write(b"other")
    assert answers.keep(records, store, (), tmp_path / "new", tmp_path / "last") == []
