"""The replay of recorded answers: what programs get, and what other users and odd requests get."""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from deployer.contract.site import replay
from deployer.site.container import replay_proxy

HOST, PLAIN = "data.example.org", "plain.example.org"
BODY = bytes(range(256)) * 1000
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """A key and certificate of HOST, which is its own authority."""
    folder = tmp_path_factory.mktemp("key")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", "key.pem", "-out", "certificates.pem", "-subj", "/CN=" + HOST]
    subprocess.run(
        [*words, "-addext", "subjectAltName=DNS:" + HOST], cwd=str(folder), check=True, stderr=subprocess.DEVNULL
    )
    return folder


@pytest.fixture
def folder(tmp_path, key):
    made = tmp_path / "replay"
    made.mkdir()
    certificate = (key / replay.CERTIFICATES).read_text()
    (made / replay.CERTIFICATES).write_text(certificate)
    (made / replay.KEY).write_text((key / "key.pem").read_text() + certificate)
    (made / replay.HOSTS).write_text(HOST + "\n")
    record(made, f"https://{HOST}/a.csv?v=1", BODY, {"content-type": "text/csv"})
    record(made, f"https://{HOST}/empty", b"", {})
    record(made, f"http://{PLAIN}/b.txt", b"plain", {"etag": '"1"'})
    return made


def record(folder, url, body, headers):
    (folder / replay.name(url)).write_bytes(json.dumps(headers).encode() + b"\n" + body)


@pytest.fixture
def port(folder):
    """The port of a proxy."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(200)
    number = listener.getsockname()[1]
    alive, held = os.pipe()
    proxy = replay_proxy.ReplayProxy(str(folder), TOKEN)
    thread = threading.Thread(target=proxy.serve, args=(listener.detach(), alive))
    thread.start()
    yield number
    os.close(held)
    thread.join()
    os.close(alive)


def login(token=TOKEN):
    return {"Proxy-Authorization": "Basic " + base64.b64encode(b"deployer:" + token.encode()).decode()}


@contextlib.contextmanager
def tunnel(port, folder, host=HOST, token=TOKEN):
    context = ssl.create_default_context(cafile=str(folder / replay.CERTIFICATES))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    connection.set_tunnel(host, 443, headers=login(token))
    try:
        yield connection
    finally:
        connection.close()


def get(connection, path, method="GET", **headers):
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}


def test_a_connection_gets_whole_answers_their_parts_and_their_heads(port, folder):
    with tunnel(port, folder) as connection:
        status, body, headers = get(connection, "/a.csv?v=1")
        assert (status, body, headers["content-type"]) == (200, BODY, "text/csv")
        status, body, headers = get(connection, "/a.csv?v=1", "HEAD")
        assert (status, body, headers["content-length"]) == (200, b"", str(len(BODY)))
        assert get(connection, "/empty")[:2] == (200, b"")


@pytest.mark.parametrize(
    ("asked", "status", "part", "shown"),
    [
        ("bytes=0-0", 206, slice(0, 1), "0-0"),
        ("bytes=1000-", 206, slice(1000, None), "1000-255999"),
        ("bytes=-7", 200, slice(None), None),
        ("bytes=255999-9999999", 206, slice(-1, None), "255999-255999"),
        ("bytes=256000-", 416, slice(0, 0), "*"),
        ("bytes=7-5", 416, slice(0, 0), "*"),
        ("bytes=0-1,5-6", 200, slice(None), None),
        ("lines=1-2", 200, slice(None), None),
    ],
)
def test_parts(port, folder, asked, status, part, shown):
    with tunnel(port, folder) as connection:
        seen, body, headers = get(connection, "/a.csv?v=1", Range=asked)
    assert (seen, body) == (status, BODY[part])
    assert headers.get("content-range") == (shown and "bytes %s/256000" % shown)


def test_plain_addresses_are_answered_too(port):
    for url in (f"http://{PLAIN}/b.txt", f"http://me:secret@{PLAIN.upper()}/b.txt"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            status, body, headers = get(connection, url, **login())
            assert (status, body, headers["etag"]) == (200, b"plain", '"1"')


def test_a_program_may_use_a_socket_of_ipv6(port):
    with contextlib.closing(http.client.HTTPConnection("::ffff:127.0.0.1", port, timeout=20)) as connection:
        assert get(connection, f"http://{PLAIN}/b.txt", **login())[:2] == (200, b"plain")


def test_what_was_not_recorded_is_complained_about_once_without_its_parameters(port, folder, capfd):
    for _ in range(2):
        with tunnel(port, folder) as connection:
            assert get(connection, "/other?token=secret")[0] == 502
    with tunnel(port, folder) as connection:
        assert get(connection, "/a.csv?v=1", "POST", Content_Length="0")[0] == 502
    with tunnel(port, folder, "nowhere.invalid") as connection, pytest.raises(OSError, match="502"):
        get(connection, "/")
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(": not recorded")[0] for line in lines] == [
        f"deployer: GET https://{HOST}/other",
        f"deployer: POST https://{HOST}/a.csv",
        "deployer: CONNECT nowhere.invalid:443",
    ]


@pytest.mark.parametrize("token", ["", "0123456789abcdeg", TOKEN + "0", "\x1b" * 100])
def test_another_token_gets_nothing(port, folder, token, capfd):
    with tunnel(port, folder, token=token) as connection, pytest.raises(OSError, match="407"):
        get(connection, "/a.csv?v=1")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        assert get(connection, f"http://{PLAIN}/b.txt", **login(token))[0] == 407
    assert capfd.readouterr().err == ""


def test_a_process_of_another_user_gets_nothing(port, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection), pytest.raises((http.client.HTTPException, OSError)):
        get(connection, f"http://{PLAIN}/b.txt", **login())


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/key.pem", "//key.pem", "/%2e%2e/key.pem", "/hosts"])
def test_an_address_is_never_a_path(port, folder, path):
    with tunnel(port, folder) as connection:
        status, body, _ = get(connection, path)
        assert (status, b"PRIVATE" in body, b"root:" in body) == (502, False, False)


@pytest.mark.parametrize("line", ["GET /", "GET ftp://a/b", "CONNECT x", "CONNECT a:99999"])
def test_odd_requests_are_refused(port, line):
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        head = "".join("%s: %s\r\n" % pair for pair in login().items())
        connection.sendall(("%s HTTP/1.1\r\n%s\r\n" % (line, head)).encode())
        assert connection.recv(100)[9:12] in (b"", b"502")  # an impossible port gets no answer


@pytest.fixture
def few(monkeypatch):
    """Let the proxy have few connections, and wait for a short time."""
    monkeypatch.setattr(replay_proxy, "_CONNECTIONS", 20)
    monkeypatch.setattr(replay_proxy._Exchange, "timeout", 1.0)


@pytest.mark.thorough
def test_slow_and_many_connections_end_and_leave_room_for_others(few, port, folder):
    with contextlib.ExitStack() as end:
        for _ in range(40):
            slow = end.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            slow.sendall(b"GET ")
        with tunnel(port, folder) as connection:
            assert get(connection, "/a.csv?v=1")[:2] == (200, BODY)


def test_another_host_is_reached_as_without_the_proxy(port, capfd):
    def serve(listener, seen):
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(1000).decode())
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnear")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2)
        seen = []
        thread = threading.Thread(target=serve, args=(listener, seen))
        thread.start()
        near = "127.0.0.1:%d" % listener.getsockname()[1]
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            assert get(connection, f"http://{near}/x?y=1", **login())[:2] == (200, b"near")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.set_tunnel(near, headers=login())
            assert get(connection, "/z")[:2] == (200, b"near")
        thread.join()
    assert (seen[0].splitlines()[0], seen[1].splitlines()[0]) == ("GET /x?y=1 HTTP/1.1", "GET /z HTTP/1.1")
    assert "roxy" not in "".join(seen)
    assert capfd.readouterr().err == ""


RANK = """
import os, sys
if "WITHOUT" in os.environ:
    sys.modules[os.environ["WITHOUT"]] = None
from deployer.site.rank import rank
os._exit(rank.main(["--out", sys.argv[1], "--", *sys.argv[2:]]))
"""
PROGRAM = """
import os, subprocess, sys, urllib.request
def read(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()
secure, plain = sys.argv[1:3]
assert read(secure) == read(secure) == subprocess.check_output(["curl", "-fsS", secure])
assert read(plain) == b"plain" == subprocess.check_output(["wget", "-qO-", plain])
token = os.environ["https_proxy"].split("@")[0].split(":")[-1]
lines = subprocess.check_output(["ps", "-eo", "args"])
assert len(token) == 32 and token.encode() not in lines and os.environ["grpc_proxy"] == ""
print(len(read(secure)), os.environ["no_proxy"])
"""


def ranked(tmp_path, folder, *command, **variables):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "FETCH_REPLAY": str(folder), **variables}
    words = [sys.executable, "-c", RANK, str(tmp_path), *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "universal_newlines": True}
    return subprocess.run(words, env=environment, timeout=50, check=False, start_new_session=True, **pipes)


@pytest.mark.thorough
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("wget")), reason="needs curl and wget")
def test_programs_below_a_rank_read_what_was_recorded(tmp_path, folder):
    urls = f"https://{HOST}/a.csv?v=1", f"http://{PLAIN}/b.txt"
    done = ranked(tmp_path, folder, sys.executable, "-c", PROGRAM, *urls, NO_PROXY="cluster.local")
    assert done.returncode == 0, done.stderr
    near = "localhost,127.0.0.1,::1,%s,cluster.local" % os.uname()[1]
    assert (done.stdout, done.stderr) == ("256000 %s\n" % near, "")


def test_a_job_with_a_proxy_keeps_it_and_a_missing_record_is_named(tmp_path, folder):
    show = ["sh", "-c", "echo $https_proxy"]
    assert ranked(tmp_path, folder, *show, https_proxy="http://p:1").stdout == "http://p:1\n"
    read = ["sh", "-c", "curl -sS https://%s/; echo goes on" % HOST]
    for place, without in ((folder / "none", "none"), (folder, "ssl")):
        done = ranked(tmp_path, place, *read, WITHOUT=without)
        assert (done.returncode, done.stdout) == (0, "goes on\n")
        assert done.stderr.count("deployer: the job runs without the answers that fetch recorded: ") == 1


@pytest.mark.thorough
def test_the_proxy_answers_while_a_launcher_ends_the_rank(tmp_path, folder):
    done = ranked(tmp_path, folder, "sh", "-c", "trap 'curl -fsS http://%s/b.txt; exit' TERM; kill 0" % PLAIN)
    assert (done.returncode, done.stdout) == (0, "plain"), done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["exit 3", "kill -KILL $$", "kill -KILL $PPID"])
def test_the_proxy_ends_with_the_rank(tmp_path, folder, how):
    done = ranked(tmp_path, folder, "sh", "-c", "echo $https_proxy; curl -sS $https_proxy/ >/dev/null; " + how)
    port = int(done.stdout.rpartition(":")[2])
    until = time.time() + 10
    while time.time() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.05)
    raise AssertionError("it still listens")
