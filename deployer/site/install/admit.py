"""admit: the last check of a bundle before it is unpacked, and the pinning of the first signers in the store."""

from typing import Iterable, List, Sequence

from deployer.contract.base import dialogue
from deployer.contract.bundle.manifest import PLANS_PREFIX, Manifest
from deployer.site.storage import scans
from deployer.site.storage.store import Store
from deployer.system import files
from deployer.system.trust.policy import Policy, check_rollback, pin_policy
from deployer.system.trust.trust import Trust, own


def admit(manifest: Manifest, digest: str, trust: Trust, store: Store, policies: Sequence[Policy]) -> List[str]:
    """Return warnings about a bundle that may be installed.

    Args:
        policies: the policies that decided ``trust``.

    Raises:
        Refused: a policy forbids it.
    """
    scans.check(store, digest, policies)
    name, version = manifest.name, manifest.version
    receipts = [image.receipt for image in store.installed() if image.receipt.name == name]
    warnings = origin(trust, digest)
    warnings += check_rollback(policies, name, version, [receipt.version for receipt in receipts])
    others = [receipt.digest for receipt in receipts if receipt.version == version and receipt.digest != digest]
    if others:  # the newest first
        before = dialogue.replaces(f"{name}:{version}", others[0])
        warnings.append(f"{before}; from now on the name means this one")
    return warnings + _plans_lost(manifest, store)


def _plans_lost(manifest: Manifest, store: Store) -> List[str]:
    """Return a warning if the bundle lacks a plan that the newest installed image of its name has."""
    before = store.newest(manifest.name)
    has = {member.name for member in manifest.members}
    lost = [site for site in before.sites() if PLANS_PREFIX + site + ".json" not in has] if before else []
    if not before or not lost:
        return []
    words = (", ".join(lost), before.receipt.label)
    return ["it has no plan for {}, which {} has: `run` needs one; use pack --site".format(*words)]


def origin(trust: Trust, digest: str) -> List[str]:
    """Return a warning if the bundle is unsigned, or signed only with unknown keys or the user's own key."""
    if trust.signers:
        return []
    mine = own(trust.keys)
    if mine:
        return [mine]
    if trust.keys:
        keys = ", ".join(key.fingerprint for key in trust.keys)
        known = "which no policy here knows; to trust signers, use --signers FILE"
        return [f"{dialogue.UNKNOWN_SIGNERS}{keys}, {known}"]
    ask = "compare %s with the digest that `pack` printed; if another person packed it, by phone or on paper"
    return [dialogue.NOT_SIGNED + ask % digest]


def pin_signers(store: Store, policies: Iterable[Policy]) -> List[str]:
    """Keep the --signers file as the policy of a store that has none, and report it (trust on first use).

    Call this after installing a bundle that satisfies the policy.
    """
    given = next((judge.given for judge in policies if judge.given is not None), None)
    if given is None:
        return []
    with files.errors_named("write under " + store.root):
        pinned = pin_policy(store.root, given)
    return [f"from now on {pinned} requires one of these signers for every bundle"] if pinned else []
