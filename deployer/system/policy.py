"""What a site demands of bundles: the site's word, never the bundle's.

A policy is a JSON file. The admin's stands at a fixed place; a root folder may have one of its own, pinned when its
first bundle was installed with --signers. All are obeyed, so a further policy can only tighten.
"""

import os
import time
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract import json_records, version
from deployer.contract.errors import Refused, UsageError
from deployer.contract.sshsig import Key
from deployer.system import files, signers
from deployer.system.signers import Signer

SCHEMA = "policy"

#: The admin's; its place is part of the contract with sites, so that no user can choose another.
SYSTEM_FILE = "/etc/deployer/policy.json"
POLICY_FILE, SIGNERS_FILE = "policy.json", "allowed_signers"

_FIELDS = ("require_signature", "refuse_rollback")
_PATHS = ("allowed_signers", "revoked_keys")


class Policy(NamedTuple):
    """``source`` says whose word it is; ``allowed`` None knows no signers; ``revoked_keys`` is a path or None.

    ``given`` is the text of --signers, which may be a pipe and so is read once.
    """

    source: str
    require_signature: bool = False
    allowed: Optional[Tuple[Signer, ...]] = None
    revoked_keys: Optional[str] = None
    refuse_rollback: bool = False
    given: Optional[str] = None


def load(root: Optional[str] = None, signers_file: Optional[str] = None) -> List[Policy]:
    """Return what must be obeyed: the admin's policy, that of the root folder, and --signers, each where there is one.

    Raises UsageError for a policy that cannot be read or understood: it is never taken for none.
    """
    paths = [SYSTEM_FILE] + ([os.path.join(root, POLICY_FILE)] if root else [])
    # A folder that cannot be searched is an error: else whoever locks it would lift the policy.
    policies = [read(path) for path in paths if files.lexists(path)]
    if signers_file:
        text = signers.given(signers_file)
        allowed = tuple(signers.parse(text, signers_file))
        policies.append(Policy("--signers " + signers_file, True, allowed, given=text))
    return policies


def read(path: str) -> Policy:
    """Parse a policy file and the files that it names, relative to its own folder. Raises UsageError."""
    fields = json_records.loads(files.read_text(path).encode(), SCHEMA, path)
    unknown = set(fields.record) - {"schema", "format", "min_reader"} - set(_FIELDS) - set(_PATHS)
    if unknown:  # a misspelt demand must not be an open door
        known = ", ".join(_FIELDS + _PATHS)
        raise UsageError("%s: unknown field %r" % (path, sorted(unknown)[0]), "a policy has: " + known)
    demands = [fields.flag(name) if name in fields.record else False for name in _FIELDS]
    names = [fields.maybe_text(name) for name in _PATHS]
    allowed, revoked = (os.path.join(os.path.dirname(path), name) if name else None for name in names)
    if demands[0] and not allowed:
        raise UsageError("%s: require_signature needs allowed_signers: anyone can sign" % path)
    return Policy(path, demands[0], tuple(signers.read(allowed)) if allowed else None, revoked, demands[1])


def judge(policies: Iterable[Policy], keys: Sequence[Key], now: Optional[float] = None) -> List[str]:
    """Return the names that the policies know the signers by; none for a bundle that is not signed.

    ``keys`` are those that rightly signed it. Each policy that demands or knows signers must accept one of them that no
    policy revokes. Raises Refused with the reasons.
    """
    now = time.time() if now is None else now
    policies = list(policies)
    reasons = {}
    for key in keys:
        for policy in policies:
            if policy.revoked_keys and signers.is_revoked(policy.revoked_keys, key):
                reasons[key] = "%s is revoked by %s" % (key.fingerprint, policy.revoked_keys)
    if keys and len(reasons) == len(set(keys)):
        _refuse(reasons.values(), "each key that signed the bundle is revoked")
    good = [key for key in keys if key not in reasons]
    names = []
    for policy in policies:
        if policy.allowed is None:
            continue
        if not keys and not policy.require_signature:
            continue
        if not keys:
            _refuse([], "the bundle is not signed, and %s demands it" % policy.source)
        answers = [_answer(policy.allowed, key, now) for key in good]
        accepted = [who for who, _ in answers if who]
        if not accepted:
            told = list(reasons.values()) + [reason for _, reason in answers]
            _refuse(told, "no signer of the bundle is accepted by %s" % policy.source)
        names += accepted
    return sorted(set(names))


def check_rollback(policies: Iterable[Policy], name: str, new: str, installed: Iterable[str]) -> List[str]:
    """Return a warning where a later version of the bundle ``name`` is among ``installed``; ``new`` is its version.

    Raises Refused where a policy refuses to go back.
    """
    later = [there for there in installed if version.is_older(new, there)]
    if not later:
        return []
    latest = max(later, key=version.key)
    message = "%s:%s is older than the installed %s:%s" % (name, new, name, latest)
    for policy in policies:
        if policy.refuse_rollback:
            hint = "install a newer bundle, or remove %s:%s first if you may" % (name, latest)
            raise Refused("%s, and %s forbids downgrades" % (message, policy.source), hint)
    return [message]


def pin_policy(root: str, given: str) -> Optional[str]:
    """Make the text of --signers the policy of a root folder that has none; return its path, None where there is one.

    The signers come first: a policy without them would be an error, they without it are nothing.
    """
    path = os.path.join(root, POLICY_FILE)
    if files.lexists(path):
        return None
    files.write_text(os.path.join(root, SIGNERS_FILE), given)
    policy = {"require_signature": True, "allowed_signers": SIGNERS_FILE}
    files.write_text(path, json_records.pretty(json_records.stamped(SCHEMA, policy)))
    return path


def _answer(allowed: Iterable[Signer], key: Key, now: float) -> Tuple[str, str]:
    """Return the name that a key is accepted under, or "" and why it is not."""
    reasons = []
    for signer in allowed:
        if signer.key == key:
            reason = signer.refusal(now)
            if not reason:
                return "%s (%s)" % (signer.who, key.fingerprint), ""
            reasons.append(reason)
    return "", "; ".join(reasons) or "%s is not among the allowed signers" % key.fingerprint


def _refuse(reasons: Iterable[str], message: str) -> None:
    told = "; ".join(reasons)
    hint = "ask the stager for a bundle signed by an allowed key, or the site's admin about its policy"
    raise Refused(message + (": " + told if told else ""), hint)
