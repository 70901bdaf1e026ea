"""Verify a signature with ssh-keygen if possible, else with the library ``ecdsa``, which the .pyz includes.

ssh-keygen has verified files since OpenSSH 8.1 (2019); RHEL 7 and 8 have 7.4 and 8.0. Both answer only whether this key
signed these bytes. Who may sign is decided elsewhere, because ssh-keygen has supported dates only since 8.7.
"""

import hashlib
import os
import re
import tempfile
from typing import List, Optional

from deployer.contract.base.errors import IntegrityError, MissingTool
from deployer.contract.bundle import sshsig
from deployer.system import process

SSH_KEYGEN = "ssh-keygen"
_SECONDS = 120

# RFC 8017, section 9.2, note 1: the DER encodings that precede the hash in a PKCS #1 signature.
_DIGEST_INFO = {
    "rsa-sha2-256": (hashlib.sha256, bytes.fromhex("3031300d060960864801650304020105000420")),
    "rsa-sha2-512": (hashlib.sha512, bytes.fromhex("3051300d060960864801650304020305000440")),
}


def check(blob: bytes, message: bytes, namespace: str = sshsig.NAMESPACE) -> sshsig.Key:
    """Return the key that signed ``message``.

    Args:
        blob: the signature, as the seal has it.
        namespace: the purpose for which the signature must be made.

    Raises:
        IntegrityError: the signature is wrong.
        MissingTool: neither ssh-keygen nor the library can verify it.
    """
    signature = sshsig.read(blob, namespace)
    reason = by_ssh_keygen(blob, signature, message)
    if reason is None:
        reason = by_library(signature, message)
    if reason:
        hint = "the bundle or its signature was changed: get it again from its maker; nothing was installed"
        raise IntegrityError(f"the signature by {signature.key.fingerprint} is wrong: {reason}", hint)
    return signature.key


def by_ssh_keygen(blob: bytes, signature: sshsig.Signature, message: bytes) -> Optional[str]:
    """Return "" for a valid signature, else the reason; None if ssh-keygen is missing or older than 8.1."""
    who = "signer"
    with tempfile.TemporaryDirectory(prefix="deployer-verify-") as folder:
        signers, armor = os.path.join(folder, "allowed_signers"), os.path.join(folder, "signature")
        with open(signers, "w") as stream:
            stream.write(f"{who} {signature.key.line}\n")
        with open(armor, "w") as stream:
            stream.write(sshsig.armored(blob))
        argv = [SSH_KEYGEN, "-Y", "verify", "-f", signers, "-I", who, "-n", signature.namespace, "-s", armor]
        try:
            done = process.run(argv, timeout=_SECONDS, stdin=message, check=False)
        except MissingTool:
            return None
    if done.returncode == 0:
        return ""
    if is_too_old(done):
        return None
    return "ssh-keygen: %s" % (done.last_words() or "exit %d" % done.returncode)


def is_too_old(done: process.Completed) -> bool:
    """Return whether ssh-keygen failed because it does not know -Y or the requested operation."""
    return bool(done.returncode and re.search(r"(unknown|illegal|invalid) option|Unsupported operation", done.stderr))


def by_library(signature: sshsig.Signature, message: bytes) -> str:
    """Return "" for a valid signature, else the reason. Raises MissingTool if the library is missing."""
    signed = signature.signed(message)
    key, value = signature.key, signature.value
    parts = sshsig.strings(key.blob)
    if signature.rest:  # a device signs the application, its flags and counter, and the message (PROTOCOL.u2f)
        signed = hashlib.sha256(parts[-1]).digest() + signature.rest + hashlib.sha256(signed).digest()
        parts = parts[:-1]
    if key.kind == "ssh-rsa":
        return "" if _rsa(parts, signature.algorithm, value, signed) else "it is not the key's"
    try:
        return "" if _curve(parts, value, signed) else "it is not the key's"
    except ImportError as error:
        problem = "this machine has no ssh-keygen of OpenSSH 8.1 or newer, and no Python package ecdsa"
        raise MissingTool(problem, "use deployer.pyz, which includes ecdsa, or install openssh-client") from error


def _curve(parts: List[bytes], value: bytes, signed: bytes) -> bool:
    """Return whether ``value`` is a signature of ``signed``; ``parts`` are those of an ed25519 or ecdsa key."""
    import ecdsa

    try:
        if b"ed25519" in parts[0]:
            return bool(ecdsa.VerifyingKey.from_string(parts[1], ecdsa.Ed25519).verify(value, signed))
        curve, hash_function = {  # RFC 5656, section 6.2.1
            b"nistp256": (ecdsa.NIST256p, hashlib.sha256),
            b"nistp384": (ecdsa.NIST384p, hashlib.sha384),
            b"nistp521": (ecdsa.NIST521p, hashlib.sha512),
        }[parts[1]]
        point = ecdsa.VerifyingKey.from_string(parts[2], curve, hash_function, valid_encodings=("uncompressed",))
        r, s = (int.from_bytes(number, "big") for number in sshsig.strings(value))
        return bool(point.verify_digest((r, s), hash_function(signed).digest(), lambda numbers, _: numbers))
    except (ecdsa.BadSignatureError, ecdsa.MalformedPointError, ValueError, KeyError, IndexError, IntegrityError):
        return False


def _rsa(parts: List[bytes], algorithm: str, value: bytes, signed: bytes) -> bool:
    """Return whether ``value`` is a signature of ``signed``: RFC 8017, section 8.2.2.

    The expected content of the signature is encoded and compared in full; nothing of the signature is parsed.
    """
    exponent, modulus = (int.from_bytes(part, "big") for part in parts[1:])
    size = (modulus.bit_length() + 7) // 8
    hash_function, prefix = _DIGEST_INFO[algorithm]
    content = prefix + hash_function(signed).digest()
    expected = b"\0\1" + b"\xff" * (size - len(content) - 3) + b"\0" + content
    number = int.from_bytes(value, "big")
    if len(value) > size or number >= modulus or exponent < 3 or exponent % 2 == 0:
        return False
    return pow(number, exponent, modulus).to_bytes(size, "big") == expected
