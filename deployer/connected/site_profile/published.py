"""Profiles that an admin publishes on the site itself: made here, fetched, and kept here.

A published profile is one file with its facts and a signature. It provides facts, but never decides where a bundle
goes: the user chooses the host. The first signer of a host's profile is pinned in one of the user's files. After that,
unsigned profiles and other signers are refused.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from deployer.connected.ground import xdg
from deployer.connected.site_profile import search
from deployer.connected.site_profile.profile import Profile, Resolved, load, resolve
from deployer.connected.site_profile.signatures import sign_profile
from deployer.contract.base import facts, json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.sshsig import Key
from deployer.system import files, terminal
from deployer.system.trust import signature

#: The file names in the admin's folder, and here.
PROFILE, FACTS, SIGNATURE = "profile.json", "profile.facts.json", "profile.json.sig"
#: Beside them here: the entry point, which has the host.
OWN = "profile.yaml"
#: The prefix that turns an ssh host into a site's name: it selects the profile that this host published.
SSH = "ssh:"
#: Bytes.
MAX_PROFILE, MAX_FACTS, MAX_SIGNATURE = 4 * 1024 * 1024, 32 * 1024 * 1024, 64 * 1024


class Publication(NamedTuple):
    """A published profile as bytes, still untrusted.

    Attributes:
        host: the host that it came from, as the user wrote it.
        profile: the bytes of PROFILE.
        facts: the bytes of FACTS; None: the file does not exist.
        signature: the bytes of SIGNATURE; None: the file does not exist.
    """

    host: str
    profile: bytes
    facts: bytes | None
    signature: bytes | None


class KeptPublication(NamedTuple):
    """A published profile, verified and kept here.

    Attributes:
        profile: the profile.
        path: its local file.
        key: the key that signed it.
        first: its signer was pinned now.
    """

    profile: Profile
    path: Path
    key: Key
    first: bool

    def __str__(self) -> str:
        host, key = self.profile.login.host or "", self.key.fingerprint
        if not self.first:
            return f"{host} has published a new profile, signed by the pinned {key}: {self.path}"
        return (
            f"{host} publishes a profile, {self.profile.name}, signed by {key}, pinned from now on: compare it with "
            f"its admin's ({pin_path(host)}); use the profile with --site {SSH}{host}"
        )


def publish(site: str, key: Path, folder: Path) -> Path:
    """Write a profile without ``extends``, its facts and its signature into ``folder``; return the profile's path.

    Args:
        key: a private key, or the .pub file of a key in an agent.
    """
    record = load(site).model_dump(mode="json", exclude_unset=True)
    groups = (record.get(group, {}) for group in ("partitions", "mpi"))
    items = ({name: tree for name, each in group.items() if (tree := _taken(each))} for group in groups)
    trees = facts.record(_taken(record.get("login")), *items)
    _taken(record)
    data = json_records.dumps(trees)
    record = {name: value for name, value in record.items() if name not in ("extends", "facts")}
    record["facts"] = {"file": FACTS, "sha256": hashlib.sha256(data).hexdigest()}
    with files.published(str(folder / FACTS)) as stream:
        stream.write(data)
    files.write_text(str(folder / PROFILE), json_records.pretty(record))
    sign_profile(folder / PROFILE, key)
    return folder / PROFILE


def keep(found: Publication) -> KeptPublication:
    """Verify a published profile, pin its signer if there is no pin yet, and keep it.

    Raises:
        Refused: it is unsigned, its signer is not the pinned one, or it is older than the kept one.
        IntegrityError: the signature or the facts do not match.
        UsageError: it is not a profile, or has keys that a published profile must not have.
    """
    what = f"the profile that {found.host} publishes"
    if found.signature is None:
        raise Refused(f"{what} is not signed", "ask its admin: deployer profile publish FILE --key KEY -o DIR")
    try:
        key = _signer(found.profile, found.signature)
    except IntegrityError as error:
        raise IntegrityError(f"{what}: {error.message}", "it was changed after it was signed: ask its admin") from error
    pin, pinned = pin_path(found.host), _pins(found.host)
    if pinned and key not in pinned:
        known = ", ".join(each.fingerprint for each in pinned)
        hint = f"ask its admin by another way; if the key was replaced, write into {pin}: {key.line}"
        raise Refused(f"{what} is signed by {key.fingerprint}, not by the pinned {known}", hint)
    record = json_records.parse(found.profile, what)
    name = _name(record, what)
    _check_whole(record, found, what)
    folder = place(found.host)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as made:
        new, old = Path(made, "new"), Path(made, "old")
        _write(new, found, name)
        _check_newer(load(str(new / OWN)), folder, what)  # reports all errors
        if not pinned:  # before the copy, so that each kept profile has a pin
            files.write_text(str(pin), key.line + "\n")
        _exchange(new, folder, old)
    return KeptPublication(load(str(folder / OWN)), folder / OWN, key, not pinned)


def unchanged(host: str, profile: bytes) -> Profile | None:
    """Return the profile kept from a host if its bytes are the same, and its signer is pinned."""
    folder = place(host)
    try:
        if files.read_bytes(str(folder / PROFILE), limit=MAX_PROFILE) != profile:
            return None
        key = _signer(profile, files.read_bytes(str(folder / SIGNATURE), limit=MAX_SIGNATURE))
        found = load(str(folder / OWN))
    except DeployerError:
        return None  # verify and keep it again
    of_host = found.model_copy(update={"login": found.login.model_copy(update={"host": host})})
    return of_host if key in _pins(host) else None


def _check_newer(new: Profile, folder: Path, what: str) -> None:
    """Raise Refused if the profile in ``folder`` has a later date. A damaged profile has no date."""
    if not files.is_folder(str(folder)):
        return
    try:
        before = load(str(folder / OWN)).source.date
    except DeployerError as error:
        terminal.complain([f"deployer: the profile kept in {folder} is replaced, since it is damaged: {error.message}"])
        return
    date = new.source.date
    if before and (date is None or date < before):
        raise Refused(f"{what} is of {date or 'no date'}, older than the one kept here ({before})")


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """Rename ``new`` to ``folder``, and an existing ``folder`` to ``old``. An error restores the old one."""
    there = files.lexists(str(folder))
    if there:
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if there:
            old.rename(folder)
        raise


def used(site: str) -> Resolved:
    """Return the profile for a name or path, or the one that was fetched earlier from the host of ``ssh:HOST``."""
    if not site.startswith(SSH):
        return resolve(site)
    path = place(site[len(SSH) :]) / OWN
    if not files.lexists(str(path)):
        raise UsageError(f"no profile of {site[len(SSH) :]} was fetched", f"deployer check B.tar --site {site}")
    return resolve(str(path))


def sites() -> list[str]:
    """Return ``ssh:HOST`` for each kept profile."""
    return [SSH + unquote(name) for name in files.names(str(_folder())) if not name.startswith(".")]


def place(host: str) -> Path:
    """Return the folder for the profile that a host published."""
    return _folder() / _machine(host)


def pin_path(host: str) -> Path:
    """Return the file with the pinned signers of a host's profile, one public key per line."""
    return xdg.config_folder("publishers") / _machine(host)


def _folder() -> Path:
    return xdg.state_folder("published")


def _machine(host: str) -> str:
    """Return a file name for a host, without the user."""
    name = quote(host.rpartition("@")[2].lower(), safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def _name(record: Any, what: str) -> str:
    if not isinstance(record, dict):
        raise UsageError(f"{what} is not a JSON object")
    name = record.get("name")
    if not isinstance(name, str) or not search.is_name(name):
        raise UsageError(f"{what} has no valid name: {name!r}")
    if "extends" in record:
        raise UsageError(f"{what} extends another profile", "its admin: deployer profile publish makes a whole one")
    return name


def _check_whole(record: Record, found: Publication, what: str) -> None:
    """Raise IntegrityError unless the facts have the digest in the profile."""
    named = record.get("facts")
    digest = hashlib.sha256(found.facts).hexdigest() if found.facts is not None else None
    if named is not None and named != {"file": FACTS, "sha256": digest}:
        raise IntegrityError(f"{what} and its {FACTS} do not belong together", "ask its admin to publish both again")


def _write(folder: Path, found: Publication, name: str) -> None:
    """Write all files of a published profile, the entry point last."""
    for file, data in ((FACTS, found.facts), (SIGNATURE, found.signature), (PROFILE, found.profile)):
        if data is not None:
            with files.published(str(folder / file)) as stream:
                stream.write(data)
    own = {"format": 1, "name": name, "extends": f"./{PROFILE}", "login": {"host": found.host, "transfer": None}}
    files.write_text(str(folder / OWN), json.dumps(own) + "\n")


def _signer(profile: bytes, blob: bytes) -> Key:
    return signature.check(sshsig.unarmored(blob.decode("ascii", "replace")), profile, sshsig.PROFILE_NAMESPACE)


def _pins(host: str) -> list[Key]:
    """Return the pinned signers of a host's profile."""
    pin = pin_path(host)
    lines = files.read_text(str(pin)).splitlines() if files.lexists(str(pin)) else []
    try:
        return [sshsig.read_key_text(*f"{line.strip()} ".split(" ")[:2]) for line in lines]
    except IntegrityError as error:
        raise UsageError(f"{pin}: {error.message}", "it has a public key per line, as in a .pub file") from error


def _taken(group: Any) -> Record | None:
    """Remove the facts of libraries from a group of a profile, and return them."""
    if not isinstance(group, dict):
        return None
    tree = {key: group.pop(key) for key in facts.KEYS if key in group}
    return {key: tree.get(key) or {} for key in facts.KEYS} if any(tree.values()) else None
