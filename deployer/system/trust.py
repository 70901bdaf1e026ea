"""Whose a bundle is, found out from raw bytes before anything parses them."""

from typing import List, NamedTuple, Optional, Sequence

from deployer.contract.sshsig import Key
from deployer.system import policy, signature
from deployer.system.policy import Policy


class Trust(NamedTuple):
    """``keys`` are those that rightly signed a bundle, ``signers`` the names that the policies accept them by."""

    keys: List[Key]
    signers: List[str]


def establish(message: bytes, signatures: Sequence[bytes], policies: Optional[Sequence[Policy]] = None) -> Trust:
    """Check the signatures of ``message``, all of them, and let the policies judge who made them.

    ``policies`` are those of ``policy.load()`` where none are given: the admin's word is never forgotten by default.
    Raises IntegrityError for a signature that is wrong, Refused where a policy says no, MissingTool.
    """
    keys = [signature.check(blob, message) for blob in signatures]
    return Trust(keys, policy.judge(policy.load() if policies is None else policies, keys))
