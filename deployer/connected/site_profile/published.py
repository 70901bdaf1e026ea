"""Profiles that an admin publishes on the site itself: made here, fetched, and kept here.

A published profile is one file with its facts and a signature. It provides facts, but never decides where a bundle
goes: the user chooses the host, and a workspace that the user has chosen stays. The first signer of a site's profile
is pinned in one of the user's files. After that, unsigned profiles and other signers are refused.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import xdg
from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile import search
from deployer.connected.site_profile.profile import Profile, Resolved, comparable, load, resolve
from deployer.connected.site_profile.signatures import sign_profile
from deployer.contract.base import facts, json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.sshsig import Key
from deployer.contract.rules import drift
from deployer.system import files, terminal
from deployer.system.trust import signature

#: The file names in the admin's folder, and here.
PROFILE, FACTS, SIGNATURE = "profile.json", "profile.facts.json", "profile.json.sig"
#: Beside them here: the hosts that published profiles of this name, signed with a pinned key; the latest is the last.
HOSTS = "hosts"
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
        name = self.profile.name
        if not self.first:
            return f"{name} has published a new profile, signed by the pinned {self.key.fingerprint}: {self.path}"
        site = name if search.names().get(name) == self.path else f"{SSH}{_hosts(name)[-1]}"
        return (
            f"{name} publishes a profile, signed by {self.key.fingerprint}, pinned from now on: compare it with "
            f"its admin's ({pin_path(name)}); use the profile with --site {site}"
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
        Refused: it is unsigned, its signer is not the pinned one, it is older than the kept one, or the host previously
            published another name.
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
    record = json_records.parse(found.profile, what)
    name = _name(record, what)
    pin, pinned = pin_path(name), _pins(name)
    if pinned and key not in pinned:
        known = ", ".join(each.fingerprint for each in pinned)
        hint = f"ask the admin of {name} by another way; if the key was replaced, write into {pin}: {key.line}"
        raise Refused(f"{what} is signed by {key.fingerprint}, not by the pinned {known}", hint)
    _check_whole(record, found, what)
    folder = place(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as made:
        new, old = Path(made, "new"), Path(made, "old")
        _write(new, found, name, [host for host in _hosts(name) if host != found.host])
        _check_newer(load(str(new / f"{name}.yaml")), folder, what)  # reports all errors
        _check_one_name(found.host, name, what)
        if not pinned:  # before the copy, so that each kept profile has a pin
            files.write_text(str(pin), key.line + "\n")
        _exchange(new, folder, old)
    path = search.published_file(name)
    return KeptPublication(load(str(path)), path, key, not pinned)


def unchanged(host: str, profile: bytes) -> Profile | None:
    """Return the kept profile if its bytes are the same, this host published it, and its signer is pinned."""
    for name in search.published_names():
        try:
            if files.read_bytes(str(place(name) / PROFILE), limit=MAX_PROFILE) != profile:
                continue
            key = _signer(profile, files.read_bytes(str(place(name) / SIGNATURE), limit=MAX_SIGNATURE))
            found = load(str(search.published_file(name)))
        except DeployerError:
            continue  # verify and keep it again
        if host in _hosts(found.name) and key in _pins(found.name):
            return found.model_copy(update={"login": found.login.model_copy(update={"host": host})})
    return None


def _check_newer(new: Profile, folder: Path, what: str) -> None:
    """Raise Refused if the profile in ``folder`` has a later date. A damaged profile has no date."""
    if not files.is_folder(str(folder)):
        return
    try:
        before = load(str(folder / f"{folder.name}.yaml")).source.date
    except DeployerError as error:
        terminal.complain([f"deployer: the profile kept in {folder} is replaced, since it is damaged: {error.message}"])
        return
    date = new.source.date
    if before and (date is None or date < before):
        raise Refused(f"{what} is of {date or 'no date'}, older than the one kept here ({before})")


def _check_one_name(host: str, name: str, what: str) -> None:
    """Raise Refused if the host previously published another name: that name's pin would be bypassed."""
    for other in search.published_names():
        if other != name and _machine(host) in map(_machine, _hosts(other)):
            hint = f"ask its admin by another way; if the site was renamed: rm -r {place(other)}"
            raise Refused(f"{what} is called {name}, but {host} published {other} before, whose signer is pinned", hint)


def _hosts(name: str) -> list[str]:
    """Return the hosts that a kept profile came from, the latest last; empty if the record is damaged."""
    try:
        return files.read_text(str(place(name) / HOSTS)).splitlines()
    except DeployerError:
        return []


def _machine(host: str) -> str:
    return host.rpartition("@")[2].lower()


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


def newest(own: Profile, tell: Callable[[str], None] = terminal.tell) -> Profile:
    """Return a profile, or its site's published profile if that was fetched and is newer.

    The published one must come from the profile's own host and be signed with a pinned key: a site chooses its name, so
    two sites can have the same. It is used with the user's own hosts and workspace. Differences are reported.
    """
    path = search.published_file(own.name)
    if not files.lexists(str(path)):
        return own
    try:
        published = load(str(path))
    except DeployerError as error:
        terminal.complain([f"deployer: the profile kept in {path.parent} is not used: {error.message}"])
        return own
    before, date = own.source.date, published.source.date
    newer = date is not None and (before is None or date > before)
    if own.login.host not in _hosts(own.name) or not newer:
        return own
    users = {key: value for key in ("host", "transfer") if (value := getattr(own.login, key)) is not None}
    login = published.login.model_copy(update=users)
    workspace = own.workspace or published.workspace
    for line in _differences(own, published):
        tell(line)
    return published.model_copy(update={"login": login, "workspace": workspace})


def used(site: str, tell: Callable[[str], None] = terminal.tell) -> Resolved:
    """Return the profile for a name or path: its file, or the newer one that its site published.

    If both exist, ``tell`` receives which one is used. ``ssh:HOST`` selects the profile fetched earlier from that host.
    """
    if site.startswith(SSH):
        return resolve(str(kept_from(site[len(SSH) :])))
    own = resolve(site)
    name = own.profile.name
    path = search.published_file(name)
    profile = newest(own.profile, tell)
    if profile is own.profile:
        if path not in own.paths and (hosts := _hosts(name)):
            tell(f"deployer: profile {name}: {own.paths[0]} is used, not what {SSH}{hosts[-1]} publishes")
        return own
    found = resolve(str(path))
    users: dict[KeyPath, Any] = {("login", key): getattr(own.profile.login, key) for key in ("host", "transfer")}
    users["workspace",] = own.profile.workspace
    found.layers.others = {at: own.layers for at, value in users.items() if value is not None}
    return found._replace(profile=profile)


def sites() -> list[str]:
    """Return ``ssh:HOST`` for each kept profile, with the host that published it last."""
    return [f"{SSH}{host}" for name in search.published_names() for host in _hosts(name)[-1:]]


def kept_from(host: str) -> Path:
    """Return the file of the kept profile that a host published. Raises UsageError if none is kept."""
    for name in search.published_names():
        if host in _hosts(name):
            return search.published_file(name)
    hint = f"deployer check B.tar --site ssh:{host} fetches what it publishes"
    raise UsageError(f"no profile of {host} was fetched", hint)


def place(name: str) -> Path:
    """Return the folder for a site's published profile."""
    return search.published_folder() / name


def pin_path(name: str) -> Path:
    """Return the file with the pinned signers of a site's profile, one public key per line."""
    return xdg.config_folder("publishers") / name


def _differences(own: Profile, published: Profile) -> Iterator[str]:
    shown = drift.between(comparable(own), comparable(published))
    yield (
        f"deployer: the profile that {published.name} publishes is used: it is of {published.source.date}, "
        f"the one here of {own.source.date or 'no date'}; {len(shown)} differences"
    )
    yield from (f"  {each}" for each in shown[:10])
    if len(shown) > 10:
        yield f"  and {len(shown) - 10} more: deployer profile diff"


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


def _write(folder: Path, found: Publication, name: str, hosts: Sequence[str]) -> None:
    """Write all files of a published profile, the entry point last. ``hosts`` are its earlier publishers."""
    for file, data in ((FACTS, found.facts), (SIGNATURE, found.signature), (PROFILE, found.profile)):
        if data is not None:
            with files.published(str(folder / file)) as stream:
                stream.write(data)
    files.write_text(str(folder / HOSTS), "".join(f"{host}\n" for host in (*hosts, found.host)))
    own = {"format": 1, "name": name, "extends": f"./{PROFILE}", "login": {"host": found.host, "transfer": None}}
    files.write_text(str(folder / f"{name}.yaml"), json.dumps(own) + "\n")


def _signer(profile: bytes, blob: bytes) -> Key:
    return signature.check(sshsig.unarmored(blob.decode("ascii", "replace")), profile, sshsig.PROFILE_NAMESPACE)


def _pins(name: str) -> list[Key]:
    """Return the pinned signers of a site's profile."""
    pin = pin_path(name)
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
