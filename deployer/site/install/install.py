"""install: verify a bundle and unpack it as an installed image in one pass, completely or not at all.

The image is built in a folder with a unique name, which is renamed when it is complete: locks fail on some shared file
systems, but rename works. The seal, manifest and table are checked before anything is written. Each segment is checked
when it is read, in the process that uses it. A VerifiedBundle exists only after all segments have passed, and only a
VerifiedBundle gets a receipt and its final name.
"""

import errno
import os
import shutil
import time
from contextlib import ExitStack
from functools import partial
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import DATA_PREFIX, KIT_PREFIX, Segment, WheelOverlay
from deployer.contract.site import plan as plans
from deployer.site.install import bytecode, donor, kit, mount_points, remove, unpack
from deployer.site.install.admit import admit, pin_signers
from deployer.site.install.donor import Donor
from deployer.site.storage import data, frames, inventory, layers, space, unfinished
from deployer.site.storage.frames import FrameNote
from deployer.site.storage.layers import Layer
from deployer.site.storage.store import (
    BYTECODE,
    ENGINE,
    MANIFEST,
    RECEIPT,
    ROOTFS,
    InstalledImage,
    Receipt,
    Store,
    room_of_tool,
)
from deployer.system import codec, files, workers
from deployer.system.trust import policy, verify
from deployer.system.trust.verify import Arriving, Progress, Verification, VerifiedBundle

#: Where members of a bundle are written: those that a rank reads, the runtime that starts it, and everything.
APP_ONLY = {"deployer/app/": "app"}
APP_AND_KIT = {
    **APP_ONLY,
    KIT_PREFIX + plans.CHARLIECLOUD_FOLDER + "/": os.path.join(ENGINE, plans.CHARLIECLOUD_FOLDER),
    KIT_PREFIX: "kit",
}
_MEMBERS = {**APP_AND_KIT, "deployer/plans/": "plans", DATA_PREFIX: "data"}

#: Called with the number of bytes just processed, and the total.
InstallProgress = Callable[[int, int], None]


class _Shares(NamedTuple):
    """The layers that the image of a bundle will need here.

    Attributes:
        rootfs: the name of the layer with its rootfs.
        overlays: the name of the layer with its overlays; empty if it has none.
        links: the layers, by their names in the image's folder.
        packages: the overlays in it.
        donor: a layer that already has some files of the rootfs.
    """

    rootfs: str
    overlays: str
    links: Mapping[str, str]
    packages: List[WheelOverlay]
    donor: Optional[Donor]

    @property
    def names(self) -> List[str]:
        return [self.rootfs, self.overlays] if self.overlays else [self.rootfs]


class InstallOutcome(NamedTuple):
    """The result of an install.

    Attributes:
        image: the installed image.
        known: whether it was already installed.
        warnings: for the user.
        bundle: the bundle's path, if it was kept or moved; None if nothing was assembled, or it is not kept.
    """

    image: InstalledImage
    known: bool
    warnings: Tuple[str, ...] = ()
    bundle: Optional[str] = None


def install(
    path: str,
    store: Store,
    progress: Optional[InstallProgress] = None,
    jobs: Optional[int] = None,
    kept: bool = False,
    signers_file: Optional[str] = None,
    arriving: Optional[Arriving] = None,
) -> InstallOutcome:
    """Verify the bundle ``path`` and install it under ``store``.

    An image with the same digest is left unchanged. If a part of it is missing, that part is made again.

    Args:
        progress: receives bytes done and bytes in total.
        jobs: number of processes; None: one per core, or none for a small bundle.
        kept: whether ``keep`` will be called next, which may need space too.
        signers_file: an allowed_signers file that the bundle must satisfy. The first such file becomes the store's
            policy.
        arriving: given if the file is not complete yet: the segments in it are installed while others arrive.

    Raises:
        IntegrityError: the bundle is damaged; nothing is installed.
        Refused: a policy forbids it, or a job uses an incomplete image; nothing is installed.
        SpaceError: there is not enough space; if possible, this is detected before anything is written.
    """
    with ExitStack() as opened:
        stream = arriving.stream if arriving else opened.enter_context(verify.opened(path))
        # The digest that the seal claims is enough to find an image: it was verified at its install.
        seal = arriving.seal if arriving else verify.read_seal(stream, path)
        digest = seal.digest
        folder = store.image_folder(digest)
        claimed, present = store.at(folder), inventory.whole(store, digest)
        if present:
            mount_points.make_if_permitted(present.rootfs, present.manifest().mount_points)
        if claimed and not present:
            remove.check_unused(store, claimed)
        if present and not signers_file:
            warnings = data.missing(store, present.manifest())
            return InstallOutcome(image=present, known=True, warnings=tuple(warnings))
        policies = policy.load(store.root, signers_file)
        verification = verify.begin(stream, path, policies, arriving)
        warnings = admit(verification.manifest, verification.digest, verification.trust, store, policies)
        if not present:
            processes = jobs or workers.suitable(seal.end)
            with files.errors_named("write under " + store.root, "free some, or choose another folder with --root"):
                os.makedirs(store.images, exist_ok=True)
                layers.make_folder(store)
                unfinished.reap(store.images)
                unfinished.reap(store.layers)
                shares = _shares(verification, store)
                layers.release(store, shares.names)
                found = ((name, layers.whole(store, name)) for name in shares.names)
                there = {name: layer for name, layer in found if layer}
                for name in shares.names:
                    if name not in there:
                        remove.check_layer_unused(store, name)
                shared = shares.packages if shares.overlays in there else []
                parts = [room(item for item in verification.manifest.overlays if item not in shared)]
                if shares.rootfs not in there:
                    parts.append(_room(verification, shares.donor))
                state = os.fstat(stream.fileno())
                if arriving and state.st_dev == os.stat(store.images).st_dev:
                    parts.append(unpack.Unpacked(0, max(0, seal.end - state.st_size)))
                _check_space(verification, store, parts, state if kept else None)
                with unfinished.folder(store.images) as new, layers.claimed(store, new, shares.links):
                    advance = _advance(verification, verification.manifest.overlays, _MEMBERS, progress)
                    _write_image(new, store, shares, there, verification, processes, advance)
                    mount_points.make(os.path.join(new, ROOTFS), verification.manifest.mount_points)
                    if claimed:  # and incomplete
                        unfinished.discard(folder)
                    unfinished.publish(new, folder, lambda: store.at(folder) is not None)
    image = store.at(folder)
    if image is None:
        raise IntegrityError(f"the image was removed while it was installed: {folder}", "install it again")
    warnings += data.missing(store, verification.manifest)
    return InstallOutcome(image=image, known=bool(present), warnings=(*warnings, *pin_signers(store, policies)))


def _shares(verification: Verification, store: Store) -> _Shares:
    manifest, segments = verification.manifest, verification.layer_segments()
    read_only = kit.has_udocker(manifest)
    rootfs = layers.name(segments, read_only)
    packages = [overlay for overlay in manifest.overlays if overlay.name != ENGINE]
    links, overlays = {ROOTFS: rootfs}, ""
    if packages:
        contents = sorted((item.name, verification.member_segments(item.member)) for item in packages)
        named = partial(layers.name_of_overlays, rootfs, contents, manifest.image)
        overlays = named(True)
        # If they are here with bytecode, skip the test whether a container can start, which starts processes.
        if not layers.whole(store, overlays) and not bytecode.is_possible(manifest):
            overlays = named(False)
        links.update((overlay.name.partition("/")[0], overlays) for overlay in packages)
    return _Shares(rootfs, overlays, links, packages, donor.choose(store, rootfs, segments, read_only))


def room(overlays: Iterable[WheelOverlay]) -> unpack.Unpacked:
    """Return how many files and bytes overlays will need, with bytecode, as the manifest claims."""
    return _total([unpack.Unpacked(overlay.entries, overlay.bytes) for overlay in overlays])


def _room(verification: Verification, given: Optional[Donor]) -> unpack.Unpacked:
    """Return how many files and bytes the rootfs of a bundle will need, without those from a donor."""
    image = verification.manifest.image
    size = sum(segment.raw or 0 for segment in verification.layer_segments())
    size -= min(image.holes, size)
    entries = image.entries
    if given:
        size, entries = max(0, size - given.size), max(0, entries - given.files)
    return unpack.Unpacked(entries, size)


def _check_space(
    verification: Verification, store: Store, parts: Sequence[unpack.Unpacked], bundle: Optional[os.stat_result]
) -> None:
    manifest = verification.manifest
    entries, size = _total(parts)
    size += sum(member.size for member in manifest.members if _target(member.name, _MEMBERS))
    if bundle and bundle.st_dev != os.stat(store.images).st_dev:
        size += bundle.st_size  # it will be copied; otherwise it is moved, and needs no space
    size += room_of_tool(store)
    space.check(store.images, size, entries + len(manifest.members))


def _target(name: str, targets: Mapping[str, str]) -> Optional[str]:
    """Return the path of a bundle's member in the image's folder; None if it is not installed unchanged."""
    for prefix, target in targets.items():
        if name.startswith(prefix):
            return os.path.join(target, name[len(prefix) :])
    return None


def _write_image(
    new: str,
    store: Store,
    shares: _Shares,
    there: Mapping[str, Layer],
    verification: Verification,
    jobs: int,
    advance: Progress,
) -> None:
    """Write the image into the folder ``new``, which has its links, with its receipt and the missing layers."""
    there = {name: layer for name, layer in there.items() if files.is_folder(layer.folder)}  # now they are claimed
    checked = verification.layer_segments() if shares.rootfs in there else []
    for overlay in shares.packages if shares.overlays in there else ():
        checked = checked + verification.member_segments(overlay.member)
    _check_shared(checked, verification, jobs, advance)
    written = [unpack.Unpacked(layer.entries, layer.bytes) for layer in there.values()]
    if shares.rootfs not in there:
        written.append(_make_layer(store, shares, verification, jobs, advance))
    with ExitStack() as stack:
        overlays = unpacked = None
        if shares.overlays and shares.overlays not in there:
            overlays = stack.enter_context(unfinished.folder(store.layers))
            unpacked = _unpack_overlays(overlays, shares.packages, verification, jobs, advance)
            written.append(unpacked)
        engine = [overlay for overlay in verification.manifest.overlays if overlay.name == ENGINE]
        written.append(_unpack_overlays(new, engine, verification, jobs, advance))
        written.append(_fill(new, verification, advance))
        bundle, whole = verification.finish(), _total(written)
        kit.prepare(InstalledImage(new, _receipt(bundle, whole)))
        if overlays and unpacked:
            compiler = (os.path.join(new, ROOTFS), os.path.join(new, ENGINE))
            bytecode.compile_overlays(overlays, bundle.manifest.image, jobs, *compiler)
            layers.publish(store, shares.overlays, overlays, unpacked.entries, unpacked.bytes)
    if shares.overlays and files.is_file(os.path.join(store.layers, shares.overlays, BYTECODE)):
        layers.link(new, BYTECODE, shares.overlays)
    _write_receipt(new, bundle, whole)
    inventory.write_inventory(new)


def _check_shared(segments: List[Segment], verification: Verification, jobs: int, advance: Progress) -> None:
    """Check every segment of layers that are already unpacked here: these segments of the bundle may be damaged."""

    def read(number: int) -> None:
        verification.read(segments[number])

    with workers.Pool(min(jobs, len(segments)), read) as pool:
        for number in range(len(segments)):
            pool.submit(number)
        for number, _ in pool.results():
            verification.passed(segments[number])
            advance(segments[number].raw or segments[number].size)


def _make_layer(
    store: Store, shares: _Shares, verification: Verification, jobs: int, advance: Progress
) -> unpack.Unpacked:
    """Unpack a bundle's layer, checking all its content, and publish it."""
    segments = verification.layer_segments()
    notes: Dict[int, FrameNote] = {}
    read_only = kit.has_udocker(verification.manifest)
    with unfinished.folder(store.layers) as new:
        rootfs = os.path.join(new, ROOTFS)
        written = _unpack_frames(rootfs, segments, verification, jobs, advance, shares.donor, notes)
        if read_only:
            kit.protect(rootfs)
        frames.write(new, [(segments[number], notes[number]) for number in sorted(notes)], read_only)
        layers.publish(store, shares.rootfs, new, written.entries, written.bytes)
    return written


def _fill(folder: str, verification: Verification, advance: Progress) -> unpack.Unpacked:
    """Write an image's content except its layers into ``folder``, and check all remaining segments."""
    written = _write_members(folder, verification, advance, _MEMBERS)
    for need in verification.manifest.needs:
        os.makedirs(os.path.join(folder, "data", need.data), exist_ok=True)  # mount point for another bundle's data
    for _ in verification.check(verification.left()):  # headers, padding, and members that only the laptop uses
        pass
    return written


def write_for_ranks(
    folder: str,
    verification: Verification,
    overlays: Sequence[WheelOverlay],
    jobs: int,
    progress: InstallProgress,
    targets: Mapping[str, str],
) -> None:
    """Write rootfs, overlays and the members in ``targets`` into ``folder``, checking each segment when it is used."""
    advance = _advance(verification, overlays, targets, progress)
    rootfs = os.path.join(folder, ROOTFS)
    _unpack_frames(rootfs, verification.layer_segments(), verification, jobs, advance)
    mount_points.make(rootfs, verification.manifest.mount_points)
    _unpack_overlays(folder, overlays, verification, jobs, advance)
    _write_members(folder, verification, advance, targets)


def _advance(
    verification: Verification,
    overlays: Iterable[WheelOverlay],
    targets: Mapping[str, str],
    progress: Optional[InstallProgress],
) -> Progress:
    """Return a function to call with the number of bytes just processed from the layer, overlays and members."""
    framed = [verification.layer_segments()] + [verification.member_segments(overlay.member) for overlay in overlays]
    total = sum(segment.raw or 0 for segments in framed for segment in segments)
    total += sum(member.size for member in verification.manifest.members if _target(member.name, targets))

    def advance(size: int) -> None:
        if progress:
            progress(size, total)

    return advance


def _unpack_overlays(
    folder: str, overlays: Iterable[WheelOverlay], verification: Verification, jobs: int, advance: Progress
) -> unpack.Unpacked:
    """Write overlays into ``folder``. After an error, the caller removes what was written."""
    written = []
    for overlay in overlays:
        segments = verification.member_segments(overlay.member)
        written.append(_unpack_frames(os.path.join(folder, overlay.name), segments, verification, jobs, advance))
    return _total(written)


def _unpack_frames(
    root: str,
    segments: List[Segment],
    verification: Verification,
    jobs: int,
    advance: Progress,
    given: Optional[Donor] = None,
    notes: Optional[Dict[int, FrameNote]] = None,
) -> unpack.Unpacked:
    """Unpack the frames of a layer or an overlay into the new folder ``root``, linking the files from a donor.

    ``notes`` is as in ``unpack``.
    """
    decompress = codec.decompressor(str(verification.manifest.codec["name"]))
    sizes = [unpack.Frame(str(segment.holds), segment.raw or 0) for segment in segments]

    def read(number: int) -> bytes:
        return verification.read(segments[number])

    def source(number: int) -> memoryview:
        return decompress(read(number), sizes[number].raw)

    def done(number: int) -> None:
        verification.passed(segments[number])
        advance(sizes[number].raw)

    def link(opened: int, folders: Set[bytes]) -> Iterator[Tuple[int, FrameNote]]:
        return given.link(opened, folders, segments, read, source, jobs) if given else iter(())

    os.makedirs(root)
    return unpack.unpack(sizes, source, root, jobs, done, link, notes)


def _write_members(
    folder: str, verification: Verification, advance: Progress, targets: Mapping[str, str]
) -> unpack.Unpacked:
    """Write the members in ``targets`` into ``folder``."""
    manifest = verification.manifest
    members = [member for member in manifest.members if _target(member.name, targets)]
    contents = sealed_file.contents(manifest.members, manifest.segments)
    for member in members:
        pieces = verification.check(contents[member.name], advance)
        # ch-run's binds are writable although the image is not, and all jobs with the image share them. Read-only
        # modes at least prevent accidental changes.
        bound = member.name.startswith((DATA_PREFIX, *APP_ONLY))
        mode = (member.mode | 0o400) & ~0o222 if bound else member.mode | 0o600
        _write(os.path.join(folder, str(_target(member.name, targets))), pieces, mode)
    return unpack.Unpacked(len(members), sum(member.size for member in members))


def _total(parts: Sequence[unpack.Unpacked]) -> unpack.Unpacked:
    return unpack.Unpacked(sum(part.entries for part in parts), sum(part.bytes for part in parts))


def _write_receipt(folder: str, bundle: VerifiedBundle, written: unpack.Unpacked) -> None:
    _write(os.path.join(folder, MANIFEST), [bundle.manifest_bytes])
    receipt = _receipt(bundle, written)
    _write(os.path.join(folder, RECEIPT), [json_records.pretty(receipt.record()).encode("utf-8")])


def _receipt(bundle: VerifiedBundle, written: unpack.Unpacked) -> Receipt:
    manifest = bundle.manifest
    return Receipt(manifest.name, manifest.version, bundle.digest, int(time.time()), written.entries, written.bytes)


def _write(path: str, pieces: Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file in a folder that is published as a whole, without a temporary name or fsync.

    On some file systems, fsync waits for everything written before.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, new, mode & 0o777)
    try:
        size = 0
        for piece in pieces:
            files.write_sparse(descriptor, memoryview(piece), size)
            size += len(piece)
        os.ftruncate(descriptor, size)  # the file may end with a hole
    finally:
        os.close(descriptor)


def keep(path: str, store: Store, image: InstalledImage) -> str:
    """Move the file of an installed bundle to ROOT/bundles, where it replaces the previous bundle of that name."""
    target = store.bundle(image.receipt)
    if os.path.abspath(path) == target:
        return target
    with files.errors_named(f"move {path} to {target}"):
        os.makedirs(store.bundles, exist_ok=True)
        try:
            os.replace(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with open(path, "rb") as source, files.published(target) as stream:
                shutil.copyfileobj(source, stream, files.CHUNK)
            os.unlink(path)
    return target
