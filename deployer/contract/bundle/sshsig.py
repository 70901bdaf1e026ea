"""OpenSSH's file signatures as data: what was signed, with which key, in one canonical form.

Source: PROTOCOL.sshsig and PROTOCOL.u2f of OpenSSH; RFC 4253 section 6.6, RFC 5656 and RFC 8709 for keys. The policy
decides who may sign, and deployer/system/trust/signature.py verifies signatures.
"""

import base64
import binascii
import hashlib
import struct
from typing import List, NamedTuple

from deployer.contract.base.errors import IntegrityError

#: A signature has one purpose: a signature from another namespace (for git or a file) is not valid for a bundle.
NAMESPACE = "deployer-bundle"
#: The namespace for scans, which other people may sign than bundles.
SCAN_NAMESPACE = "deployer-scan"

_MAGIC = b"SSHSIG"
_VERSION = 1
BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_LINE = 70
_HASHES = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}
_MIN_RSA_BITS = 2048
_ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493  # RFC 8032, section 5.1

#: The kinds of keys that may sign, and the algorithms that each may sign with.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),  # never with SHA-1
    "sk-ssh-ed25519@openssh.com": ("sk-ssh-ed25519@openssh.com",),
    "sk-ecdsa-sha2-nistp256@openssh.com": ("sk-ecdsa-sha2-nistp256@openssh.com",),
}


class Key(NamedTuple):
    """A public key.

    Attributes:
        kind: for instance ``ssh-ed25519``.
        blob: the bytes that a .pub file has in base64.
    """

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint as ssh-keygen -l prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def line(self) -> str:
        """Return the key as in a .pub file, without a comment."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


class Signature(NamedTuple):
    """The parts of a signature.

    Attributes:
        key: the key that signed.
        hash_name: the hash algorithm of the message.
        algorithm: the algorithm of the signature.
        value: its raw bytes.
        rest: bytes that the device of an sk- key added, else empty.
        namespace: the purpose for which it was made.
    """

    key: Key
    hash_name: bytes
    algorithm: str
    value: bytes
    rest: bytes
    namespace: str = NAMESPACE

    def signed(self, message: bytes) -> bytes:
        """Return the bytes that the key signs for the message ``message``."""
        digest = _HASHES[self.hash_name](message).digest()
        parts = (self.namespace.encode(), b"", self.hash_name, digest)
        return _MAGIC + b"".join(packed(part) for part in parts)


def packed(text: bytes) -> bytes:
    """Return an SSH string: its length in four bytes, then the text."""
    return struct.pack(">I", len(text)) + text


def mpint(number: int) -> bytes:
    """Return a non-negative number as SSH writes it: big-endian in the fewest bytes, the top bit clear."""
    return packed(number.to_bytes(number.bit_length() // 8 + 1, "big") if number else b"")


def strings(data: bytes) -> List[bytes]:
    """Return the SSH strings of which ``data`` consists. Raises IntegrityError if it is anything else."""
    parts = []
    position = 0
    while position < len(data):
        size = struct.unpack_from(">I", data, position)[0] if position + 4 <= len(data) else len(data)
        position += 4
        if position + size > len(data):
            raise IntegrityError("a signature or key is cut off")
        parts.append(data[position : position + size])
        position += size
    return parts


def read_key(blob: bytes) -> Key:
    """Parse a public key. Raises IntegrityError if its kind may not sign, or if it is weak."""
    parts = strings(blob)
    kind = parts[0].decode("ascii", "replace") if parts else ""
    if kind not in ALGORITHMS:
        raise IntegrityError(f"a key of kind {kind!r} cannot sign bundles", "use an ed25519, ecdsa, rsa or sk- key")
    shape = (2 if "ed25519" in kind else 3) + kind.startswith("sk-")
    curve = kind.split("@")[0].rpartition("-")[2].encode()  # an ecdsa key repeats the curve in its second part
    if len(parts) != shape or ("ecdsa" in kind and parts[1] != curve):
        raise IntegrityError(f"a key of kind {kind!r} does not have its parts")
    if kind == "ssh-rsa" and int.from_bytes(parts[2], "big").bit_length() < _MIN_RSA_BITS:
        raise IntegrityError("an rsa key of less than %d bits cannot sign bundles" % _MIN_RSA_BITS)
    return Key(kind, blob)


def read_key_text(kind: str, text: str) -> Key:
    """Parse the kind and the base64 text of a .pub file. Raises IntegrityError."""
    key = read_key(decode(text))
    if key.kind != kind:
        raise IntegrityError(f"a key claims to be {kind!r}, but is {key.kind!r}")
    return key


def read(blob: bytes, wanted: str = NAMESPACE) -> Signature:
    """Parse a signature in its canonical form. Raises IntegrityError, also if it was made for another purpose."""
    start = len(_MAGIC) + 4
    if blob[:start] != _MAGIC + struct.pack(">I", _VERSION):
        raise IntegrityError("a signature does not have OpenSSH's format, version %d" % _VERSION)
    parts = strings(blob[start:])
    if len(parts) != 5:
        raise IntegrityError("a signature has %d parts, not 5" % len(parts))
    key_blob, namespace, reserved, hash_name, inner = parts
    key = read_key(key_blob)
    if namespace != wanted.encode():
        raise IntegrityError(f"a signature was made for {namespace!r}, not for {wanted.encode()!r}")
    if reserved or hash_name not in _HASHES:
        raise IntegrityError(f"unknown hash algorithm of a signature: {hash_name!r}")
    # An sk- key's device adds a byte of flags and a counter of four bytes (PROTOCOL.u2f).
    rest = inner[-5:] if key.kind.startswith("sk-") else b""
    words = strings(inner[: len(inner) - len(rest)])
    algorithm = words[0].decode("ascii", "replace") if words else ""
    if len(words) != 2 or algorithm not in ALGORITHMS[key.kind]:
        raise IntegrityError(f"a signature of a {key.kind} key is made with {algorithm!r}")
    if rest and not rest[0] & 1:
        raise IntegrityError("a signature lacks the required security-key touch")
    _check_form(key.kind, words[1])
    return Signature(key, hash_name, algorithm, words[1], rest, wanted)


def _check_form(kind: str, value: bytes) -> None:
    """Raise IntegrityError for a non-canonical form of a signature; OpenSSH 9.2 still accepts some of these."""
    if "ed25519" in kind:
        canonical = len(value) == 64 and int.from_bytes(value[32:], "little") < _ED25519_ORDER
    elif "ecdsa" in kind:
        numbers = [int.from_bytes(number, "big") for number in strings(value)]
        canonical = len(numbers) == 2 and value == b"".join(map(mpint, numbers))
    else:
        canonical = True  # an RSA signature is one number, and both verifiers compare all of it
    if not canonical:
        raise IntegrityError(f"a signature of a {kind} key is not in its canonical form")


def encode(blob: bytes) -> str:
    """Return a signature in the seal's form: base64 in one line, without OpenSSH's armor, which may vary."""
    return base64.b64encode(blob).decode()


def decode(text: str) -> bytes:
    """Return a signature's blob from the seal's text in the exact form of ``encode``. Raises IntegrityError."""
    try:
        blob = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        blob = b""
    if not blob or encode(blob) != text:
        raise IntegrityError("a signature or key is not in canonical base64")
    return blob


def armored(blob: bytes) -> str:
    """Return a signature in the form that ssh-keygen reads."""
    text = encode(blob)
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join([BEGIN, *lines, _END]) + "\n"


def unarmored(text: str) -> bytes:
    """Return the blob of a signature that ssh-keygen wrote. Raises IntegrityError."""
    lines = text.split()
    begin, end = BEGIN.split(), _END.split()
    if lines[: len(begin)] != begin or lines[-len(end) :] != end:
        raise IntegrityError("a signature is not in OpenSSH's armor")
    return decode("".join(lines[len(begin) : -len(end)]))


def unarmored_all(text: str) -> List[bytes]:
    """Return the blobs of signatures that follow each other, with white space between them. Raises IntegrityError."""
    pieces = text.split(_END)
    if pieces[-1].strip():
        raise IntegrityError("a signature is not in OpenSSH's armor")
    return [unarmored(piece + _END) for piece in pieces[:-1]]
