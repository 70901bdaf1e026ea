"""Two verifiers give one answer, whatever they are shown."""

import os
import random
import subprocess
from pathlib import Path

import ecdsa
import pytest

from deployer.contract.base.errors import IntegrityError, MissingTool
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.sshsig import mpint, packed
from deployer.system.trust import signature
from tests import running
from tests.signing import TestKey

MESSAGE = b"bundle.json, say; \xff\0 as well"
KINDS = [kind for kind in sorted(sshsig.ALGORITHMS) if kind != "ssh-rsa"]
OWN = [["ed25519"], ["ecdsa", "-b", "256"], ["ecdsa", "-b", "521"], ["rsa", "-b", "2048"]]

pytestmark = pytest.mark.needs("ssh-keygen")


def answers(blob, message=MESSAGE):
    """Return whether ssh-keygen and the library find a signature right."""
    parsed = sshsig.read(blob)
    said = signature.by_ssh_keygen(blob, parsed, message)
    if said is None:
        pytest.skip("ssh-keygen is older than 8.1")
    return not said, not signature.by_library(parsed, message)


@pytest.fixture(scope="module", params=OWN, ids=" ".join)
def made(request, tmp_path_factory):
    """Return a signature that ssh-keygen made with a key of its own."""
    folder = tmp_path_factory.mktemp("key")
    key, message = str(folder / "key"), str(folder / "message")
    Path(message).write_bytes(MESSAGE)
    subprocess.check_call(["ssh-keygen", "-q", "-N", "", "-f", key, "-t", *request.param])
    subprocess.check_call(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", sshsig.NAMESPACE, message], stderr=subprocess.DEVNULL
    )
    return sshsig.unarmored(Path(message + ".sig").read_text())


@pytest.mark.thorough
def test_what_ssh_keygen_signs_is_right(made):
    assert answers(made) == (True, True)
    assert answers(made, MESSAGE + b"x") == (False, False)
    assert signature.check(made, MESSAGE) == sshsig.read(made).key


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hash_name", [b"sha256", b"sha512"])
def test_what_the_library_signs_is_right(kind, hash_name):
    blob = TestKey(kind).sign(MESSAGE, hash_name=hash_name)
    assert answers(blob) == (True, True)
    assert answers(blob, b"") == (False, False)


def broken(blob, count):
    """Yield ``blob`` with one bit flipped, half of them in the signature itself, where it can still be parsed."""
    choose = random.Random(len(blob))
    value = blob.rindex(sshsig.read(blob).value)
    while count:
        flipped = bytearray(blob)
        flipped[choose.choice([choose.randrange(len(blob)), choose.randrange(value, len(blob))])] ^= (
            1 << choose.randrange(8)
        )
        try:
            sshsig.read(bytes(flipped))
        except IntegrityError:
            continue
        count -= 1
        yield bytes(flipped)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_seen_by_both(kind):
    for blob in broken(TestKey(kind).sign(MESSAGE), 8):
        assert answers(blob) == (False, False)


@pytest.mark.thorough
def test_a_flipped_bit_of_ssh_keygens_own_is_seen_by_both(made):
    for blob in broken(made, 8):
        assert answers(blob) == (False, False)


def ecdsa_values():
    key = TestKey("ecdsa-sha2-nistp256")
    r, s = (int.from_bytes(part, "big") for part in sshsig.strings(sshsig.read(key.sign(MESSAGE)).value))
    order = int(ecdsa.NIST256p.order)
    numbers = [(0, s), (r, 0), (order, s), (r, order), (r + order, s), (r, s + order), (s, r), (1, 1)]
    return key, [mpint(a) + mpint(b) for a, b in numbers]


def ed25519_values():
    key = TestKey()
    value = sshsig.read(key.sign(MESSAGE)).value
    return key, [b"\0" * 64, value[:32] + b"\0" * 32, value[32:] + b"\0" * 32, b"\0" * 32 + value[32:]]


@pytest.mark.thorough
@pytest.mark.parametrize("values", [ecdsa_values, ed25519_values])
def test_values_that_are_out_of_range(values):
    key, wrong = values()
    for value in wrong:
        assert answers(key.blob(packed(key.kind.encode()) + packed(value))) == (False, False), value


def test_of_another_key():
    one, other = TestKey(seed=1), TestKey(seed=2)
    blob = one.sign(MESSAGE).replace(one.key.blob, other.key.blob)
    assert answers(blob) == (False, False)
    with pytest.raises(IntegrityError, match=r"SHA256:.* is wrong: ssh-keygen: ") as caught:
        signature.check(blob, MESSAGE)
    assert "from its maker" in caught.value.hint


OLD = {  # RHEL 7 and 8: OpenSSH 7.4 and 8.0
    "its own getopt": 'echo "unknown option -- Y" >&2; exit 1',
    "glibc's": "echo \"ssh-keygen: invalid option -- 'Y'\" >&2; exit 1",
}


@pytest.mark.parametrize("name", sorted(OLD))
def test_where_openssh_is_too_old_the_library_answers(tmp_path, monkeypatch, name):
    monkeypatch.setattr(signature, "SSH_KEYGEN", running.program(tmp_path, "ssh-keygen", OLD[name]))
    check_by_library(tmp_path, monkeypatch)


def test_where_there_is_no_openssh_the_library_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(signature, "SSH_KEYGEN", str(tmp_path / "none"))
    check_by_library(tmp_path, monkeypatch)


def check_by_library(folder, monkeypatch):
    key = TestKey()
    assert signature.check(key.sign(MESSAGE), MESSAGE) == key.key
    with pytest.raises(IntegrityError, match="not the key's"):
        signature.check(key.sign(MESSAGE), b"other")
    monkeypatch.setitem(__import__("sys").modules, "ecdsa", None)
    with pytest.raises(MissingTool, match=r"8\.1"):
        signature.check(key.sign(MESSAGE), MESSAGE)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    signature.check(TestKey().sign(MESSAGE), MESSAGE)
    assert os.listdir(str(tmp_path)) == []
