"""push: a bundle goes to a site, is verified there, and installed.

The site says which segments it has; only the others travel, in parts that get their names when they are whole. What
came before a cut is among what the site has at the next push. The far side rebuilds the file from parts and kept
bundles, and gives it its final name when every byte of it was verified there.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from deployer.connected.bundle import shipment as parts
from deployer.connected.bundle.shipment import Shipment
from deployer.connected.check.check import check_carried
from deployer.connected.ground import private, progress
from deployer.connected.site_profile.profile import Profile
from deployer.connected.transfer.remote import Remote
from deployer.contract import delta, json_records
from deployer.contract.delta import HeldSegments
from deployer.contract.errors import Refused, SpaceError
from deployer.contract.manifest import PLANS_PREFIX, Manifest
from deployer.contract.verdict import REFUSE, Checked
from deployer.system import files
from deployer.system.verify import VerifiedBundle, begin, opened, verify

#: The far side unpacks and checks at disk speed; a slow shared file system may take its time.
_INSTALL_SECONDS = 4 * 3600


class PushOptions(NamedTuple):
    """``full``: send all, whatever the site has. ``dry_run``: ask and tell, send nothing. ``transfer_host``: bring the
    parts by sftp through this host, for sites whose login nodes are not for data. ``force``: send what ``check``
    refuses. ``facts``: where ``check`` keeps facts of files, if anywhere. ``squashfs``: have the image's SquashFS file
    made there too. ``without_plan``: send a bundle that has no plan for the site, so ``run`` cannot use it there."""

    full: bool = False
    dry_run: bool = False
    transfer_host: str | None = None
    force: bool = False
    facts: Path | None = None
    squashfs: bool = False
    without_plan: bool = False


DEFAULTS = PushOptions()


class Pushed(NamedTuple):
    """What a push did: bytes that went there and came back (the site's list of what it has; ssh's own not counted),
    and where the image is over there (None after a dry run). ``checked`` is the verdict on the plan for the site, None
    where the bundle has none for it; ``squashfs`` what the site says of the SquashFS file that it made, if it did."""

    digest: str
    sent: int
    received: int
    parts: int
    folder: str | None
    seconds_transfer: float
    seconds_install: float
    python: str
    warnings: tuple[str, ...] = ()  # of the far side
    checked: Checked | None = None
    squashfs: json_records.Record | None = None

    def record(self) -> json_records.Record:
        return {**self._asdict(), "checked": self.checked.record() if self.checked else None}


class FolderPush(NamedTuple):
    """What a push into a folder wrote; ``plans`` are the sites that the bundle has a plan for, ``data`` if it needs
    none."""

    digest: str
    folder: str
    sent: int
    parts: int
    plans: Sequence[str] = ()
    data: bool = False

    def record(self) -> json_records.Record:
        return dict(self._asdict())


def push(bundle: Path, profile: Profile, ssh_config: Path | None = None, options: PushOptions = DEFAULTS) -> Pushed:
    """Send ``bundle`` to the site and install it there; of a bundle that is installed there already nothing is sent.

    Raises IntegrityError and Refused (no plan for the site, or what ``check`` refuses) before anything is sent,
    TransferError, SpaceError, and the far side's own errors. After any of them another push goes on where this one
    ended.
    """
    with opened(str(bundle)) as stream:
        verified = _verified(stream, bundle)
        checked = check_carried(begin(stream, str(bundle)), profile, options.facts)
        if checked is None and not verified.manifest.is_data and not options.without_plan:
            raise _no_plan(profile, verified)
        if checked and checked.verdict == REFUSE and not options.force:
            raise _refused(profile, checked)
        with Remote(profile, ssh_config) as remote:
            remote.prepare()
            pushed = _push(stream, verified, remote, options)._replace(checked=checked)
            if options.squashfs and pushed.folder:
                pushed = pushed._replace(squashfs=_squash(verified, remote))
            return pushed


def _squash(bundle: VerifiedBundle, remote: Remote) -> json_records.Record | None:
    answer = remote.site(["squash", f"{bundle.manifest.name}:{bundle.manifest.version}"], timeout=_INSTALL_SECONDS)
    made: json_records.Record | None = answer["squashfs"]
    return made


def plans_in(manifest: Manifest) -> list[str]:
    """Return the names of the sites that a bundle has a plan for."""
    found = (member.name for member in manifest.members if member.name.startswith(PLANS_PREFIX))
    return sorted(name[len(PLANS_PREFIX) :].removesuffix(".json") for name in found)


def _no_plan(profile: Profile, bundle: VerifiedBundle) -> Refused:
    """Return the refusal of a bundle that would take the place of one that runs, and could not run itself."""
    label = f"{bundle.manifest.name}:{bundle.manifest.version}"
    has = ", ".join(plans_in(bundle.manifest)) or "none"
    return Refused(
        f"{label} has no plan for {profile.name}, so `run` cannot use it there; its plans: {has}",
        f"pack it again with --site {profile.name}; or send it with --without-plan for `exec` and `shell` only",
    )


def _refused(profile: Profile, checked: Checked) -> Refused:
    first, *others = checked.against
    more = f", and {len(others)} more findings" if others else ""
    return Refused(
        f"check predicts that it will not run on {profile.name}: {first.code}: {first.subject}: {first.message}{more}",
        f"{first.remedy}; `push --force` sends it anyway",
    )


def _push(stream: IO[bytes], bundle: VerifiedBundle, remote: Remote, options: PushOptions) -> Pushed:
    known = remote.site(["known", bundle.digest])
    done = Pushed(bundle.digest, 0, len(json.dumps(known)), 0, known["folder"], 0.0, 0.0, str(known["python"]))
    if known["folder"]:
        return done
    held = frozenset() if options.full else delta.read_held(str(known["held"]))
    shipment = parts.shipment(stream, bundle.seal, bundle.manifest, held)
    done = done._replace(sent=shipment.size, parts=len(shipment.parts))
    _check_space(remote, int(known["free"]), shipment, bundle)
    if options.dry_run:
        return done
    folder = f"{remote.workspace}/incoming/{bundle.digest.split(':')[1][:32]}"
    started = time.monotonic()
    _send(stream, bundle, shipment, remote, folder, options.transfer_host)
    sent = time.monotonic()
    words = ["receive", folder]
    with progress.far_bar("install") as tell:
        answer = remote.watch(words, _INSTALL_SECONDS, tell) if tell else remote.site(words, _INSTALL_SECONDS)
    return done._replace(
        folder=str(answer["folder"]),
        seconds_transfer=sent - started,
        seconds_install=time.monotonic() - sent,
        warnings=tuple(answer["warnings"]),
    )


def _send(
    stream: IO[bytes], bundle: VerifiedBundle, shipment: Shipment, remote: Remote, folder: str, host: str | None
) -> None:
    with progress.bar("send", shipment.size) as advance:
        if host is None:
            remote.feed(["take", bundle.digest], parts.as_stream(stream, shipment, advance))
            return
        with private.PrivateFolder(private.PARTS) as local:
            made = parts.as_files(stream, shipment, Path(local, "parts"), advance)
            places = [file for file in made if delta.read_name(file.name)]
            remote.upload(places, folder, host)


def push_to(bundle: Path, folder: Path, receipt: Path | None = None) -> FolderPush:
    """Write what a site lacks of ``bundle`` into ``folder``, to be carried there.

    ``receipt`` is what the site's ``receipt`` command wrote; without one, all of the bundle goes.
    """
    held: HeldSegments = frozenset()
    if receipt is not None:
        held = delta.read_receipt(files.read_text(str(receipt)).encode(), str(receipt))
    with opened(str(bundle)) as stream:
        verified = _verified(stream, bundle)
        manifest = verified.manifest
        shipment = parts.shipment(stream, verified.seal, manifest, held)
        with progress.bar("write", shipment.size) as advance:
            parts.as_files(stream, shipment, folder, advance)
    size, count = shipment.size, len(shipment.parts)
    return FolderPush(verified.digest, str(folder), size, count, plans_in(manifest), manifest.is_data)


def _verified(stream: IO[bytes], bundle: Path) -> VerifiedBundle:
    with progress.bar("verify", bundle.stat().st_size) as advance:
        return verify(stream, str(bundle), advance)


def _check_space(remote: Remote, free: int, shipment: Shipment, bundle: VerifiedBundle) -> None:
    """Raise SpaceError unless the bundle fits beside its parts, and then, without them, beside its image."""
    need = shipment.ending.end + max(shipment.size, bundle.manifest.unpacked)
    if free < need:
        raise SpaceError(
            f"{remote.host}:{remote.workspace} has {free} bytes free; bundle and image need {need}",
            "free some space, or set another workspace in the site profile",
        )
