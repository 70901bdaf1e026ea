"""Signatures of site profiles: an OpenSSH signature of the file, beside it as FILE.sig.

It covers the file, and by its digest the file of facts that it names. What a profile extends is signed by itself; the
profiles that come with deployer need no signature.
"""

import time
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground.sign import made
from deployer.connected.site_profile.profile import CURATED, resolve
from deployer.contract import sshsig
from deployer.contract.errors import IntegrityError, Refused, UsageError
from deployer.contract.sshsig import Key
from deployer.system import files, signature, signers


class SignedFile(NamedTuple):
    """A file of a profile, the key that signed it, and the name that the signers' file knows it by."""

    path: Path
    key: Key
    who: str


def signature_path(path: Path) -> Path:
    """Return the path of a profile's signature."""
    return path.with_name(path.name + ".sig")


def sign_profile(path: Path, key: Path) -> SignedFile:
    """Sign a profile and write FILE.sig; raises UsageError if it is not a valid profile, and MissingTool."""
    resolve(str(path))
    message = path.read_bytes()
    blob = made(message, key, sshsig.PROFILE_NAMESPACE)
    signer = signature.check(blob, message, sshsig.PROFILE_NAMESPACE)
    files.write_text(str(signature_path(path)), sshsig.armored(blob))
    return SignedFile(path, signer, "")


def verify_profile(path: Path, allowed: Path) -> list[SignedFile]:
    """Return who signed the profile and each file that it extends; ``allowed`` is an allowed_signers file.

    Raises Refused for a file that is not signed, or not by one of them, IntegrityError for a signature that is wrong.
    """
    known = signers.parse(signers.given(str(allowed)), str(allowed))
    paths = [each for each in resolve(str(path)).paths if CURATED not in each.resolve().parents]
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
    reasons = []
    for signer in known:
        if signer.key == key:
            reason = signer.refusal(time.time(), sshsig.PROFILE_NAMESPACE)
            if not reason:
                return SignedFile(path, key, signer.who)
            reasons.append(reason)
    why = "; ".join(reasons) or "it does not list that key"
    raise Refused(f"{path} is signed by {key.fingerprint}, which {allowed} does not accept: {why}")
