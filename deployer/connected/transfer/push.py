"""push: send a bundle to a site, where it is verified and installed.

The site lists the segments that it has. Only the others are sent, in parts. A part gets its final name when complete,
so after a broken connection the next push does not send the complete parts again. The site rebuilds the bundle from
parts and kept bundles, and gives it its final name after verifying every byte. If a site lacks much of a bundle, it
installs the bundle while the parts arrive: they have the order of the file, with the manifest first.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from deployer.connected.bundle import medium
from deployer.connected.bundle.about import scan
from deployer.connected.bundle.shipment import README, Shipment, as_files, as_stream, new_folder, shipment_for
from deployer.connected.check.check import Verdict, check_carried
from deployer.connected.ground import locked_folder, progress
from deployer.connected.site_profile.profile import Profile
from deployer.connected.transfer.remote import Remote
from deployer.contract.base import json_records, records
from deployer.contract.base.dialogue import UNKNOWN_SIGNERS
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, SpaceError, TransferError
from deployer.contract.base.json_records import Fields
from deployer.contract.base.text import counted
from deployer.contract.bundle import delta, plan_update
from deployer.contract.bundle.delta import HeldSegments, Part
from deployer.contract.bundle.manifest import PLANS_PREFIX, Manifest
from deployer.contract.bundle.scan import ON_MEDIUM
from deployer.contract.rules.verdict import REFUSE, Checked
from deployer.system import files, terminal
from deployer.system.trust import trust
from deployer.system.trust.verify import Verification, begin, opened, size_of, verify_rest

#: The site unpacks and verifies at disk speed, and shared file systems may be slow.
_INSTALL_SECONDS = 4 * 3600
#: Seconds between two checks of what has arrived. Each is a `du` on the site's file system.
_LOOK_SECONDS = 5


class PushOptions(NamedTuple):
    """Options of ``push``.

    Attributes:
        full: send all segments, including those that the site has.
        dry_run: compute what would be sent, but send nothing.
        transfer_host: send the parts with sftp through this host, for sites whose login nodes are not for data.
        force: send a bundle that ``check`` refuses.
        facts: the cache folder of ``check`` for file facts; None: no cache.
        squashfs: also make the image's SquashFS file on the site.
        without_plan: send a bundle without a plan for the site. ``run`` cannot use it there.
        judged: the caller has just checked the bundle's plans.
        job: the job to run, which alone is checked; None: any job.
        ahead: the token of ``Ahead`` with which parts were sent before; empty: none.
        packed: the digest of the bundle that the caller packed. Only this bundle is sent, and only the sent segments
            are verified here. Empty: the whole bundle is verified.
        then: a command of the site's deployer to run in the same process after the install; empty: none.
        handed_over: called before the last piece is sent. From then on the site installs, and runs ``then``, alone.
        installed: called after the install, before the answer to ``then``.
        hear: called with each line that ``then`` prints for the user.
    """

    full: bool = False
    dry_run: bool = False
    transfer_host: str | None = None
    force: bool = False
    facts: Path | None = None
    squashfs: bool = False
    without_plan: bool = False
    judged: bool = False
    job: str | None = None
    ahead: str = ""
    packed: str = ""
    then: Sequence[str] = ()
    handed_over: Callable[[], None] = lambda: None
    installed: "Callable[[Pushed], None] | None" = None
    hear: Callable[[str], None] | None = None


DEFAULTS = PushOptions()


class DamagedBundle(IntegrityError):
    """The bundle that a deploy packed is damaged. Nothing was sent."""


class Pushed(NamedTuple):
    """The result of ``push``. Bytes are those of the payload, without ssh's overhead.

    Attributes:
        digest: the bundle's digest.
        sent: bytes sent to the site.
        received: bytes received from the site (its segment list).
        parts: the number of parts sent.
        folder: the folder of the installed image on the site, None after a dry run.
        seconds_transfer: the duration of the transfer.
        seconds_install: the duration of verification and installation on the site.
        python: the version of the site's Python.
        warnings: warnings from the site's deployer.
        checked: the verdict on the first plan for the site that is not refused, otherwise on the first plan. None if
            the bundle has no plan for it.
        squashfs: the site's record of the SquashFS file, if it was made.
        then: the answer of the command that ran after the install; None: none ran.
    """

    digest: str
    sent: int
    received: int
    parts: int
    folder: str | None
    seconds_transfer: float
    seconds_install: float
    python: str
    warnings: tuple[str, ...] = ()
    checked: Checked | None = None
    squashfs: Fields | None = None
    then: Fields | None = None

    def record(self) -> json_records.Record:
        squashfs = self.squashfs.record if self.squashfs else None
        record = {**self._asdict(), "checked": records.plain(self.checked), "squashfs": squashfs}
        del record["then"]
        return record

    def installed(self, answer: Fields, started: float, sent: float) -> "Pushed":
        """Return the result after the install, from the site's answer and the transfer times."""
        return self._replace(
            folder=answer.text("folder"), seconds_transfer=sent - started, seconds_install=time.monotonic() - sent,
            warnings=tuple(answer.words("warnings")),
        )  # fmt: skip


class FolderPush(NamedTuple):
    """The result of a push into a folder.

    Attributes:
        digest: the bundle's digest.
        folder: the folder.
        sent: bytes written.
        parts: the number of parts.
        plans: the names of the sites that the bundle has plans for.
        data: the bundle has only data and needs no plan.
    """

    digest: str
    folder: str
    sent: int
    parts: int
    plans: Sequence[str] = ()
    data: bool = False


def push(
    bundle: Path,
    profile: Profile,
    ssh_config: Path | None = None,
    options: PushOptions = DEFAULTS,
    connection: Remote | None = None,
) -> Pushed:
    """Send a bundle to a site and install it there. If it is already installed there, nothing is sent.

    After an error, the next push continues from there.

    Args:
        connection: use this open and prepared connection instead of a new one.

    Raises:
        IntegrityError: the bundle is damaged. Nothing was sent.
        Refused: the bundle has no plan for the site, or ``check`` refuses all plans. Nothing was sent.
        TransferError: the connection failed.
        SpaceError: the site lacks space.
        DeployerError: an error from the site's deployer, with its exit code.
    """
    with opened(str(bundle)) as stream:
        verification = begin(stream, str(bundle))
        if not options.packed:
            _verify(verification, bundle, size_of(stream))
        elif verification.digest != options.packed:
            text = f"{bundle} was replaced during the deploy: packed {options.packed}, found {verification.digest}"
            raise IntegrityError(text, "let nothing else write this file, and deploy again")
        verdict = None if options.judged else check_for(verification, profile, options)
        if profile.login.inbox and options.transfer_host is None:
            options = options._replace(transfer_host=profile.login.transfer)
        with ExitStack() as opened_here:
            remote = connection or opened_here.enter_context(Remote(profile, ssh_config))
            if connection is None:
                remote.prepare()
            scanned = None if options.dry_run else scan.beside(str(bundle), verification.digest)
            if scanned:  # the site's policy may demand it before the bundle
                remote.feed(["take-scan", "-"], [plan_update.packed(scanned)])
            pushed = _push(stream, verification, remote, options)._replace(checked=verdict.checked if verdict else None)
            if options.squashfs and pushed.folder:
                words = ["squash", f"{verification.manifest.name}:{verification.manifest.version}"]
                with progress.far_bar("squash") as tell:
                    answer = remote.site(words, _INSTALL_SECONDS, tell=tell)
                pushed = pushed._replace(squashfs=answer.maybe_child("squashfs"))
            mine = trust.own(verification.trust.keys)
            warnings = (mine if mine and text.startswith(UNKNOWN_SIGNERS) else text for text in pushed.warnings)
            return pushed._replace(warnings=tuple(warnings))


def check_for(bundle: Verification, profile: Profile, options: PushOptions) -> Verdict | None:
    """Return the verdict on the first plan for a site that ``check`` does not refuse, otherwise on the first.

    None: the bundle has no plan for the site and needs none. Prints the refused plans, and whether the bundle's own
    plan has another verdict. Raises Refused for a bundle that must not be sent.
    """
    verdicts, manifest = check_carried(bundle, profile, options.facts), bundle.manifest
    if not verdicts and not manifest.is_data and not options.without_plan:  # it could replace a bundle in use there
        has = ", ".join(plans_in(manifest)) or "none"
        text = f"{manifest.name}:{manifest.version} has no plan for {profile.name}, so `run` cannot use it there"
        hint = f"pack it again with --site {profile.name}; or send it with --without-plan for `exec` and `shell` only"
        raise Refused(f"{text}; its plans: {has}", hint)
    jobs = [options.job] if options.job else [job.name for job in manifest.jobs]
    return chosen(verdicts, profile, options.force, jobs) if verdicts else None


def chosen(verdicts: Sequence[Verdict], profile: Profile, force: bool, jobs: Sequence[str] = ()) -> Verdict:
    """Return the first verdict on the plans for a site that is not a refusal, otherwise the first verdict.

    Prints the refused plans.

    Args:
        force: also return a refusal.
        jobs: the jobs that may be run. A plan is refused if all of them are refused.

    Raises:
        Refused: all plans are refused.
    """
    if len(jobs) == 1:
        verdicts = [verdict.of_job(jobs[0]) for verdict in verdicts]
    refused = [one for one in verdicts if all(one.checked.of_job(job).verdict == REFUSE for job in jobs or [""])]
    first = next((verdict for verdict in verdicts if verdict not in refused), verdicts[0])
    if first in refused and not force:
        against, *others = first.checked.against
        more = f", and {counted(len(others), 'more finding')}" if others else ""
        text = f"check predicts that it will not run on {profile.name}: {against.code}: {against.about}"
        raise Refused(f"{text}: {against.message}{more}", f"{against.remedy}; `push --force` sends it anyway")
    for verdict in refused:
        if verdict is not first:
            against, partition = verdict.checked.against[0], f"partition {verdict.partition} of {profile.name}"
            terminal.warn(f"check refuses {partition}: {against.code}: {against.about}: {against.message}")
    packed = first.plan.checked if first.plan else None
    if packed and packed.verdict != first.checked.verdict:
        terminal.warn(
            f"check for {profile.name} is {first.checked.verdict} now, but the plan in the bundle, which `run` uses at "
            f"the site, has {packed.verdict}{packed.by}: make a new plan (`deployer plan`) and send it (`push --plan`)"
        )
    return first


def plans_in(manifest: Manifest) -> list[str]:
    """Return the names of the sites that a bundle has plans for."""
    plans = (member.name for member in manifest.members if member.name.startswith(PLANS_PREFIX))
    return sorted({name[len(PLANS_PREFIX) :].removesuffix(".json").partition("/")[0] for name in plans})


def _push(stream: IO[bytes], bundle: Verification, remote: Remote, options: PushOptions) -> Pushed:
    if options.dry_run or options.transfer_host:
        done, shipment = _offered(remote.site(["known", bundle.digest]), stream, bundle, remote, options)
        if options.dry_run or shipment is None:
            return done
        return _uploaded(done, shipment, stream, bundle, remote, options.transfer_host or "")
    try:
        return _sent(stream, bundle, remote, options)
    except DeployerError as error:
        if error.hint != delta.SEND_AGAIN:
            raise
    terminal.warn(f"{remote.host} had damaged data of an earlier push, and removed it; it is sent again")
    return _sent(stream, bundle, remote, options)


def _sent(stream: IO[bytes], bundle: Verification, remote: Remote, options: PushOptions) -> Pushed:
    sending = _Sending(stream, bundle, remote, options)
    with ExitStack() as shown, _named(bundle):
        tell = sending.watched(shown)
        words = ["take", bundle.digest, *(["--ahead", options.ahead] if options.ahead else [])]
        then = options.then
        later = sending.answered if then else None
        answer = remote.converse(words, sending.pieces, _INSTALL_SECONDS, tell, then, later, options.hear)
    return sending.installed._replace(then=answer) if then and sending.installed else sending.pushed(answer)


@contextmanager
def _named(bundle: Verification) -> Iterator[None]:
    """In a site's error about the bundle, use the bundle's name instead of the unfamiliar file name there."""
    manifest, folder = bundle.manifest, bundle.digest.rpartition(":")[2][:32]
    try:
        yield
    except DeployerError as error:
        if error.exit_code in (Refused.exit_code, IntegrityError.exit_code):
            file = rf"(?<=: )/[^:]*/{folder}/[^:/ ]+(?=: )"
            error.message = re.sub(file, f"{manifest.name}:{manifest.version}", error.message)
        raise


def _offered(
    known: Fields, stream: IO[bytes], bundle: Verification, remote: Remote, options: PushOptions
) -> tuple[Pushed, Shipment | None]:
    """Return the push so far, after what the site said to the bundle, and what to send; None: it is installed there."""
    size, folder = len(json.dumps(known.record)), known.maybe_text("folder")
    done = Pushed(bundle.digest, 0, size, 0, folder, 0.0, 0.0, known.text("python"))
    if folder:
        return done, None
    held = frozenset() if options.full else delta.read_held(known.text("held"))
    came = [
        place for name in (known.maybe_text("came") or "").split() if isinstance(place := delta.read_name(name), Part)
    ]
    held |= {delta.prefix(segment.sha256) for segment in delta.inside(bundle.manifest.segments, came)}
    shipment = shipment_for(stream, bundle.seal, bundle.manifest, held)
    if options.packed:
        _verify_parts(bundle, shipment)
    # Space for the bundle and its parts, and later for bundle and image.
    free, need = known.number("free"), shipment.ending.end + max(shipment.size, bundle.manifest.unpacked)
    if free < need:
        where, has = f"{remote.host}:{remote.workspace}", f"{free / 1e6:.1f} MB free"
        hint = "free some space (`deployer gc --site SITE`), or set another workspace in the site profile"
        raise SpaceError(f"{where} has {has}; bundle and image need {need / 1e6:.1f} MB", hint)
    sent, parts = shipment.size + sum(part.size for part in came), len(shipment.parts) + len(came)
    return done._replace(sent=sent, parts=parts), shipment


class _Sending:
    """A push with one site command, which lists what the site has and installs what arrives."""

    def __init__(self, stream: IO[bytes], bundle: Verification, remote: Remote, options: PushOptions) -> None:
        self._stream, self._bundle, self._remote, self._options = stream, bundle, remote, options
        self._done: Pushed | None = None
        self.installed: Pushed | None = None
        self._started = self._sent = 0.0

    def pieces(self, known: Fields) -> Iterator[bytes]:
        """Return what the site lacks. Its next answer may come before any of this is requested."""
        self._done, shipment = _offered(known, self._stream, self._bundle, self._remote, self._options)
        self._started = time.monotonic()
        if shipment is None:  # already installed, so the site waits for nothing
            self._options.handed_over()
        return self._sent_of(shipment)

    def _sent_of(self, shipment: Shipment | None) -> Iterator[bytes]:
        if shipment:
            with progress.bar("send", shipment.size) as advance:
                for piece in as_stream(self._stream, shipment, advance):
                    if piece is delta.END:
                        self._options.handed_over()
                    yield piece
        self._sent = time.monotonic()

    def watched(self, shown: ExitStack) -> Callable[[int, int], None] | None:
        """Return a function that shows the install's progress in a bar after that of the parts; None: no bar."""
        bar = progress.late_far_bar("install", shown)
        if bar is None:
            return None

        def tell(done: int, total: int) -> None:
            if self._sent:
                bar(done, total)

        return tell

    def answered(self, answer: Fields) -> None:
        """Receive an answer from the site. The first is about the install, the next about the command after it."""
        if self.installed is None:
            self.installed = self.pushed(answer)
            if self._options.installed:
                self._options.installed(self.installed)

    def pushed(self, answer: Fields) -> Pushed:
        """Return the result with the site's last answer."""
        if self._done is None:
            raise TransferError(f"{self._remote.host} gave no answer to take", "see the command's log")
        if self._done.folder:
            return self._done
        sent = self._sent or time.monotonic()  # another push of this bundle may have been faster
        return self._done.installed(answer, self._started, sent)


def _uploaded(
    done: Pushed, shipment: Shipment, stream: IO[bytes], bundle: Verification, remote: Remote, host: str
) -> Pushed:
    """Send the parts with sftp through ``host``, which may allow nothing else, and install them."""
    place = remote.inbox or f"{remote.workspace}/incoming"  # files in the inbox are kept
    folder = f"{place}/{bundle.digest.split(':')[1][:32]}"
    started = time.monotonic()
    with locked_folder.LockedFolder(locked_folder.PARTS) as local:
        with progress.bar("write", shipment.size) as advance:
            written = as_files(stream, shipment, Path(local, "parts"), advance)
        parts = [file for file in written if delta.read_name(file.name)]
        send = functools.partial(remote.upload, parts, folder, host)
        if remote.multiplexes:
            progress.of_size("send", functools.partial(remote.size, folder), shipment.size, send, every=_LOOK_SECONDS)
        else:  # each check would need a separate login
            send()
    sent = time.monotonic()
    with progress.far_bar("install") as tell, _named(bundle):
        answer = remote.site(["receive", folder], _INSTALL_SECONDS, tell=tell)
    return done.installed(answer, started, sent)


def push_to(
    bundle: Path,
    folder: Path,
    receipt: Path | None = None,
    size: int = 0,
    keys: Sequence[str] = (),
    bring_age: bool = False,
) -> FolderPush:
    """Write the segments that a site lacks into a folder, for transport by other means.

    Args:
        receipt: the output of the site's ``receipt`` command. Without it, the complete bundle is written.
        size: bytes of each medium, which gets a numbered folder; 0: write to the folder itself.
        keys: as in ``medium.encryption``.
        bring_age: add the program that decrypts to each medium.

    After an error, nothing that was written remains.
    """
    held: HeldSegments = frozenset()
    if receipt is not None:
        held = delta.read_receipt(files.read_text(str(receipt)).encode(), str(receipt))
    with opened(str(bundle)) as stream:
        verification = begin(stream, str(bundle))
        _verify(verification, bundle, size_of(stream))
        manifest = verification.manifest
        shipment = shipment_for(stream, verification.seal, manifest, held)
        plans = plans_in(manifest)
        readme = functools.partial(medium.readme, manifest, verification.digest, plans, bool(held))
        encrypt = medium.encryption(keys) if keys else ()
        scanned = scan.beside(str(bundle), verification.digest) or b""
        beside = medium.age_itself(manifest.image.architecture) if bring_age else {}
        own = sum(map(len, (scanned, *beside.values())))
        media = medium.cut(shipment, size - own) if size else [shipment]
        new_folder(folder)
        written: list[Path] = []
        try:
            with progress.bar("write", sum(each.size for each in media)) as advance:
                for number, each in enumerate(media, 1):
                    mark, place = (delta.MEDIUM % (number, len(media)), folder / str(number)) if size else ("", folder)
                    text = medium.encrypted_readme(mark, bring_age) if keys else readme(each, mark)
                    more = {README: text.encode(), **beside, **({mark: b""} if mark else {})}
                    # An encrypted medium says nothing about the bundle.
                    more.update({ON_MEDIUM + delta.ENCRYPTED * bool(keys): scanned} if scanned else {})
                    written += as_files(stream, each, place, advance, more, encrypt)
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
    sent, count = shipment.size, len(shipment.parts)
    return FolderPush(verification.digest, str(folder), sent, count, plans, manifest.is_data)


def _verify(verification: Verification, bundle: Path, size: int) -> None:
    """Verify all of a bundle."""
    with progress.bar("verify", size) as advance:
        verify_rest(verification, str(bundle), advance)


def _verify_parts(verification: Verification, shipment: Shipment) -> None:
    """Verify the sent segments of a bundle. Its end was verified when it was opened."""
    segments = delta.inside(verification.manifest.segments, shipment.parts)
    with progress.bar("verify", sum(part.size for part in shipment.parts)) as advance:
        try:
            for _ in verification.check(segments, advance):
                pass
        except IntegrityError as error:
            raise DamagedBundle(error.message) from error
