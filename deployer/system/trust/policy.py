"""A site's requirements for bundles, which a bundle cannot change.

A policy is a JSON file. The admin's policy has a fixed path. A root folder may have its own, which is stored when its
first bundle is installed with --signers. All policies apply, so another policy can only tighten the rules.
"""

import os
import time
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import json_records, records, version
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import scan as scans
from deployer.contract.bundle.sshsig import NAMESPACE, Key
from deployer.system import files
from deployer.system.trust import signers

SCHEMA = "policy"

#: The admin's policy. Its path is fixed, so that no user can choose another.
SYSTEM_FILE = "/etc/deployer/policy.json"
POLICY_FILE, SIGNERS_FILE = "policy.json", "allowed_signers"

_FIELDS = ("require_signature", "refuse_rollback")
_PATHS = ("allowed_signers", "revoked_keys")


class Policy(NamedTuple):
    """The rules of one file or option.

    Attributes:
        source: where the rules come from, for errors.
        require_signature: refuse a bundle without an accepted signature.
        allowed: the allowed signers; None: the policy lists none.
        revoked_keys: the path of a file of revoked keys, or None.
        refuse_rollback: refuse a version older than an installed one.
        given: the text of --signers, which may be a pipe and is therefore read once.
        scan: what it demands of a bundle's scan; None: it demands none.
    """

    source: str
    require_signature: bool = False
    allowed: Optional[Tuple[signers.Signer, ...]] = None
    revoked_keys: Optional[str] = None
    refuse_rollback: bool = False
    given: Optional[str] = None
    scan: Optional[scans.ScanDemand] = None


def load(root: Optional[str] = None, signers_file: Optional[str] = None) -> List[Policy]:
    """Return the policies that apply: the admin's, the root folder's and --signers, as far as they exist.

    Raises:
        UsageError: a policy cannot be read or is invalid. It is never treated as missing.
    """
    paths = [SYSTEM_FILE] + ([os.path.join(root, POLICY_FILE)] if root else [])
    # A folder that cannot be searched is an error; otherwise anyone who locks it would lift the policy.
    policies = [read_policy(path) for path in paths if files.lexists(path)]
    if signers_file:
        text = signers.given(signers_file)
        allowed = tuple(signers.parse(text, signers_file))
        policies.append(Policy("--signers " + signers_file, True, allowed, given=text))
    return policies


def read_policy(path: str) -> Policy:
    """Parse a policy file and the files that it names, relative to its folder. Raises UsageError."""
    fields = json_records.loads(files.read_text(path).encode(), SCHEMA, path)
    unknown = set(fields.record) - {"schema", "format", "min_reader"} - set(_FIELDS) - set(_PATHS) - {scans.SCHEMA}
    if unknown:  # a misspelt rule must not be ignored
        known = ", ".join((*_FIELDS, *_PATHS, scans.SCHEMA))
        raise UsageError(f"{path}: unknown field {sorted(unknown)[0]!r}", "a policy has: " + known)
    demands = [fields.flag(name) if name in fields.record else False for name in _FIELDS]
    names = [fields.maybe_text(name) for name in _PATHS]
    allowed, revoked = (os.path.join(os.path.dirname(path), name) if name else None for name in names)
    if demands[0] and not allowed:
        raise UsageError(f"{path}: require_signature needs allowed_signers: anyone can sign")
    named = tuple(signers.read_signers(allowed)) if allowed else None
    return Policy(path, demands[0], named, revoked, demands[1], scan=_scan(fields.maybe_child(scans.SCHEMA)))


def _scan(fields: Optional[json_records.Fields]) -> Optional[scans.ScanDemand]:
    if fields is None:
        return None
    demand = records.read(scans.ScanDemand, fields)
    if set(fields.record) - set(demand._fields) or demand.severity not in scans.SEVERITIES[1:]:
        hint = "it has: days, and severity, one of " + ", ".join(scans.SEVERITIES[1:])
        raise UsageError(f"{fields.what}: an unknown field or severity", hint)
    return demand


def judge(
    policies: Iterable[Policy],
    keys: Sequence[Key],
    now: Optional[float] = None,
    what: str = "bundle",
    namespace: str = NAMESPACE,
) -> List[str]:
    """Return the names under which the policies know the signers; empty for a bundle without signatures.

    Args:
        keys: the keys whose signatures of the bundle are valid. Each policy that requires or names signers must accept
            one of them that no policy revokes.
        now: seconds since the epoch; None: the current time.
        what: what was signed, for errors.
        namespace: the purpose of the signatures, which the signers must have.

    Raises:
        Refused: a policy does not accept the bundle; the message has the reasons.
    """
    now = time.time() if now is None else now
    policies = list(policies)
    reasons = {}
    for key in keys:
        for policy in policies:
            if policy.revoked_keys and signers.is_revoked(policy.revoked_keys, key):
                reasons[key] = f"{key.fingerprint} is revoked by {policy.revoked_keys}"
    if keys and len(reasons) == len(set(keys)):
        _refuse(reasons.values(), f"each key that signed the {what} is revoked", what)
    good = [key for key in keys if key not in reasons]
    names = []
    for policy in policies:
        if policy.allowed is None or not (keys or policy.require_signature):
            continue
        if not keys:
            _refuse([], f"the {what} is not signed, and {policy.source} demands it", what)
        answers = [_answer(policy.allowed, key, now, namespace) for key in good]
        accepted = [who for who, _ in answers if who]
        if not accepted:
            told = list(reasons.values()) + [reason for _, reason in answers]
            _refuse(told, f"no signer of the {what} is accepted by {policy.source}", what)
        names += accepted
    return sorted(set(names))


def check_rollback(policies: Iterable[Policy], name: str, new: str, installed: Iterable[str]) -> List[str]:
    """Return a warning if a later version of the bundle ``name`` is among ``installed``; ``new`` is its version.

    Raises:
        Refused: a policy forbids an older version.
    """
    later = [there for there in installed if version.is_older(new, there)]
    if not later:
        return []
    latest = max(later, key=version.key)
    message = f"{name}:{new} is older than the installed {name}:{latest}"
    for policy in policies:
        if policy.refuse_rollback:
            hint = f"install a newer bundle, or remove {name}:{latest} first if you may"
            raise Refused(f"{message}, and {policy.source} forbids downgrades", hint)
    return [f"{message}; from now on {name} means the older one"]


def pin_policy(root: str, given: str) -> Optional[str]:
    """Store the text of --signers as the policy of a root folder without one; return its path, or None if one exists.

    The file of signers is written first: a policy without it is an error, but it has no effect without a policy.
    """
    path = os.path.join(root, POLICY_FILE)
    if files.lexists(path):
        return None
    files.write_text(os.path.join(root, SIGNERS_FILE), given)
    policy = {"require_signature": True, "allowed_signers": SIGNERS_FILE}
    files.write_text(path, json_records.pretty(json_records.stamped(SCHEMA, policy)))
    return path


def _answer(allowed: Iterable[signers.Signer], key: Key, now: float, namespace: str) -> Tuple[str, str]:
    """Return the name under which a key is accepted, or "" and the reason why it is not."""
    reasons = []
    for signer in allowed:
        if signer.key == key:
            reason = signer.refusal(now, namespace)
            if not reason:
                return f"{signer.who} ({key.fingerprint})", ""
            reasons.append(reason)
    return "", "; ".join(reasons) or f"{key.fingerprint} is not among the allowed signers"


def _refuse(reasons: Iterable[str], message: str, what: str) -> None:
    told = "; ".join(reasons)
    hint = f"on the laptop, `deployer sign` signs the {what} with an allowed key"
    raise Refused(message + (": " + told if told else ""), hint + "; or ask the site's admin about its policy")
