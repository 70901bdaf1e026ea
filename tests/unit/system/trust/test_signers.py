import os
import subprocess
import time

import pytest

from deployer.contract.base.errors import MissingTool, UsageError
from deployer.system.trust import signers
from tests.signing import TestKey

KEY, OTHER = TestKey(seed=1), TestKey("ecdsa-sha2-nistp256", seed=2)
NOON = 1767268800  # 2026-01-01 12:00 UTC


def read(folder, text):
    path = folder / "allowed_signers"
    path.write_text(text)
    return signers.read_signers(str(path))


def only(folder, options):
    found = read(folder, KEY.allowed("a@b", options))
    assert [(signer.who, signer.key) for signer in found] == [("a@b", KEY.key)]
    return found[0]


def test_comments_quotes_and_several_lines(tmp_path):
    text = '# ours\n\n"spaced name" {} comment here\n{}'.format(KEY.key.line, OTHER.allowed("b"))
    assert [(signer.who, signer.key) for signer in read(tmp_path, text)] == [
        ('"spaced name"', KEY.key),
        ("b", OTHER.key),
    ]


@pytest.mark.parametrize(
    ("options", "at", "reason"),
    [
        ("", 0, ""),
        ('valid-after="20260101Z"', NOON, ""),
        ('valid-after="202601011200Z"', NOON, ""),
        ('valid-after="20260101120001Z"', NOON, "not valid before 2026-01-01 12:00:01 UTC"),
        ('valid-before="20260101120000Z"', NOON, ""),
        ('valid-before="20260101115959Z"', NOON, "not valid after 2026-01-01 11:59:59 UTC"),
        ('VALID-AFTER="20250101Z",valid-before="20260101Z"', NOON, "not valid after"),
        ('namespaces="git,deployer-bundle"', NOON, ""),
        ('namespaces="deployer-*"', NOON, ""),
        ('namespaces="deployer-?undle"', NOON, ""),
        ('namespaces="git"', NOON, "may not sign"),
        ('namespaces="deployer"', NOON, "may not sign"),
        ('namespaces="!deployer-bundle,*"', NOON, "may not sign"),
        ('namespaces="file,with space",valid-after="20250101Z"', NOON, "may not sign"),
    ],
)
def test_options(tmp_path, options, at, reason):
    refusal = only(tmp_path, options).refusal(at)
    assert reason in refusal
    assert bool(reason) == bool(refusal)


def test_a_time_without_z_is_this_machines(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC-5")  # five hours ahead
    time.tzset()
    try:
        assert only(tmp_path, 'valid-after="202601011700"').after == NOON
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ssh-ed25519",
        "a ssh-dss AAAA",
        "a ssh-ed25519 AAAA",
        "a ssh-ed25519 !!!!",
        KEY.key.line,  # no principal
        "a no-such-option " + KEY.key.line,
        'a namespaces="x",namespaces="y" ' + KEY.key.line,
        "a valid-after " + KEY.key.line,
        'a valid-after="tomorrow" ' + KEY.key.line,
        'a valid-after="20261301Z" ' + KEY.key.line,
        'a valid-after="2026" ' + KEY.key.line,
        'a namespaces="x" valid-after="20260101" ' + KEY.key.line,
        'a namespaces="open ' + KEY.key.line,
    ],
)
def test_a_line_that_cannot_be_understood_is_an_error(tmp_path, line):
    with pytest.raises(UsageError, match="allowed_signers, line 2"):
        read(tmp_path, OTHER.allowed() + line + "\n")


def test_an_authority_signs_no_bundles(tmp_path):
    assert read(tmp_path, KEY.allowed("*", "cert-authority")) == []


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        signers.read_signers(str(tmp_path / "none"))


@pytest.mark.parametrize("line", [KEY.key.fingerprint, KEY.key.line, KEY.key.line + " comment"])
def test_a_revoked_key_by_fingerprint_or_itself(tmp_path, line):
    path = tmp_path / "revoked"
    path.write_text(f"# lost\n{TestKey(seed=9).key.fingerprint}\n{line}\n")
    assert signers.is_revoked(str(path), KEY.key)
    assert not signers.is_revoked(str(path), OTHER.key)


@pytest.mark.parametrize("line", ["SHA256:short", "MD5:aa:bb", "ssh-ed25519", "ssh-ed25519 AAAA"])
def test_a_revocation_that_cannot_be_understood_is_an_error(tmp_path, line):
    path = tmp_path / "revoked"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="line 1"):
        signers.is_revoked(str(path), KEY.key)


@pytest.mark.parametrize("character", ["\r", "\v", "\x1c", "\x85", "\xa0", "\u2028", "\ufeff", "\0"])
def test_an_invisible_character_is_an_error_that_names_it(tmp_path, character):
    path = tmp_path / "file"
    path.write_bytes((f"# lost{character}{KEY.key.line}\n").encode())
    for read_it in (lambda: signers.read_signers(str(path)), lambda: signers.is_revoked(str(path), KEY.key)):
        with pytest.raises(UsageError, match="line 1: contains the invisible character") as caught:
            read_it()
        assert ascii(character) in str(caught.value)


def test_a_file_too_large_to_hold_signers(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(UsageError, match="has more than"):
        signers.read_signers(str(path))


@pytest.mark.needs("ssh-keygen")
def test_a_key_revocation_list(tmp_path, monkeypatch):
    path, public = str(tmp_path / "krl"), tmp_path / "key.pub"
    public.write_text(KEY.key.line + "\n")
    subprocess.check_call(["ssh-keygen", "-q", "-k", "-f", path, str(public)])
    assert signers.is_revoked(path, KEY.key)
    assert not signers.is_revoked(path, OTHER.key)
    with open(path, "r+b") as stream:  # damaged: never taken for a list without the key
        stream.truncate(os.path.getsize(path) - 3)
    with pytest.raises(UsageError, match="cannot read it"):
        signers.is_revoked(path, OTHER.key)
    monkeypatch.setattr(signers, "SSH_KEYGEN", str(tmp_path / "none"))
    with pytest.raises(MissingTool, match="key revocation list"):
        signers.is_revoked(path, KEY.key)
