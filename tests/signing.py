"""Keys and signatures of OpenSSH's made by hand, so that tests can sign what no honest stager would.

ssh-keygen's own are in the tests that name it; these need the library alone, and run on Python 3.6 too.
"""

import hashlib
import struct

import ecdsa

from deployer.contract.base import tarformat
from deployer.contract.bundle import sealed_file, sshsig
from deployer.contract.bundle.sshsig import Key, mpint, packed

_CURVES = {
    "nistp256": (ecdsa.NIST256p, hashlib.sha256),
    "nistp384": (ecdsa.NIST384p, hashlib.sha384),
    "nistp521": (ecdsa.NIST521p, hashlib.sha512),
}


class TestKey:
    """A private key of a kind that ``sshsig.ALGORITHMS`` names, except rsa; the same seed gives the same key."""

    __test__ = False

    def __init__(self, kind="ssh-ed25519", seed=1):
        self.kind = kind
        self.application = b"ssh:" if kind.startswith("sk-") else None
        secret = hashlib.sha256(b"test key %d" % seed).digest()
        self.curve = next((name for name in _CURVES if name in kind), None)
        if self.curve:
            curve, self.hash = _CURVES[self.curve]
            self.private = ecdsa.SigningKey.from_secret_exponent(int.from_bytes(secret, "big") >> 8, curve)
            point = self.private.get_verifying_key().to_string("uncompressed")
            blob = packed(kind.encode()) + packed(self.curve.encode()) + packed(point)
        else:
            self.private = ecdsa.SigningKey.from_string(secret, ecdsa.Ed25519)
            blob = packed(kind.encode()) + packed(self.private.get_verifying_key().to_string())
        if self.application:
            blob += packed(self.application)
        self.key = Key(kind, blob)

    def sign(self, message, namespace=sshsig.NAMESPACE, hash_name=b"sha512", flags=1):
        """Return the blob of a signature."""
        digest = hashlib.new(hash_name.decode(), message).digest()
        signed = b"SSHSIG" + b"".join(packed(part) for part in (namespace.encode(), b"", hash_name, digest))
        rest = struct.pack(">BI", flags, 7) if self.application else b""
        if self.application:
            signed = hashlib.sha256(self.application).digest() + rest + hashlib.sha256(signed).digest()
        return self.blob(packed(self.kind.encode()) + packed(self.value(signed)) + rest, namespace, hash_name)

    def value(self, signed):
        if self.curve is None:
            return self.private.sign(signed)
        r, s = self.private.sign_digest_deterministic(
            self.hash(signed).digest(), hashfunc=self.hash, sigencode=lambda r, s, order: (r, s)
        )
        return mpint(r) + mpint(s)

    def blob(self, inner, namespace=sshsig.NAMESPACE, hash_name=b"sha512", version=1):
        parts = (self.key.blob, namespace.encode(), b"", hash_name, inner)
        return b"SSHSIG" + struct.pack(">I", version) + b"".join(packed(part) for part in parts)

    def allowed(self, who="stager", options=""):
        """Return a line for an allowed_signers file."""
        return " ".join(word for word in (who, options, self.key.line) if word) + "\n"


def manifest_of(data):
    """Return the bytes of bundle.json in the bundle ``data``: what a signature is over."""
    seal = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data))
    return data[seal.offset + tarformat.BLOCK :][: seal.size]


def with_signatures(data, blobs):
    """Return the bundle ``data`` with these signatures in its tail, in place of any."""
    seal = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data))
    return data[: -sealed_file.TAIL] + sealed_file.tail(seal._replace(signatures=tuple(sorted(blobs))))


def signed(data, *keys):
    """Return the bundle ``data`` signed by each of ``keys``."""
    return with_signatures(data, [key.sign(manifest_of(data)) for key in keys])
