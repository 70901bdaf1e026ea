"""Secrets in files: what is found, what is much like one, and files made to be slow."""

import time

import pytest

from deployer.connected.rootfs.entries import InMemory
from deployer.connected.rootfs.package_files import PackageFiles
from deployer.connected.rootfs.secrets import MAX_SIZE, Secret, in_content, in_files, in_text
from tests import planted
from tests.planted import private_key, word

TOKEN = "hf_" + word(34)


@pytest.mark.parametrize(("name", "content", "kind", "line"), planted.FILES)
def test_a_secret_is_found(name: str, content: str, kind: str, line: int) -> None:
    found = list(in_content(f"/root/{name}", content.encode()))
    assert Secret(f"/root/{name}", line, kind) in found
    assert len(found) == 1 or kind == "a login"


@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
        "HEAD = '-----BEGIN RSA PRIVATE KEY-----'\nif text.startswith(HEAD):\n    return text.partition(HEAD)\n" * 9,
        private_key().replace("PRIVATE", "PUBLIC"),
        "AKIAIOSFODNN7EXAMPLE and hf_" + 34 * "x" + " and ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "x" + TOKEN,
        TOKEN[:-4],
        "https://user:password@h.uni.edu http://me:$PW@h.uni.edu http://a:<pw>@h.uni.edu http://h.uni.edu:80/a@b",
        "proxy = http://alice:wonder@proxy:3128 http://alice:wonder@x.example.com http://alice:wonder@localhost",
        "amqp://guest:guest@rabbitmq:5672 db://scott:tiger^5HHH@db17/x http://a:p%40ssword@h.org s3://a:my_secret_key@b/c",
        "wandb login\nwandb.login()\ncommit 0123456789abcdef0123456789abcdef01234567",
        "aws_secret_access_key = ${SECRET}",
    ],
)
def test_what_is_much_like_one_is_not(content: str) -> None:
    assert list(in_content("x", content.encode())) == []


def test_a_login_without_its_password_is_none() -> None:
    texts = {".netrc": "machine x login me", ".docker/config.json": '{"auths": {}}', ".env": "A=bcdefgh"}
    for name, content in texts.items():
        assert list(in_content(name, content.encode())) == []


def test_files_of_packages_are_left_out_but_not_their_settings() -> None:
    key = InMemory(private_key().encode())
    lists = ("usr/share/x.pem", "etc/x.pem", "lib/cert.pem")
    files = [
        ("var/lib/dpkg/info/x.list", InMemory(b"".join(b"/%s\n" % name.encode() for name in lists))),
        *((name, key) for name in ("usr/share/x.pem", "etc/x.pem", "usr/lib/cert.pem")),
        ("opt/py/site-packages/x-1.dist-info/RECORD", InMemory(b"x/test.key,sha256=a,9\n")),
        *((f"opt/py/site-packages/x/{name}", key) for name in ("test.key", "mine.key")),
        ("usr/local/lib/python3.11/test/certdata/keycert.pem", key),
        ("srv/node_modules/tls/key.pem", key),
        ("usr/local/go/src/crypto/tls/testdata/example-key.pem", key),
        ("usr/share/ansible/collections/ansible_collections/a/b/plugins/modules/c.py", key),
        ("usr/local/aws-cli/v2/2.1/dist/awscli/examples/iot/x.rst", key),
        ("usr/share/doc/puma/examples/puma_keypair.pem", key),
        ("opt/env/site-packages/tornado/test/test.key", key),
        ("srv/app/tests/test.key", key),
        ("etc/ssh/ssh_host_rsa_key", key),
        ("opt/x.pyc", key),
        ("opt/large", InMemory(bytes(private_key(), "ascii").ljust(MAX_SIZE + 1))),
        ("opt/binary", InMemory(b"\0" + private_key().encode())),
        ("opt/empty", InMemory()),
    ]  # fmt: skip
    found = {secret.path for secret in in_files(files, PackageFiles.of(files))}
    assert found == {"/etc/x.pem", "/opt/py/site-packages/x/mine.key", "/srv/app/tests/test.key"}


def test_a_name_is_printable_and_the_value_is_nowhere() -> None:
    (found,) = in_files([("a\x1b[2J\udcff\n/k", InMemory(TOKEN.encode()))])
    assert found.path == "/a\\x1b[2J\\xff\\n/k"
    assert TOKEN[3:] not in str(found)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"|1 HF_TOKEN={TOKEN} /bin/sh -c pip install x", ["a Hugging Face token", "a value of HF_TOKEN"]),
        ("|1 DB_PASSWORD=hunter22 /bin/sh -c ./load", ["a value of DB_PASSWORD"]),
        ('/bin/sh -c #(nop)  ENV API_KEY="abcdefgh"', ["a value of API_KEY"]),
        ("RUN export TOKEN=$(cat /run/secrets/t) SECRET_FILE=/run/secrets/x # buildkit", []),
        ("ENV LANG=C.UTF-8 GPG_KEY=E3FF2839C048B25C084DEBE9B26995E310250568", []),
    ],
)
def test_a_command_of_the_history(text: str, kinds: list[str]) -> None:
    assert in_text(text) == kinds


HOSTILE = [
    b"A", b"-", b"_", b":", b"w", b"\t", b"://", b"://a:", b"://aaaaaaa:bbbbbbbbb", b"sk-", b"SECRET_",
    b"sk-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", b"wandb login ", b"wandb.login 0123456789abcdef", b"-----BEGIN ",
    b"-----BEGIN RSA PRIVATE KEY-----", b"-----BEGIN RSA PRIVATE KEY-----\n", b"hf_" + b"a" * 34 + b" ", b"\x80\xff",
]  # fmt: skip
SLOW_LOGINS = [
    (".netrc", b"password  "), (".git-credentials", b"://"), (".pypirc", b"\t"), (".pypirc", b"password\n"),
    (".pgpass", b"a:b:\n"), (".npmrc", b"_auth"), ("/.docker/config.json", b'"auth" \t'), (".env", b"export A"),
    ("/.kube/config", b"- "), (".env", b"A" * 80), (".env", b"TOKEN=\n"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "part"), [*(("x", part) for part in HOSTILE), *SLOW_LOGINS])
def test_a_file_made_to_be_slow_is_not(name: str, part: bytes) -> None:
    content = part * (MAX_SIZE // 8 // len(part))
    started = time.process_time()
    list(in_content(f"/{name}", content))
    assert time.process_time() - started < 1
