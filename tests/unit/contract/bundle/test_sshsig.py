import struct

import pytest

from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.sshsig import packed
from tests.signing import TestKey

MESSAGE = b"what is signed"
KEY = TestKey()
BLOB = KEY.sign(MESSAGE)


def test_a_signature_says_its_key_and_its_form_is_one():
    assert sshsig.read(BLOB).key == KEY.key
    assert sshsig.decode(sshsig.encode(BLOB)) == BLOB
    assert sshsig.unarmored(sshsig.armored(BLOB)) == BLOB


def rsa(bits):
    return packed(b"ssh-rsa") + packed(b"\1\0\1") + packed(b"\0" + b"\x80" + b"\1" * (bits // 8 - 1))


WRONG = {
    "nothing": b"",
    "no magic": b"X" + BLOB[1:],
    "another version": BLOB[:6] + struct.pack(">I", 2) + BLOB[10:],
    "cut": BLOB[:-1],
    "cut in a length": BLOB[:12],
    "longer": BLOB + b"\0",
    "one more part": BLOB + packed(b""),
    "a length that overflows": BLOB[:10] + b"\xff\xff\xff\xff" + BLOB[14:],
    "another namespace": KEY.sign(MESSAGE, namespace="git"),
    "an unknown hash": BLOB.replace(b"sha512", b"sha5 2"),
    "another algorithm": KEY.blob(packed(b"ecdsa-sha2-nistp256") + packed(b"x" * 64)),
    "no algorithm": KEY.blob(b""),
    "a third word": KEY.blob(packed(b"ssh-ed25519") + packed(b"x" * 64) + packed(b"")),
    "a device that nobody touched": TestKey("sk-ssh-ed25519@openssh.com").sign(MESSAGE, flags=0),
    "a device that says too little": TestKey("sk-ssh-ed25519@openssh.com").blob(b"abc"),
    "no key": BLOB[:10] + packed(b"") + BLOB[10 + 4 + len(KEY.key.blob) :],
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_anything_else_is_refused(name):
    with pytest.raises(IntegrityError):
        sshsig.read(WRONG[name])


def ed25519_forms(value):
    """Yield what some OpenSSH takes for the same signature: S plus the group's order is one (seen with 9.2)."""
    order = 2**252 + 27742317777372353535851937790883648493
    return [
        value[:32] + (int.from_bytes(value[32:], "little") + order).to_bytes(32, "little"),
        value[:-1],
        value + b"\0",
    ]


def ecdsa_forms(value):
    r, s = sshsig.strings(value)
    pairs = [(b"\0" + r, s), (r, b"\0" + s), (b"\xff" * 32, s), (b"\0", s)]
    return [packed(a) + packed(b) for a, b in pairs] + [packed(r), value + packed(b""), b""]


@pytest.mark.parametrize(
    ("kind", "forms"),
    [
        ("ssh-ed25519", ed25519_forms),
        ("sk-ssh-ed25519@openssh.com", ed25519_forms),
        ("ecdsa-sha2-nistp256", ecdsa_forms),
        ("ecdsa-sha2-nistp521", ecdsa_forms),
    ],
)
def test_a_signature_has_one_form(kind, forms):
    key = TestKey(kind)
    parsed = sshsig.read(key.sign(MESSAGE))
    for value in forms(parsed.value):
        with pytest.raises(IntegrityError, match=r"canonical|parts"):
            sshsig.read(key.blob(packed(kind.encode()) + packed(value) + parsed.rest))


@pytest.mark.parametrize("text", ["", "AAA", "AAAA\n", " AAAA", "AAAA====", "AB==", "é"])  # AB== has stray bits
def test_base64_has_one_form(text):
    with pytest.raises(IntegrityError):
        sshsig.decode(text)


@pytest.mark.parametrize(
    "blob",
    [
        packed(b"ssh-dss"),
        packed(b"ssh-ed25519-cert-v01@openssh.com"),
        rsa(1024),
        rsa(2040),
        packed(b"ssh-rsa"),
        packed(b"ecdsa-sha2-nistp256") + packed(b"x" * 32),
        packed(b"ssh-ed25519") + packed(b"nistp256") + packed(b"x"),
        packed(b"ecdsa-sha2-nistp256") + packed(b"nistp384") + packed(b"x"),
        packed(b"ecdsa-sha2-nistp256") + packed(b"") + packed(b"x"),
    ],
)
def test_keys_that_may_not_sign(blob):
    with pytest.raises(IntegrityError):
        sshsig.read_key(blob)


def test_keys_that_may():
    assert sshsig.read_key(rsa(2048)).kind == "ssh-rsa"
    kind, text = KEY.key.line.split()
    assert sshsig.read_key_text(kind, text) == KEY.key
    with pytest.raises(IntegrityError, match="claims to be"):
        sshsig.read_key_text("ssh-rsa", text)


def test_no_armor():
    with pytest.raises(IntegrityError, match="armor"):
        sshsig.unarmored("-----BEGIN PGP SIGNATURE-----")
