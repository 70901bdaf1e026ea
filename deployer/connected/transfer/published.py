"""Fetch the profile that a site publishes: /etc/deployer/profile.json with its facts.

Only root may have written it. A folder or file that others can write is refused, as `ssh` refuses such keys.
"""

from pathlib import Path

from deployer.connected.ground import user_settings
from deployer.connected.site_profile import published
from deployer.connected.site_profile.profile import Profile, of_host
from deployer.connected.transfer.remote import ADMINS_FOLDER, Remote
from deployer.contract.base.errors import Refused, UsageError
from deployer.system import terminal


def fetch(remote: Remote) -> Profile | None:
    """Return the kept copy of the site's published profile, updated if it is new; None if there is none.

    Raises:
        Refused: users other than root can write it.
        IntegrityError: the facts do not match.
    """
    there = remote.admins_files
    if f"{ADMINS_FOLDER}/{published.PROFILE}" not in there:
        return None
    for path, (owner, mode) in there.items():
        if owner != 0 or mode & 0o022:
            text = f"{remote.host}:{path} can be written by others than root (uid {owner}, mode {mode:o})"
            raise Refused(text, "tell the site's admin: chown root, chmod go-w")
    profile = remote.fetch(f"{ADMINS_FOLDER}/{published.PROFILE}", published.MAX_PROFILE)
    known = published.unchanged(remote.host, profile)
    if known:
        return known
    path = f"{ADMINS_FOLDER}/{published.FACTS}"
    facts = remote.fetch(path, published.MAX_FACTS) if path in there else None
    kept = published.keep(remote.host, profile, facts)
    terminal.tell(f"deployer: {remote.host} publishes a profile, {kept.profile.name}: {kept.paths[0]}")
    return kept.profile


def profile_of(site: str, ssh_config: Path | None = None) -> Profile:
    """Return the profile for a command's ``--site``: from a name or path, or the one that ``ssh:HOST`` publishes.

    Args:
        ssh_config: an ssh configuration; None: the one in the user's settings.
    """
    if not site.startswith(published.SSH):
        return published.used(site).profile
    host = site[len(published.SSH) :]
    reached = of_host(host, "write ssh:HOST, as you give it to ssh")
    with Remote(reached, user_settings.path("ssh_config", ssh_config)) as remote:
        profile = fetch(remote)
    if profile is None:
        hint = f"ask its admin, or make one: deployer capture {host}"
        raise UsageError(f"{host} publishes no profile: there is no {ADMINS_FOLDER}/{published.PROFILE}", hint)
    return profile
