"""install: verify a bundle and unpack it as an installed image in one pass, completely or not at all.

The image is made in a folder with a unique name, which is renamed when it is complete: locks fail on some shared file
systems, rename does not. Seal, manifest and table are checked before anything is written. Each segment is checked when
it is read, by the process that uses it. Only when all have passed is there a VerifiedBundle, and only that gets a
receipt and its name.
"""

import errno
import os
import shutil
import time
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Tuple

from deployer.contract import json_records, sealed_file
from deployer.contract.errors import IntegrityError
from deployer.contract.manifest import DATA_PREFIX, KIT_PREFIX
from deployer.site.install import bytecode, kit, remove, unpack, wheels
from deployer.site.install.admit import admit, pin_signers
from deployer.site.storage import data, inventory, space, unfinished
from deployer.site.storage.store import MANIFEST, RECEIPT, InstalledImage, Receipt, Store, room_of_tool
from deployer.system import codec, files, policy, verify, workers
from deployer.system.verify import Verification, VerifiedBundle

#: Where members of a bundle go: those that a rank reads, the runtime that starts it, and everything.
APP_ONLY = {"deployer/app/": "app"}
APP_AND_KIT = {**APP_ONLY, KIT_PREFIX: "kit"}
_MEMBERS = {
    **APP_AND_KIT,
    "deployer/plans/": "plans",
    DATA_PREFIX: "data",
}

#: Called with the bytes that were just processed, and the total of bytes.
InstallProgress = Callable[[int, int], None]


class InstallOutcome(NamedTuple):
    """The result of an install.

    Attributes:
        image: the installed image.
        known: it was installed already.
        warnings: for the user.
    """

    image: InstalledImage
    known: bool
    warnings: Tuple[str, ...] = ()


def install(
    path: str,
    store: Store,
    progress: Optional[InstallProgress] = None,
    jobs: Optional[int] = None,
    kept: bool = False,
    signers_file: Optional[str] = None,
) -> InstallOutcome:
    """Verify the bundle ``path`` and install it under ``store``.

    An image of the same digest is left as it is. If a part of it is missing, it is made again.

    Args:
        progress: receives bytes done and bytes in total.
        jobs: number of processes; None: one per core.
        kept: ``keep`` will follow, which may need space too.
        signers_file: an allowed_signers file that the bundle must satisfy. The first such file becomes the store's
            policy.

    Raises:
        IntegrityError: the bundle is damaged; nothing is installed.
        Refused: a policy forbids it, or a job uses an incomplete image; nothing is installed.
        SpaceError: space is missing; if possible, this is detected before anything is written.
    """
    with verify.opened(path) as stream:
        # The seal's claim is enough to find an image, which was verified when it was installed.
        digest = verify.read_seal(stream, path).digest
        folder = store.image_folder(digest)
        claimed, present = store.at(folder), inventory.whole(store, digest)
        if claimed and not present:
            remove.check_unused(store, claimed)
        if present and not signers_file:
            return InstallOutcome(present, True, tuple(data.missing(store, present.manifest())))
        policies = policy.load(store.root, signers_file)
        verification = verify.begin(stream, path, policies)
        warnings = admit(verification.manifest, verification.digest, verification.trust, store, policies)
        if not present:
            processes = jobs or min(workers.cores(), workers.MOST)
            with files.errors_named("write under " + store.root, "free some, or choose another folder with --root"):
                os.makedirs(store.images, exist_ok=True)
                unfinished.reap(store.images)
                overlays = wheels.room(verification, stream, processes)
                _check_space(verification, store, overlays, os.fstat(stream.fileno()) if kept else None)
                with unfinished.folder(store.images) as made:
                    written = _fill(made, verification, processes, progress)
                    bundle = verification.finish()
                    kit.prepare(InstalledImage(made, _receipt(bundle, written)))
                    bytecode.compile_overlays(made, bundle.manifest.image, processes)
                    _write_receipt(made, bundle, written)
                    inventory.write_inventory(made)
                    if claimed:  # and incomplete
                        unfinished.discard(folder)
                    _publish(made, folder, store)
    image = store.at(folder)
    if image is None:
        raise IntegrityError("the image was removed while it was installed: %s" % folder, "install it again")
    warnings += data.missing(store, verification.manifest)
    return InstallOutcome(image, bool(present), tuple(warnings + pin_signers(store, policies)))


def _check_space(
    verification: Verification, store: Store, overlays: unpack.Unpacked, bundle: Optional[os.stat_result]
) -> None:
    manifest = verification.manifest
    size = overlays.bytes + sum(segment.raw or 0 for segment in verification.layer_segments())
    size -= min(manifest.image.holes, size)
    size += sum(member.size for member in manifest.members if _target(member.name, _MEMBERS))
    if bundle and bundle.st_dev != os.stat(store.images).st_dev:
        size += bundle.st_size  # it will be copied; otherwise it is moved, and needs no more space
    size += room_of_tool(store)
    space.check(store.images, size, manifest.image.entries + len(manifest.members) + overlays.entries)


def is_data(name: str) -> bool:
    """Return whether a member of a bundle belongs to a data folder."""
    return name.startswith(DATA_PREFIX)


def _target(name: str, targets: Mapping[str, str]) -> Optional[str]:
    """Return the path of a bundle's member in the image's folder; None if it is not installed unchanged."""
    for prefix, target in targets.items():
        if name.startswith(prefix):
            return os.path.join(target, name[len(prefix) :])
    return None


def _fill(folder: str, verification: Verification, jobs: int, progress: Optional[InstallProgress]) -> unpack.Unpacked:
    """Write the complete content of an image's folder into ``folder``, and check every segment."""
    written = write_receipt(folder, verification, jobs, progress, _MEMBERS)
    for need in verification.manifest.needs:
        os.makedirs(os.path.join(folder, "data", need.data), exist_ok=True)  # the target for another bundle's data
    for _ in verification.check(verification.left()):  # headers, padding, and members that only the laptop uses
        pass
    return written


def write_receipt(
    folder: str,
    verification: Verification,
    jobs: int,
    progress: Optional[InstallProgress] = None,
    targets: Mapping[str, str] = APP_ONLY,
) -> unpack.Unpacked:
    """Write rootfs, overlays and the members in ``targets`` into ``folder``, each segment checked when it is used.

    By default this is what a rank reads, without data: ``rootfs``, ``wheels``, ``variants`` and ``app``.
    """
    manifest = verification.manifest
    segments = verification.layer_segments()
    decompress = codec.decompressor(str(manifest.codec["name"]))
    frames = [unpack.Frame(str(segment.holds), segment.raw or 0) for segment in segments]
    members = [member for member in manifest.members if _target(member.name, targets)]
    total = sum(frame.raw for frame in frames) + sum(member.size for member in members)
    total += sum(member.size for member in manifest.members if wheels.overlay(member.name))

    def advance(size: int) -> None:
        if progress:
            progress(size, total)

    def source(number: int) -> memoryview:
        return decompress(verification.read(segments[number]), frames[number].raw)

    def done(number: int) -> None:
        verification.passed(segments[number])
        advance(frames[number].raw)

    rootfs = os.path.join(folder, "rootfs")
    os.mkdir(rootfs)
    written = unpack.unpack(frames, source, rootfs, jobs, done)
    overlays = wheels.unpack(folder, verification, manifest.image.python, jobs, advance)
    contents = sealed_file.contents(manifest.members, manifest.segments)
    for member in members:
        pieces = verification.check(contents[member.name], advance)
        # A bind is writable although the image is not, and data are shared: this at least prevents accidental changes.
        mode = member.mode & ~0o222 if is_data(member.name) else member.mode | 0o600
        _write(os.path.join(folder, str(_target(member.name, targets))), pieces, mode)
    entries = written.entries + overlays.entries + len(members)
    return unpack.Unpacked(entries, written.bytes + overlays.bytes + sum(member.size for member in members))


def _write_receipt(folder: str, bundle: VerifiedBundle, written: unpack.Unpacked) -> None:
    _write(os.path.join(folder, MANIFEST), [bundle.manifest_bytes])
    receipt = _receipt(bundle, written)
    _write(os.path.join(folder, RECEIPT), [json_records.pretty(receipt.record()).encode("utf-8")])


def _receipt(bundle: VerifiedBundle, written: unpack.Unpacked) -> Receipt:
    manifest = bundle.manifest
    return Receipt(manifest.name, manifest.version, bundle.digest, int(time.time()), written.entries, written.bytes)


def _write(path: str, pieces: Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file of a folder that is published as one: no temporary name, and no fsync, which on some file systems
    waits for everything written before it."""
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


def _publish(made: str, folder: str, store: Store) -> None:
    """Give a finished image its name; if another install of the same bundle was first, that image is used."""
    while True:
        try:
            os.rename(made, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if store.at(folder):
                return
            unfinished.discard(folder)  # left by a removal by hand: without a receipt it is not an image
        else:
            return


def keep(path: str, store: Store, image: InstalledImage) -> str:
    """Move the file of an installed bundle to ROOT/bundles, where it replaces the last one of its name."""
    target = store.bundle(image.receipt)
    if os.path.abspath(path) == target:
        return target
    with files.errors_named("move %s to %s" % (path, target)):
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
