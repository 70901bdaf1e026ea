"""Signatures of site profiles: an OpenSSH signature of the file, in FILE.sig beside it.

It covers the file and, through its digest, the file of facts. Each file in ``extends`` has its own signature. Profiles
included with deployer need no signature.
"""

import time
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground.sign import made
from deployer.connected.site_profile.profile import resolve
from deployer.connected.site_profile.search import is_curated
from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.sshsig import Key
from deployer.system import files
from deployer.system.trust import signature, signers


class SignedFile(NamedTuple):
    """A signed file of a profile.

    Attributes:
        path: the file.
        key: the key that signed it.
        who: the signer's name in the allowed_signers file.
    """

    path: Path
    key: Key
    who: str


def signature_path(path: Path) -> Path:
    """Return the path of a profile's signature file."""
    return path.with_name(path.name + ".sig")


def sign_profile(path: Path, key: Path) -> Key:
    """Sign a profile and write FILE.sig. Return the public key.

    Raises:
        UsageError: the profile is not valid, or the key cannot be used.
        MissingTool: no ssh-keygen that can sign.
    """
    resolve(str(path))
    message = path.read_bytes()
    blob = made(message, key, sshsig.PROFILE_NAMESPACE)
    signer = signature.check(blob, message, sshsig.PROFILE_NAMESPACE)
    files.write_text(str(signature_path(path)), sshsig.armored(blob))
    return signer


def verify_profile(path: Path, allowed: Path) -> list[SignedFile]:
    """Return the signers of a profile and of each file that it extends.

    Args:
        allowed: an allowed_signers file.

    Raises:
        Refused: a file has no signature from an allowed signer.
        IntegrityError: a signature does not match its file.
    """
    known = signers.parse(signers.given(str(allowed)), str(allowed))
    paths = [each for each in resolve(str(path)).paths if not is_curated(each)]
    if not paths:
        raise UsageError(f"{path} came with deployer, and is as trusted as that is")
    return [_verified(each, known, allowed) for each in paths]


def _verified(path: Path, known: list[signers.Signer], allowed: Path) -> SignedFile:
    beside = signature_path(path)
    if not files.is_file(str(beside)):
        raise Refused(f"{path} is not signed: there is no {beside}", f"deployer profile sign {path} --key KEY")
    try:
        key = signature.check(
            sshsig.unarmored(files.read_text(str(beside))), path.read_bytes(), sshsig.PROFILE_NAMESPACE
        )
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error.message}", "the profile was changed after it was signed") from error
    own = [signer for signer in known if signer.key == key]
    refusals = [signer.refusal(time.time(), sshsig.PROFILE_NAMESPACE) for signer in own]
    if all(refusals):
        why = "; ".join(filter(None, refusals)) or "it does not list that key"
        raise Refused(f"{path} is signed by {key.fingerprint}, which {allowed} does not accept: {why}")
    return SignedFile(path, key, next(each.who for each, why in zip(own, refusals, strict=True) if not why))
