"""Who signed a bundle, determined from raw bytes before anything parses them."""

import glob
import os
from contextlib import suppress
from typing import List, NamedTuple, Optional, Sequence

from deployer.contract.base import dialogue
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle.sshsig import NAMESPACE, Key
from deployer.system import files
from deployer.system.trust import policy, signature
from deployer.system.trust.policy import Policy


class Trust(NamedTuple):
    """Who signed a bundle.

    Attributes:
        keys: the keys whose signatures are valid.
        signers: the names under which the policies accept them.
    """

    keys: List[Key]
    signers: List[str]


def establish(
    message: bytes,
    signatures: Sequence[bytes],
    policies: Optional[Sequence[Policy]] = None,
    what: str = "bundle",
    namespace: str = NAMESPACE,
) -> Trust:
    """Verify all signatures of ``message`` and check the signers against the policies.

    Args:
        policies: the policies to apply; None: those of ``policy.load()``, so that the admin's is never forgotten.
        what: what was signed, for errors.
        namespace: the purpose for which the signatures must be made, and for which the signers may sign.

    Raises:
        IntegrityError: a signature is wrong.
        Refused: a policy does not accept the signers.
        MissingTool: a signature cannot be verified on this machine.
    """
    keys = [signature.check(blob, message, namespace) for blob in signatures]
    policies = policy.load() if policies is None else policies
    return Trust(keys, policy.judge(policies, keys, what=what, namespace=namespace))


def own(keys: Sequence[Key]) -> str:
    """Return who signed, if all keys are the user's own, as the files in ~/.ssh show; else an empty text."""
    lines = ""
    folder = os.path.expanduser("~/.ssh")
    for path in [os.path.join(folder, "authorized_keys"), *glob.glob(os.path.join(glob.escape(folder), "*.pub"))]:
        with suppress(UsageError):
            lines += files.read_text(path)
    if not keys or any(key.line not in lines for key in keys):
        return ""
    return dialogue.UNKNOWN_SIGNERS + ", ".join(key.fingerprint for key in keys) + dialogue.OWN_KEY
