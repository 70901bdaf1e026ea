"""The content of a bundle, as an install and the nodes of a job write it to disk, each segment checked on the way."""

import os
from contextlib import closing
from typing import Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from deployer.contract.base import tarformat
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import DATA_PREFIX, KIT_PREFIX, BundleMember, Segment, WheelOverlay
from deployer.contract.site import plan as plans
from deployer.site.install import mount_points
from deployer.site.install.donor import Donor
from deployer.site.install.unpack import Unpacked, UnpackedTree, unpack
from deployer.site.storage.frames import FrameNote
from deployer.site.storage.store import ENGINE, ROOTFS
from deployer.system import codec, files, workers
from deployer.system.trust.verify import Verification

#: Where members of a bundle are written: those that a rank reads, the runtime that starts it, and everything.
APP_ONLY = {"deployer/app/": "app"}
APP_AND_KIT = {
    **APP_ONLY,
    KIT_PREFIX + plans.CHARLIECLOUD_FOLDER + "/": os.path.join(ENGINE, plans.CHARLIECLOUD_FOLDER),
    KIT_PREFIX: "kit",
}
EVERYTHING = {**APP_AND_KIT, "deployer/plans/": "plans", DATA_PREFIX: "data"}

#: Called with the number of bytes just processed, and the total.
InstallProgress = Callable[[int, int], None]


class Content:
    """What is written of a bundle that is being verified. Each segment is checked when it is used.

    Attributes:
        verification: the bundle.
        layer: the frames of its layer.
        overlays: the frames of the overlays to write, by name.
        members: the members to write, with their paths in the image's folder.
    """

    def __init__(
        self,
        verification: Verification,
        overlays: Iterable[WheelOverlay],
        targets: Mapping[str, str],
        jobs: int,
        progress: Optional[InstallProgress],
    ) -> None:
        self.verification, self.jobs, self._progress = verification, jobs, progress
        self.layer = verification.layer_segments()
        self.overlays = {overlay.name: verification.member_segments(overlay.member) for overlay in overlays}
        self.members: List[Tuple[BundleMember, str]] = []
        for member in verification.manifest.members:
            prefix = next((prefix for prefix in targets if member.name.startswith(prefix)), None)
            if prefix:
                self.members.append((member, os.path.join(targets[prefix], member.name[len(prefix) :])))
        framed = [self.layer, *self.overlays.values()]
        self._total = sum(segment.raw or 0 for segments in framed for segment in segments) + self.size_of_members

    @property
    def size_of_members(self) -> int:
        return sum(member.size for member, _ in self.members)

    def extents(self) -> List[Tuple[int, int]]:
        """Return start and end of each segment to read, in any order."""
        manifest = self.verification.manifest
        contents = sealed_file.contents(manifest.members, manifest.segments)
        members = [contents[member.name] for member, _ in self.members]
        read = [self.layer, *self.overlays.values(), *members]
        return [(each.offset, each.offset + each.size) for segments in read for each in segments]

    def _advance(self, size: int) -> None:
        if self._progress:
            self._progress(size, self._total)

    def _passed(self, segment: Segment) -> None:
        self.verification.passed(segment)
        self._advance(segment.raw or segment.size)

    def check(self, segments: Sequence[Segment]) -> None:
        """Check the frames of layers that are already unpacked here: these segments of the bundle may be damaged."""

        def read(segment: Segment) -> None:  # bytes that it returned would come back through a pipe
            self.verification.read(segment)

        with closing(workers.in_groups(segments, lambda segment: segment.size, self.jobs, read)) as checked:
            for segment, _ in checked:
                self._passed(segment)

    def unpack_frames(
        self,
        root: str,
        segments: Sequence[Segment],
        given: Optional[Donor] = None,
    ) -> UnpackedTree:
        """Unpack the frames of a layer or an overlay into the new folder ``root``, linking the files from a donor."""
        decompress = codec.decompressor(str(self.verification.manifest.codec["name"]))

        def read(number: int) -> bytes:
            return self.verification.read(segments[number])

        def source(number: int) -> memoryview:
            return decompress(read(number), segments[number].raw or 0)

        def link(opened: int, folders: Set[bytes]) -> Iterator[Tuple[int, FrameNote]]:
            return given.link(opened, folders, segments, read, source, self.jobs) if given else iter(())

        def done(number: int) -> None:
            self._passed(segments[number])

        os.makedirs(root)
        return unpack(segments, source, root, self.jobs, done, link)

    def unpack_overlays(self, folder: str, names: Iterable[str]) -> Unpacked:
        """Write overlays into ``folder``. After an error, the caller removes what was written."""
        return total([self.unpack_frames(os.path.join(folder, name), self.overlays[name]).size for name in names])

    def write_members(self, folder: str) -> Unpacked:
        """Write the members into ``folder``."""
        manifest = self.verification.manifest
        contents = sealed_file.contents(manifest.members, manifest.segments)
        for member, path in self.members:
            pieces = self.verification.check(contents[member.name], self._advance)
            # ch-run's binds are writable although the image is not, and all jobs with the image share them. Read-only
            # modes at least prevent accidental changes.
            bound = member.name.startswith((DATA_PREFIX, *APP_ONLY))
            mode = (member.mode | 0o400) & ~0o222 if bound else member.mode | 0o600
            write(os.path.join(folder, path), pieces, mode)
            # The same on all nodes and in all jobs, and another one for other content: Numba compares times of sources.
            mtime = tarformat.MTIME + sum(int(part.sha256[-6:], 16) for part in contents[member.name]) % (1 << 24)
            os.utime(os.path.join(folder, path), (mtime, mtime))
        return Unpacked(len(self.members), self.size_of_members)

    def write_for_ranks(self, folder: str) -> None:
        """Write everything into ``folder``."""
        rootfs = os.path.join(folder, ROOTFS)
        self.unpack_frames(rootfs, self.layer)
        mount_points.make(rootfs, self.verification.manifest.mount_points)
        self.unpack_overlays(folder, self.overlays)
        self.write_members(folder)


def room(overlays: Iterable[WheelOverlay]) -> Unpacked:
    """Return how many files and bytes overlays will need, with bytecode, as the manifest claims."""
    return total(Unpacked(overlay.entries, overlay.bytes) for overlay in overlays)


def total(parts: Iterable[Unpacked]) -> Unpacked:
    """Return the sum of several sizes."""
    parts = list(parts)
    return Unpacked(sum(part.entries for part in parts), sum(part.bytes for part in parts))


def write(path: str, pieces: Iterable[bytes], mode: int = 0o666) -> None:
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
