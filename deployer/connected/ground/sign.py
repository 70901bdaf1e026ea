"""sign: an OpenSSH signature over a bundle's manifest, which covers every byte, put into the bundle's tail.

Only the last 10,240 bytes change, in place. They are first written to a file beside the bundle: should the machine stop
half-way, the next ``sign`` finishes what was begun, and nothing of the bundle is lost.
"""

import os
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from deployer.contract import json_records, sealed_file, sshsig
from deployer.contract.errors import IntegrityError, MissingTool, UsageError
from deployer.contract.sealed_file import Seal
from deployer.contract.sshsig import Key
from deployer.system import files, process, signature
from deployer.system.signature import SSH_KEYGEN
from deployer.system.verify import read_seal, verify

#: What ssh-keygen needs of the caller's environment to reach an agent, a device, or a person with a passphrase.
_ENVIRONMENT = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER", "DISPLAY", "TERM")
_SECONDS = 300  # a person may have to find a device and touch it


class Signed(NamedTuple):
    """A bundle's digest, the key that signed it now, and the fingerprints of all that have."""

    digest: str
    key: Key
    keys: list[str]

    def record(self) -> json_records.Record:
        """Return what a program would want to know of it."""
        return {"digest": self.digest, "key": self.key.fingerprint, "keys": self.keys}


def sign(bundle: Path, key: Path) -> Signed:
    """Sign ``bundle`` with the private key ``key``, or a public one whose private half an agent holds.

    Signatures by other keys stay; an earlier one by this key is replaced. The bundle is verified first: nobody signs
    what is not whole. Raises IntegrityError, UsageError, MissingTool without an ssh-keygen that can sign.
    """
    if not key.is_file():
        raise UsageError(f"there is no key {key}", "give a private key, or the .pub file of a key in an ssh agent")
    try:
        stream = bundle.open("r+b")
    except OSError as error:
        raise UsageError(
            f"cannot write to {bundle}: {error.strerror}", "sign writes into the bundle: check the file's permissions"
        ) from error
    with stream, files.errors_named(f"sign {bundle}"):
        _finish(stream, bundle)
        # The site's policies are not asked: a bundle that lacks a signature is here to get it.
        message = verify(stream, str(bundle), policies=()).manifest_bytes
        blob = made(message, key)
        signer = signature.check(blob, message)
        before = read_seal(stream, str(bundle))
        others = [other for other in before.signatures if sshsig.read(other).key != signer]
        seal = before._replace(signatures=tuple(sorted([blob, *others])))
        _replace_tail(stream, bundle, seal)
    return Signed(seal.digest, signer, [sshsig.read(item).key.fingerprint for item in seal.signatures])


def made(message: bytes, key: Path, namespace: str = sshsig.NAMESPACE) -> bytes:
    """Return the signature of ``message`` by ``key`` for one use. Raises UsageError, MissingTool."""
    if not key.is_file():
        raise UsageError(f"there is no key {key}", "give a private key, or the .pub file of a key in an ssh agent")
    with tempfile.TemporaryDirectory(prefix="deployer-sign-") as folder:
        path = Path(folder, "bundle.json")
        path.write_bytes(message)
        argv = [SSH_KEYGEN, "-Y", "sign", "-f", str(key), "-n", namespace, str(path)]
        env = process.base_environment(*_ENVIRONMENT)
        done = process.run(argv, timeout=_SECONDS, env=env, check=False, hint="install openssh-client, 8.1 or newer")
        if signature.is_too_old(done):
            raise MissingTool("this ssh-keygen cannot sign files", "install openssh-client, 8.1 or newer")
        if done.returncode:
            raise UsageError(
                f"ssh-keygen cannot sign with {key}: {done.last_words()}", "check that ssh-keygen -y -f KEY works"
            )
        return sshsig.unarmored(path.with_name("bundle.json.sig").read_text())


def _journal(bundle: Path) -> Path:
    return bundle.with_name(f".{bundle.name}.tail")


def _replace_tail(stream: IO[bytes], bundle: Path, seal: Seal) -> None:
    journal = _journal(bundle)
    tail = sealed_file.tail(seal)
    with files.published(str(journal)) as copy:
        copy.write(tail)
    _write_tail(stream, tail)
    journal.unlink()


def _write_tail(stream: IO[bytes], tail: bytes) -> None:
    stream.seek(-sealed_file.TAIL, os.SEEK_END)
    stream.write(tail)
    stream.flush()
    os.fsync(stream.fileno())


def _finish(stream: IO[bytes], bundle: Path) -> None:
    """Write the tail that an interrupted ``sign`` left beside the bundle, if it is this bundle's."""
    journal = _journal(bundle)
    if not files.lexists(str(journal)):
        return
    tail = journal.read_bytes()
    size = os.fstat(stream.fileno()).st_size
    try:
        seal = sealed_file.read_tail(tail, size)
        stream.seek(seal.offset)
        sealed_file.manifest_bytes(stream.read(seal.end - seal.offset), seal)
    except IntegrityError:
        pass  # another bundle has this name now
    else:
        _write_tail(stream, tail)
    journal.unlink()
