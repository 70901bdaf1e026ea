"""Profiles that an admin publishes on the site itself: made here, fetched, and kept here.

A published profile is one file with its facts. It provides facts, but never decides where a bundle goes: the user
chooses the host. It is as trusted as the host: only root there may have written it, and ssh knows the host.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from deployer.connected.ground import xdg
from deployer.connected.site_profile import search
from deployer.connected.site_profile.profile import Profile, Resolved, load, resolve
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.site import facts
from deployer.system import files

#: The file names in the admin's folder, and here.
PROFILE, FACTS = "profile.json", "profile.facts.json"
#: Beside them here: the entry point, which has the host.
OWN = "profile.yaml"
#: The prefix that turns an ssh host into a site's name: it selects the profile that this host published.
SSH = "ssh:"
#: Bytes.
MAX_PROFILE, MAX_FACTS = 4 * 1024 * 1024, 32 * 1024 * 1024


def publish(site: str, folder: Path) -> Path:
    """Write a profile without ``extends``, and its facts, into ``folder``; return the profile's path."""
    record = load(site).model_dump(mode="json", exclude_unset=True)
    groups = (record.get(group, {}) for group in ("partitions", "mpi"))
    items = ({name: tree for name, each in group.items() if (tree := _taken(each))} for group in groups)
    trees = facts.record(_taken(record.get("login")), *items)
    _taken(record)
    data = json_records.dumps(trees)
    record = {name: value for name, value in record.items() if name not in ("extends", "facts")}
    record["facts"] = {"file": FACTS, "sha256": hashlib.sha256(data).hexdigest()}
    files.write_bytes(str(folder / FACTS), data)
    files.write_text(str(folder / PROFILE), json_records.pretty(record))
    return folder / PROFILE


def keep(host: str, profile: bytes, tree: bytes | None) -> Resolved:
    """Check and keep a published profile.

    Args:
        host: the host that it came from, as the user wrote it.
        profile: the bytes of PROFILE, still untrusted.
        tree: the bytes of FACTS, still untrusted; None: the file does not exist.

    Raises:
        IntegrityError: the facts do not match.
        UsageError: it is not a profile, or has keys that a published profile must not have.
    """
    what = f"the profile that {host} publishes"
    record = json_records.parse(profile, what)
    name = _name(record, what)
    digest = hashlib.sha256(tree).hexdigest() if tree is not None else None
    if record.get("facts") not in (None, {"file": FACTS, "sha256": digest}):
        raise IntegrityError(f"{what} and its {FACTS} do not belong together", "ask its admin to publish both again")
    own = {"format": 1, "name": name, "extends": f"./{PROFILE}", "login": {"host": host, "transfer": None}}
    folder = place(host)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as made:
        new = Path(made, "new")
        if tree is not None:
            files.write_bytes(str(new / FACTS), tree)
        files.write_bytes(str(new / PROFILE), profile)
        files.write_text(str(new / OWN), json.dumps(own) + "\n")
        load(str(new / OWN))  # reports all errors
        files.remove_tree(str(folder))  # it can be fetched again
        new.rename(folder)
    return resolve(str(folder / OWN))


def unchanged(host: str, profile: bytes) -> Profile | None:
    """Return the profile kept from a host if its bytes are the same."""
    folder = place(host)
    try:
        if files.read_bytes(str(folder / PROFILE), limit=MAX_PROFILE) != profile:
            return None
        found = load(str(folder / OWN))
    except DeployerError:
        return None  # check and keep it again
    return found.model_copy(update={"login": found.login.model_copy(update={"host": host})})


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
    return [SSH + unquote(name) for name in files.names(str(xdg.state_folder("published"))) if not name.startswith(".")]


def place(host: str) -> Path:
    """Return the folder for the profile that a host published, to any of its users."""
    name = quote(host.rpartition("@")[2].lower(), safe="")
    return xdg.state_folder("published") / (f"%2E{name[1:]}" if name.startswith(".") else name)


def _name(record: Any, what: str) -> str:
    if not isinstance(record, dict):
        raise UsageError(f"{what} is not a JSON object")
    name = record.get("name")
    if not isinstance(name, str) or not search.is_name(name):
        raise UsageError(f"{what} has no valid name: {name!r}")
    if "extends" in record:
        raise UsageError(f"{what} extends another profile", "its admin: deployer profile publish makes a whole one")
    return name


def _taken(group: Any) -> Record | None:
    """Remove the facts of libraries from a group of a profile, and return them."""
    if not isinstance(group, dict):
        return None
    tree = {key: group.pop(key) for key in facts.KEYS if key in group}
    return {key: tree.get(key) or {} for key in facts.KEYS} if any(tree.values()) else None
