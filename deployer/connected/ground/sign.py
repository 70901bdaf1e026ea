"""sign: add an OpenSSH signature of a bundle's manifest to the bundle's tail. The manifest covers every byte.

Only the last 10,240 bytes change, in place. They are first written to a file beside the bundle. If the machine stops
during the write, the next ``sign`` finishes it, and the bundle loses nothing.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from deployer.connected.ground import progress
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, MissingTool, UsageError
from deployer.contract.bundle import plan_update, scan, sealed_file, sshsig
from deployer.contract.bundle.sshsig import Key
from deployer.system import files, process
from deployer.system.trust import signature
from deployer.system.trust.signature import SSH_KEYGEN
from deployer.system.trust.verify import read_seal, size_of, verify

#: Environment variables that ssh-keygen needs to reach an agent or security key, or to ask for a passphrase.
_ENVIRONMENT = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER", "DISPLAY", "TERM")
_SECONDS = 300  # the user may have to find a security key and touch it


class Signed(NamedTuple):
    """The result of ``sign``.

    Attributes:
        digest: the bundle's digest.
        key: the key of the new signature.
        keys: the fingerprints of all keys that signed the bundle.
    """

    digest: str
    key: Key
    keys: list[str]

    def record(self) -> json_records.Record:
        """Return the result for ``--json``."""
        return {"digest": self.digest, "key": self.key.fingerprint, "keys": self.keys}


def sign(bundle: Path, key: Path) -> Signed:
    """Sign a bundle in place. Other keys' signatures stay; an earlier signature by the same key is replaced.

    Args:
        key: a private key, or a public key whose private half is in an ssh agent.

    Raises:
        IntegrityError: the bundle is damaged. It is verified before signing.
        UsageError: the bundle or the key cannot be used.
        MissingTool: no ssh-keygen that can sign.
    """
    if not key.is_file():
        raise UsageError(f"there is no key {key}", "give a private key, or the .pub file of a key in an ssh agent")
    try:
        stream = open(bundle, "r+b", buffering=0)  # a buffer could keep bytes from before the tail is written
    except OSError as error:
        hint = "sign writes into the bundle: check the file's permissions"
        raise UsageError(f"cannot write to {bundle}: {error.strerror}", hint) from error
    with stream, files.errors_named(f"sign {bundle}"):
        _finish(stream, bundle)
        # Policies do not apply here: a bundle without a required signature must be accepted for signing.
        with progress.bar("verify", size_of(stream)) as advance:
            message = verify(stream, str(bundle), advance, policies=()).manifest_bytes
        blob = made(message, key)
        signer = signature.check(blob, message)
        before = read_seal(stream, str(bundle))
        others = [other for other in before.signatures if sshsig.read(other).key != signer]
        seal = before._replace(signatures=tuple(sorted([blob, *others])))
        journal, tail = _journal(bundle), sealed_file.tail(seal)
        files.write_bytes(str(journal), tail)
        _write_tail(stream, tail)
        journal.unlink()
    return Signed(seal.digest, signer, [sshsig.read(item).key.fingerprint for item in seal.signatures])


def sign_update(path: Path, key: Path) -> Signed:
    """Sign a plan update or a scan by writing its text again with the signature. Other keys' signatures stay.

    Raises:
        IntegrityError: an existing signature is wrong.
        UsageError: the file or the key cannot be used.
        MissingTool: no ssh-keygen that can sign.
    """
    data = files.read_bytes(str(path), limit=plan_update.MAX_SIZE)
    message, earlier = plan_update.split(data)
    if path.name.endswith(scan.SUFFIX):
        digest, namespace = scan.read(message, str(path)).digest, sshsig.SCAN_NAMESPACE
    else:
        digest, namespace = plan_update.read(data, str(path)).digest, sshsig.NAMESPACE
    text, signer = signed_text(message, key, namespace, earlier)
    files.write_text(str(path), text)
    blobs = plan_update.split(text.encode())[1]
    return Signed(digest, signer, [sshsig.read(item, namespace).key.fingerprint for item in blobs])


def signed_text(message: bytes, key: Path, namespace: str, earlier: Sequence[bytes] = ()) -> tuple[str, Key]:
    """Return a text with its signatures after it, and the key of the new one. Raises as ``sign_update`` does.

    Args:
        earlier: signatures that the text has. An earlier one by the same key is replaced.
    """
    before = {signature.check(blob, message, namespace): blob for blob in earlier}
    blob = made(message, key, namespace)
    signer = signature.check(blob, message, namespace)
    blobs = sorted({**before, signer: blob}.values())
    return message.decode() + "".join(map(sshsig.armored, blobs)), signer


def made(message: bytes, key: Path, namespace: str = sshsig.NAMESPACE) -> bytes:
    """Return the signature of ``message`` by ``key``.

    Args:
        namespace: the purpose of the signature, as ``ssh-keygen -Y sign -n`` requires it.

    Raises:
        UsageError: the key cannot be used.
        MissingTool: no ssh-keygen that can sign.
    """
    if not key.is_file():
        raise UsageError(f"there is no key {key}", "give a private key, or the .pub file of a key in an ssh agent")
    with tempfile.TemporaryDirectory(prefix="deployer-sign-") as folder:
        path = Path(folder, "bundle.json")
        path.write_bytes(message)
        argv = [SSH_KEYGEN, "-Y", "sign", "-f", str(key), "-n", namespace, str(path)]
        hint = "install OpenSSH 8.1 or newer: apt-get install openssh-client"
        done = process.run(argv, _SECONDS, process.base_environment(*_ENVIRONMENT), check=False, hint=hint)
        if signature.is_too_old(done):
            raise MissingTool("this ssh-keygen cannot sign files", "install openssh-client, 8.1 or newer")
        if done.returncode:
            hint = "check that ssh-keygen -y -f KEY works"
            raise UsageError(f"ssh-keygen cannot sign with {key}: {done.last_words()}", hint)
        return sshsig.unarmored(path.with_name("bundle.json.sig").read_text())


def _journal(bundle: Path) -> Path:
    return bundle.with_name(f".{bundle.name}.tail")


def _write_tail(stream: IO[bytes], tail: bytes) -> None:
    os.pwrite(stream.fileno(), tail, size_of(stream) - sealed_file.TAIL)
    os.fsync(stream.fileno())


def _finish(stream: IO[bytes], bundle: Path) -> None:
    """Complete an interrupted ``sign``: write the tail left beside the bundle if it belongs to this bundle."""
    journal = _journal(bundle)
    if not files.lexists(str(journal)):
        return
    tail = journal.read_bytes()
    try:
        seal = sealed_file.read_tail(tail, size_of(stream))
        stream.seek(seal.offset)
        sealed_file.manifest_bytes(stream.read(seal.end - seal.offset), seal)
    except IntegrityError:
        pass  # another bundle now has this name
    else:
        _write_tail(stream, tail)
    journal.unlink()
