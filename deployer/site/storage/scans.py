"""The scans of bundles at the site: ROOT/scans/DIGEST.json, in the form in which they were signed.

Other users may be able to write there, so signatures are checked again whenever a policy demands a scan.
"""

import os
import time
from typing import List, Optional, Sequence, Tuple

from deployer.contract.base.errors import IntegrityError, Refused
from deployer.contract.bundle import plan_update, sshsig
from deployer.contract.bundle import scan as scans
from deployer.site.storage.store import Store
from deployer.system import files
from deployer.system.trust import policy, trust
from deployer.system.trust.policy import Policy


def path_of(store: Store, digest: str) -> str:
    """Return the path for the scan of the bundle with this digest."""
    return os.path.join(store.scans, os.path.basename(store.image_folder(digest)) + ".json")


def take(data: bytes, what: str, store: Store, digest: Optional[str] = None) -> Tuple[scans.Scan, str]:
    """Verify a scan and keep it; after an error the earlier scan stays. Return it, and its path.

    Args:
        what: its name in errors.
        digest: the bundle's digest; None: that in the scan.

    Raises:
        IntegrityError: a signature is wrong.
        Refused: a policy forbids it, or it is of another bundle.
        UsageError: it is not a scan.
    """
    policies = policy.load(store.root)
    # Where nobody demands a scan, its signers do not matter: it must not stop a push.
    scan = _verified(data, what, policies if any(one.scan for one in policies) else [], digest)
    path = path_of(store, scan.digest)
    files.write_text(path, data.decode("utf-8"))
    return scan, path


def take_beside(bundle: str, store: Store, digest: str) -> None:
    """Take the scan beside the file of a bundle, if there is one, as ``take`` does."""
    path = bundle + scans.SUFFIX
    if files.lexists(path):
        take(files.read_bytes(path, limit=plan_update.MAX_SIZE), path, store, digest)


def check(store: Store, digest: str, policies: Optional[Sequence[Policy]] = None) -> None:
    """Raise Refused unless the scan of a bundle meets the policies' demands; other errors as in ``take``.

    Args:
        policies: None: those that apply under this root folder.
    """
    policies = policy.load(store.root) if policies is None else policies
    demanding = next((one.source for one in policies if one.scan), None)
    path = path_of(store, digest)
    if demanding and not files.is_file(path):
        raise Refused(f"{demanding} demands a scan of the bundle, and none is here", scans.AGAIN)
    if demanding:
        _verified(files.read_bytes(path, limit=plan_update.MAX_SIZE), path, policies, digest)


def check_installed(store: Store, digest: str) -> None:
    """Check the scan of an installed image, which may be a group's: then also under the policies of the group's store.

    Raises:
        Refused: as ``check``; or others than the store's owner can change the image.
    """
    image = store.carrying(digest)
    place = image.store if image else store
    check(place, digest, [one for root in {store.root, place.root} for one in policy.load(root)])


def unused(store: Store) -> List[str]:
    """Return the scans of bundles that are not installed."""
    installed = {path_of(store, image.receipt.digest) for image in store.own()}
    return sorted({os.path.join(store.scans, name) for name in files.names(store.scans)} - installed)


def _verified(data: bytes, what: str, policies: Sequence[Policy], digest: Optional[str]) -> scans.Scan:
    try:
        message, signatures = plan_update.split(data)
        trust.establish(message, signatures, policies, "scan", sshsig.SCAN_NAMESPACE)
    except IntegrityError as error:
        raise IntegrityError(f"{what}: {error.message}", "the scan was changed: " + scans.AGAIN) from error
    scan = scans.read(message, what)
    if digest not in (None, scan.digest):
        raise Refused(f"{what} is the scan of another bundle: {scan.digest}, not {digest}", scans.AGAIN)
    for one in policies:
        fault = scans.fault(scan, one.scan, time.time()) if one.scan else ""
        if fault:
            raise Refused(f"{one.source} does not accept the scan of {scan.bundle}: {fault}", scans.AGAIN)
    return scan
