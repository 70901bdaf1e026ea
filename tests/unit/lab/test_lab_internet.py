"""The lab's internet: its proxy, its certificates, and the protocols of its hosts."""

from __future__ import annotations

import gzip
import hashlib
import json
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.lab.internet import Fault, Internet, nltk_data, tiny_gpt2
from tests.lab.internet.answers import text
from tests.lab.internet.hub import CDN, TOKEN

HUB = "https://huggingface.co"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("internet")


@pytest.fixture
def internet(authority: Path) -> Iterator[Internet]:
    with Internet(authority) as made:
        yield made


@pytest.fixture
def client(internet: Internet) -> Iterator[requests.Session]:
    """Yield a client that uses this internet alone, whatever the variables of this process are."""
    environment = internet.environment
    with requests.Session() as session:
        session.trust_env = False
        session.proxies = {"http": environment["http_proxy"], "https": environment["https_proxy"]}
        session.verify = environment["REQUESTS_CA_BUNDLE"]
        yield session


def test_host_has_http_and_https(internet: Internet, client: requests.Session) -> None:
    internet.files("data.example.org").put("/a b.csv", b"x,y\n")
    assert client.get("https://data.example.org/a%20b.csv?z=1").content == b"x,y\n"
    assert client.get("http://data.example.org/a%20b.csv").content == b"x,y\n"
    assert client.head("https://data.example.org/a%20b.csv").headers["Content-Length"] == "4"
    assert [tuple(each) for each in internet.requests] == [
        ("data.example.org", "GET", "/a%20b.csv?z=1", 200),
        ("data.example.org", "GET", "/a%20b.csv", 200),
        ("data.example.org", "HEAD", "/a%20b.csv", 200),
    ]


def test_urllib_uses_it(internet: Internet) -> None:
    internet.files("data.example.org").put("/a.csv", b"x,y\n")
    environment = internet.environment
    handlers = (
        urllib.request.ProxyHandler({"https": environment["https_proxy"]}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=environment["SSL_CERT_FILE"])),
    )
    with urllib.request.build_opener(*handlers).open("https://data.example.org/a.csv") as answer:
        assert answer.read() == b"x,y\n"


def test_unknown_host_is_502(internet: Internet, client: requests.Session) -> None:
    with pytest.raises(requests.exceptions.ProxyError, match="502"):
        client.get("https://nowhere.example.org/")
    assert client.get("http://nowhere.example.org/").status_code == 502
    assert [each.status for each in internet.requests] == [502, 502]
    internet.files("data.example.org").put("/a", b"")
    internet.unplug("data.example.org")
    assert client.get("http://data.example.org/a").status_code == 502


def test_another_authority_is_refused(client: requests.Session, internet: Internet) -> None:
    internet.files("data.example.org").put("/a", b"")
    client.verify = True
    with pytest.raises(requests.exceptions.SSLError):
        client.get("https://data.example.org/a")


def test_it_ends_with_open_connections(authority: Path) -> None:
    with Internet(authority) as internet, requests.Session() as session:
        internet.serve("data.example.org", lambda _: text(200, "yes"))
        session.proxies = {"https": internet.environment["https_proxy"]}
        session.verify = internet.environment["SSL_CERT_FILE"]
        session.trust_env = False
        assert session.get("https://data.example.org/").text == "yes"
        start = time.monotonic()
        internet.__exit__(None, None, None)
        assert time.monotonic() - start < 5
        with pytest.raises(requests.exceptions.ConnectionError):
            session.get("https://data.example.org/")


# ------------------------------------------------------------------------------------------------------- files, faults
def test_parts_and_conditions(internet: Internet, client: requests.Session) -> None:
    url = "https://data.example.org/a"
    internet.files("data.example.org").put("/a", b"0123456789")
    whole = client.get(url)
    part = client.get(url, headers={"Range": "bytes=4-6"})
    assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, b"456", "bytes 4-6/10")
    assert client.get(url, headers={"Range": "bytes=8-"}).content == b"89"
    assert client.get(url, headers={"Range": "bytes=-3"}).content == b"789"
    assert client.get(url, headers={"Range": "bytes=10-"}).status_code == 416
    assert client.get(url, headers={"If-None-Match": whole.headers["ETag"]}).status_code == 304
    assert client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get(url, headers={"If-Modified-Since": whole.headers["Last-Modified"]}).status_code == 304
    internet.files("data.example.org").ranges = False
    assert client.get(url, headers={"Range": "bytes=8-"}).content == b"0123456789"


def test_cut_file_is_whole_in_parts(internet: Internet, client: requests.Session) -> None:
    host = internet.files("data.example.org")
    host.put("/a", b"0123456789")
    host.fault("/a", Fault.CUT)
    with pytest.raises((requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)):
        client.get("https://data.example.org/a")
    assert client.get("https://data.example.org/a", headers={"Range": "bytes=5-"}).content == b"56789"


def test_other_faults(internet: Internet, client: requests.Session) -> None:
    host = internet.files("data.example.org")
    for name in ("html", "other", "gone", "moved", "slow", "broken", "new"):
        host.put(f"/{name}", b"0123456789")
    host.fault("/html", Fault.HTML)
    host.fault("/other", Fault.OTHER)
    host.fault("/gone", Fault.GONE)
    host.fault("/moved", Fault.MOVED, "https://data.example.org/new")
    host.fault("/slow", Fault.SLOW, "0.4")
    host.fault("/broken", Fault.BROKEN)

    def get(name: str) -> requests.Response:
        return client.get(f"https://data.example.org/{name}")

    assert get("html").text.startswith("<!DOCTYPE html>")
    first, second = get("other").content, get("other").content
    assert (first, len(second)) == (b"0123456789", 10)
    assert first != second
    assert get("gone").status_code == 404
    assert [each.status_code for each in get("moved").history] == [301]
    start = time.monotonic()
    assert get("slow").content == b"0123456789"
    assert time.monotonic() - start > 0.2
    assert [get("broken").status_code, get("broken").status_code] == [500, 200]
    host.fault("/gone", None)
    assert get("gone").status_code == 200
    host.password = "Basic bGFi"
    assert get("new").status_code == 401


# -------------------------------------------------------------------------------------------------------------- the hub
def test_hub_small_file(internet: Internet, client: requests.Session) -> None:
    body = b'{"model_type": "gpt2"}'
    repository = internet.hub.add("lab/tiny", {"config.json": body})
    head = client.head(f"{HUB}/lab/tiny/resolve/main/config.json", allow_redirects=True)
    assert [each.status_code for each in head.history] == [307]
    assert head.headers["X-Repo-Commit"] == repository.branches["main"]
    assert head.headers["ETag"] == f'"{hashlib.sha1(b"blob 22" + bytes(1) + body, usedforsecurity=False).hexdigest()}"'
    assert head.headers["Content-Length"] == str(len(body))
    got = client.get(head.url, headers={"Accept-Encoding": "gzip"}, stream=True)
    assert got.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(got.raw.read()) == body
    plain = client.get(f"{HUB}/lab/tiny/resolve/main/config.json", headers={"Accept-Encoding": "identity"})
    assert plain.content == body


def test_hub_large_file_is_elsewhere(internet: Internet, client: requests.Session) -> None:
    files = tiny_gpt2(layers=1)
    body = files["model.safetensors"]
    internet.hub.add("lab/tiny", files)
    head = client.head(f"{HUB}/lab/tiny/resolve/main/model.safetensors", allow_redirects=False)
    assert head.status_code == 302
    assert head.headers["X-Linked-Etag"] == f'"{hashlib.sha256(body).hexdigest()}"'
    assert head.headers["X-Linked-Size"] == str(len(body))
    assert "X-Xet-Hash" in head.headers
    where = urlsplit(head.headers["Location"])
    assert where.netloc == CDN
    assert "&Signature=SECRET" in where.query
    again = client.head(f"{HUB}/lab/tiny/resolve/main/model.safetensors", allow_redirects=False)
    assert again.headers["Location"] != head.headers["Location"]
    assert client.get(head.headers["Location"]).content == body
    assert client.get(head.headers["Location"].partition("?")[0]).status_code == 403
    refused = client.get(head.headers["Location"], headers={"Authorization": f"Bearer {TOKEN}"})
    assert refused.status_code == 400


def test_hub_information(internet: Internet, client: requests.Session) -> None:
    files = {"README.md": b"---\nlicense: apache-2.0\n---\n# x\n", "data/train.csv": b"a\n1\n", "data/x/y.csv": b"1"}
    repository = internet.hub.add("lab/table", files, kind="dataset")
    found = client.get(f"{HUB}/api/datasets/lab/table/revision/main?blobs=true").json()
    assert (found["sha"], found["cardData"]) == (repository.branches["main"], {"license": "apache-2.0"})
    assert [each["rfilename"] for each in found["siblings"]] == sorted(files)
    assert client.get(f"{HUB}/api/datasets/lab/table").json()["id"] == "lab/table"
    tree = f"{HUB}/api/datasets/lab/table/tree/main"
    assert [(each["path"], each["type"]) for each in client.get(tree).json()] == [
        ("README.md", "file"),
        ("data", "directory"),
    ]
    assert [each["path"] for each in client.get(f"{tree}/data").json()] == ["data/train.csv", "data/x"]
    assert len(client.get(f"{tree}?recursive=True").json()) == 5
    assert client.get(f"{tree}/nothing").headers["X-Error-Code"] == "EntryNotFound"
    asked = {"paths": ["data", "README.md", "nothing"], "expand": False}
    found = client.post(f"{HUB}/api/datasets/lab/table/paths-info/main", data=asked).json()
    assert [each["path"] for each in found] == ["README.md", "data"]
    refs = client.get(f"{HUB}/api/datasets/lab/table/refs").json()
    assert [each["name"] for each in refs["branches"]] == ["main"]
    assert client.get(f"{HUB}/datasets/lab/table/resolve/main/data/train.csv").content == b"a\n1\n"


def test_hub_refuses(internet: Internet, client: requests.Session) -> None:
    def code(path: str, **headers: str) -> tuple[int, str | None]:
        answer = client.get(HUB + path, headers=headers)
        return answer.status_code, answer.headers.get("X-Error-Code")

    internet.hub.add("lab/gated", {"config.json": b"{}"}, gated=True)
    repository = internet.hub.add("lab/open", {"config.json": b"{}"})
    assert code("/lab/gated/resolve/main/config.json") == (401, "GatedRepo")
    assert code("/lab/gated/resolve/main/config.json", Authorization="Bearer hf_other") == (403, "GatedRepo")
    assert code("/lab/gated/resolve/main/config.json", Authorization=f"Bearer {TOKEN}") == (200, None)
    assert client.get(f"{HUB}/api/models/lab/gated").json()["gated"] == "manual"
    assert code("/lab/none/resolve/main/config.json") == (401, "RepoNotFound")
    assert code("/api/models/lab/none", Authorization=f"Bearer {TOKEN}") == (404, "RepoNotFound")
    assert code("/lab/open/resolve/main/none.json") == (404, "EntryNotFound")
    old = repository.branches["main"]
    new = repository.commit({"config.json": b'{"x": 1}'})
    assert client.get(f"{HUB}/lab/open/resolve/{old}/config.json").content == b"{}"
    assert client.get(f"{HUB}/lab/open/resolve/main/config.json").headers["X-Repo-Commit"] == new
    repository.forget(old)
    assert code(f"/lab/open/resolve/{old}/config.json") == (404, "RevisionNotFound")
    internet.hub.renamed["open"] = "lab/open"
    assert client.get(f"{HUB}/open/resolve/main/config.json").content == b'{"x": 1}'
    assert client.get(f"{HUB}/api/models/open").json()["id"] == "lab/open"
    internet.hub.remove("lab/open")
    assert code("/api/models/lab/open") == (401, "RepoNotFound")


def test_tiny_model_is_whole() -> None:
    files = tiny_gpt2()
    body = files["model.safetensors"]
    size = struct.unpack("<Q", body[:8])[0]
    header: dict[str, Any] = json.loads(body[8 : 8 + size])
    del header["__metadata__"]
    assert max(each["data_offsets"][1] for each in header.values()) == len(body) - 8 - size
    assert header["wte.weight"]["shape"] == [257, 32]
    assert len(set(json.loads(files["vocab.json"]))) == 257
    assert tiny_gpt2() == files


# ---------------------------------------------------------------------------------------------------------- other hosts
def test_github(internet: Internet, client: requests.Session) -> None:
    internet.github.add("lab/net", {"hubconf.py": b"x = 1\n"}, "v1")
    internet.github.release("lab/net", "v1", {"net.pth": b"weights"})
    got = client.get("https://github.com/lab/net/zipball/v1")
    assert got.url.startswith("https://codeload.github.com/")
    assert got.content.startswith(b"PK")
    assert client.get("https://github.com/lab/net/zipball/v2").status_code == 404
    assert client.get("https://github.com/lab/net/releases/download/v1/net.pth").content == b"weights"
    assert client.get("https://raw.githubusercontent.com/lab/net/v1/hubconf.py").content == b"x = 1\n"
    assert client.get("https://github.com/lab/net/raw/v1/hubconf.py").content == b"x = 1\n"
    branches = client.get("https://api.github.com/repos/lab/net/branches?per_page=100&page=1").json()
    assert [each["name"] for each in branches] == ["v1"]
    assert client.get("https://github.com/lab/net/tree/main/").status_code == 404
    assert client.get("https://github.com/lab/net/tree/v1/").status_code == 200


def test_nltk(internet: Internet, client: requests.Session) -> None:
    internet.github.add("nltk/nltk_data", nltk_data({"corpora/stopwords": {"english": b"the\n"}}), "gh-pages")
    pages = "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages"
    index = client.get(f"{pages}/index.xml").text
    body = client.get(f"{pages}/packages/corpora/stopwords.zip").content
    assert f'checksum="{hashlib.md5(body, usedforsecurity=False).hexdigest()}"' in index


def test_openml(internet: Internet, client: requests.Session) -> None:
    columns = {"age": "NUMERIC", "class": "{yes,no}"}
    number = internet.openml.add("lab", columns, [[1, "yes"], ["?", "no"]], "class")
    api = "https://api.openml.org/api/v1/json"
    found = client.get(f"{api}/data/list/data_name/lab/limit/2/status/active/").json()
    assert found["data"]["dataset"][0]["did"] == number
    description = client.get(f"{api}/data/{number}").json()["data_set_description"]
    body = client.get(description["url"]).content
    assert hashlib.md5(body, usedforsecurity=False).hexdigest() == description["md5_checksum"]
    features = client.get(f"{api}/data/features/{number}").json()["data_features"]["feature"]
    assert features[1]["nominal_value"] == ["yes", "no"]
    assert client.get(f"{api}/data/qualities/{number}").json()["data_qualities"]["quality"][0]["value"] == 2.0
    assert client.get(f"{api}/data/list/data_name/other/limit/2/").status_code == 412
