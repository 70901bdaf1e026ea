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
from typing import Collection, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle.manifest import Segment
from deployer.site.install import donor, kit, mount_points
from deployer.site.install.admit import admit, pin_signers
from deployer.site.install.content import EVERYTHING, Content, InstallProgress, room, total, write
from deployer.site.install.donor import Donor
from deployer.site.install.unpack import Unpacked
from deployer.site.storage import data, frames, inventory, layers, scans, space, unfinished
from deployer.site.storage.store import BYTECODE, ENGINE, MANIFEST, RECEIPT, ROOTFS, InstalledImage, Receipt, Store
from deployer.system import files, workers
from deployer.system.trust import policy, verify


class _Shares(NamedTuple):
    """The layers that the image of a bundle will need here.

    Attributes:
        rootfs: the name of the layer with its rootfs.
        overlays: the name of the layer with its overlays; empty if it has none.
        links: the layers, by their names in the image's folder.
        frames: the frames of each layer.
        donor: a layer that already has some files of the rootfs.
    """

    rootfs: str
    overlays: str
    links: Mapping[str, str]
    frames: Mapping[str, Sequence[Segment]]
    donor: Optional[Donor]


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
    arriving: Optional[verify.Arriving] = None,
) -> InstallOutcome:
    """Verify the bundle ``path`` and install it under ``store``.

    A scan beside the bundle is taken first. An image with the same digest is left unchanged. If a part of it is
    missing, that part is made again.

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
        scans.take_beside(path, store, digest)
        folder = store.image_folder(digest)
        claimed, present = store.at(folder), inventory.whole(store, digest)
        if present:
            mount_points.make_if_permitted(present.rootfs, present.manifest().mount_points)
        if claimed and not present:
            from deployer.site.install import remove  # only here: its imports are slow

            remove.check_unused(store, claimed)
        if present and not signers_file:
            warnings = data.missing(store, present.manifest())
            return InstallOutcome(image=present, known=True, warnings=tuple(warnings))
        policies = policy.load(store.root, signers_file)
        verification = verify.begin(stream, path, policies, arriving)
        warnings = admit(verification.manifest, verification.digest, verification.trust, store, policies)
        if not present:
            manifest = verification.manifest
            content = Content(verification, manifest.overlays, EVERYTHING, jobs or workers.suitable(seal.end), progress)
            with files.errors_named("write under " + store.root, "free some, or choose another folder with --root"):
                os.makedirs(store.images, exist_ok=True)
                layers.make_folder(store)
                unfinished.reap(store.images)
                unfinished.reap(store.layers)
                shares = _shares(content, store)
                layers.release(store, shares.frames)
                layers_here = ((name, layers.whole(store, name)) for name in shares.frames)
                there = {name: layer for name, layer in layers_here if layer}
                for name in shares.frames.keys() - there.keys():
                    if layers.users(store, name):
                        from deployer.site.install import remove

                        remove.check_layer_unused(store, name)
                state = os.fstat(stream.fileno())
                arrives = arriving and state.st_dev == os.stat(store.images).st_dev
                more = max(0, seal.end - state.st_size) if arrives else 0
                if kept and state.st_dev != os.stat(store.images).st_dev:
                    more += state.st_size  # it will be copied; otherwise it is moved, and needs no space
                _check_space(content, store, shares, there, more)
                with unfinished.folder(store.images) as new, layers.claimed(store, new, shares.links):
                    _write_image(new, store, shares, there, content)
                    mount_points.make(os.path.join(new, ROOTFS), manifest.mount_points)
                    if claimed:  # and incomplete
                        unfinished.discard(folder)
                    unfinished.publish(new, folder, lambda: store.at(folder) is not None)
    image = store.at(folder)
    if image is None:
        raise IntegrityError(f"the image was removed while it was installed: {folder}", "install it again")
    warnings += data.missing(store, verification.manifest)
    return InstallOutcome(image=image, known=bool(present), warnings=(*warnings, *pin_signers(store, policies)))


def _shares(content: Content, store: Store) -> _Shares:
    manifest = content.verification.manifest
    read_only = kit.has_udocker(manifest)
    rootfs = layers.name(content.layer, read_only)
    links, segments, overlays = {ROOTFS: rootfs}, {rootfs: content.layer}, ""
    packages = [(name, content.overlays[name]) for name in sorted(_shared(content.overlays))]
    if packages:
        from deployer.site.install import bytecode  # only here, like remove

        named = partial(layers.name_of_overlays, rootfs, packages, manifest.image)
        overlays = named(True)
        # If they are here with bytecode, skip the test whether a container can start, which starts processes.
        if not layers.whole(store, overlays) and not bytecode.is_possible(manifest):
            overlays = named(False)
        links.update((name.partition("/")[0], overlays) for name, _ in packages)
        segments[overlays] = [segment for _, of_one in packages for segment in of_one]
    return _Shares(rootfs, overlays, links, segments, donor.choose(store, rootfs, content.layer, read_only))


def _check_space(content: Content, store: Store, shares: _Shares, there: Collection[str], more: int) -> None:
    """Raise SpaceError unless there is space for what an install will write, and for ``more`` bytes."""
    manifest = content.verification.manifest
    entries, size = room(item for item in manifest.overlays if item.name == ENGINE or shares.overlays not in there)
    if shares.rootfs not in there:
        raw = sum(segment.raw or 0 for segment in content.layer)
        given = shares.donor
        size += max(0, raw - min(manifest.image.holes, raw) - (given.size if given else 0))
        entries += max(0, manifest.image.entries - (given.files if given else 0))
    size += content.size_of_members + store.room_of_tool() + more
    space.check(store.images, size, entries + len(manifest.members))


def _write_image(new: str, store: Store, shares: _Shares, there: Mapping[str, layers.Layer], content: Content) -> None:
    """Write the image into the folder ``new``, which has its links, with its receipt and the missing layers."""
    there = {name: layer for name, layer in there.items() if files.is_folder(layer.folder)}  # now they are claimed
    content.check([segment for name in there for segment in shares.frames[name]])
    written = [Unpacked(layer.entries, layer.bytes) for layer in there.values()]
    verification, jobs = content.verification, content.jobs
    if shares.rootfs not in there:
        read_only = kit.has_udocker(verification.manifest)
        with unfinished.folder(store.layers) as layer:
            rootfs = os.path.join(layer, ROOTFS)
            tree = content.unpack_frames(rootfs, content.layer, shares.donor)
            if read_only:
                kit.protect(rootfs)
            noted = [(content.layer[number], note) for number, note in sorted(tree.notes.items())]
            frames.write(layer, noted, tree.folders, read_only)
            layers.publish(store, shares.rootfs, layer, tree.size.entries, tree.size.bytes, tree.paths())
        written.append(tree.size)
    with ExitStack() as stack:
        overlays = unpacked = None
        if shares.overlays and shares.overlays not in there:
            overlays = stack.enter_context(unfinished.folder(store.layers))
            unpacked = content.unpack_overlays(overlays, _shared(content.overlays))
            written.append(unpacked)
        written.append(content.unpack_overlays(new, {ENGINE} & content.overlays.keys()))
        written.append(content.write_members(new))
        for need in verification.manifest.needs:  # mount points for other bundles' data
            os.makedirs(os.path.join(new, "data", need.data), exist_ok=True)
        for _ in verification.check(verification.left()):  # headers, padding, and members that only the laptop uses
            pass
        bundle, whole, manifest = verification.finish(), total(written), verification.manifest
        receipt = Receipt(
            manifest.name, manifest.version, bundle.digest, int(time.time()), files=whole.entries, bytes=whole.bytes
        )
        kit.prepare(InstalledImage(new, receipt))
        if overlays and unpacked:
            from deployer.site.install import bytecode

            engine = os.path.join(new, ENGINE)
            bytecode.compile_overlays(overlays, manifest.image, jobs, os.path.join(new, ROOTFS), engine)
            layers.publish(store, shares.overlays, overlays, unpacked.entries, unpacked.bytes)
    if shares.overlays and files.is_file(os.path.join(store.layers, shares.overlays, BYTECODE)):
        layers.link(new, BYTECODE, shares.overlays)
    write(os.path.join(new, MANIFEST), [bundle.manifest_bytes])
    write(os.path.join(new, RECEIPT), [json_records.pretty(receipt.record()).encode("utf-8")])
    inventory.write_inventory(new)


def _shared(overlays: Iterable[str]) -> List[str]:
    """Return the names of the overlays that images share."""
    return [name for name in overlays if name != ENGINE]


def _copy(path: str, target: str) -> None:
    with verify.opened(path) as source, files.published(target) as stream:
        shutil.copyfileobj(source, stream, files.CHUNK)


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
            _copy(path, target)
            os.unlink(path)
    return target
