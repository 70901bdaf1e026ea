"""The layer of a bundle: made from the image, or copied from the frame cache if the layer is known."""

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.layer import known_layers
from deployer.connected.bundle.layer import layer as layers
from deployer.connected.bundle.layer.codecs import Codec
from deployer.connected.bundle.layer.compress import Press, Pressed
from deployer.connected.bundle.layer.framecache import FrameCache, Kept
from deployer.connected.bundle.layer.known_layers import DamagedLayer, KnownBundle, KnownLayer, KnownTree, LayerRecord
from deployer.connected.bundle.seal import BundleWriter, layer_member
from deployer.connected.ground import progress
from deployer.connected.ground.scratch import Scratch
from deployer.connected.linker import families
from deployer.connected.linker.commands import ListedTree
from deployer.connected.linker.families import MpiUser
from deployer.connected.rootfs import imageconfig, machine
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.secrets import Secret, in_tree
from deployer.contract.bundle import command, sealed_file
from deployer.contract.bundle.manifest import FRAME, Segment
from deployer.system import files, terminal

if TYPE_CHECKING:
    from deployer.connected.bundle.about.packages import PackageInventory

#: Names of bundles that only `deploy` uses: the bundle itself, and its copy in the frame cache.
_NAMES = 2


class LayerSources:
    """Finds the source of a bundle's layer. The image is read once, and only if necessary.

    Args:
        contents: the contents of the bundle.
        frames: the frame cache; None: no cache.
        scratch: keeps the image's files open.
        output: the path of the bundle, for error messages.
        may_know: use a known layer if possible.
        own: ``output`` is a file of ``deploy``: a known layer stays in place, and the frame cache shares it.
    """

    def __init__(
        self,
        contents: Contents,
        codec: Codec,
        frames: FrameCache | None,
        scratch: Scratch,
        output: Path,
        may_know: bool,
        own: bool = False,
    ) -> None:
        self._read = contents.read
        self._lean = contents.lean
        self._codec = codec
        self._frames = frames
        self._scratch = scratch
        self._output = output
        self._key = ""
        self._records: list[LayerRecord] = []
        if frames and contents.identity and may_know:
            self._key = known_layers.image_key(contents.identity(), contents.lean, codec)
            self._records = list(known_layers.records(self._key, frames.records()))
        self._load = functools.lru_cache(1)(LayerRecord.load)  # large, and needed twice: for its users and its layer
        self._users: Sequence[MpiUser] | None = None
        self._own = own
        self._stays: LayerRecord | None = None  # the record of a known layer that stays in the cache
        self._was: Sequence[Segment] = ()  # the frames of that layer in the cache

    def users(self) -> Sequence[MpiUser]:
        """Return the image's files that are linked to an MPI library."""
        found = (known.users for record in self._records if (known := self._load(record)))
        self._users = next((users for users in found if users is not None), None)
        if self._users is None:
            self._users = families.users(families.files_of(self._image.root))
        return self._users

    def layer(self, cleanup: ExitStack) -> "ReadLayer | CopiedLayer":
        """Return the source of the layer. ``cleanup`` closes its files."""
        known = self._known(cleanup)
        if known:
            return CopiedLayer(known, self._codec)
        tree = FlattenedRootfs(self._image.root, self._lean) if self._read else _NoTree(self._image.root)
        return ReadLayer(self._image, tree, Press(self._codec, self._frames))

    def keep(self, layer: KnownLayer, name: str) -> None:
        """Add the finished bundle to the cache unless its layer is there. ``name`` is its digest in hexadecimal."""
        if not self._frames:
            return
        if self._stays:
            if self._own and list(layer.segments) == list(self._was):
                self._frames.share(self._stays.path, self._output)
            self._learn(self._stays, layer)
            return
        frames = (Kept(key, s.offset, s.size, s.sha256) for key, s in zip(layer.keys, layer.segments, strict=True))
        # Use the identity of the image that was read: its name may have moved since the lookup.
        image = known_layers.image_key(layer.identity, self._lean, self._codec)
        text = ""
        if image:
            if layer.users is None:
                layer = layer._replace(users=self._users)
            text = known_layers.record(image, layer)
        self._frames.keep(self._output, name, frames, text)

    def _learn(self, record: LayerRecord, layer: KnownLayer) -> None:
        """Update the cached record of a layer with this pack's new SBOM and the files linked to MPI."""
        known = self._load(record)
        if known is None or not self._frames:
            return
        now = known._replace(sbom=layer.sbom, users=self._users if known.users is None else known.users)
        if (list(now.sbom), now.users) != (list(known.sbom), known.users):
            self._frames.note(record.path, known_layers.record(self._key, now))

    @functools.cached_property
    def _image(self) -> ArchiveImage:
        with files.errors_named(f"write {self._output}"):
            return self._read(self._scratch) if self._read else ArchiveImage("unknown", {}, Rootfs())

    def _known(self, cleanup: ExitStack) -> KnownBundle | None:
        if not self._frames:
            return None
        for record in self._records:
            bundle = self._frames.bundle(record.path)
            if bundle is not None:
                cleanup.enter_context(bundle)
                layer = self._load(record)
                if layer:
                    self._stays = record if self._frames.holds(record.path) else None
                    self._was = layer.segments
                    return KnownBundle(layer, bundle)
        return None


class _NoTree(FlattenedRootfs):
    """The empty root filesystem of a data-only bundle, without mount points."""

    def _check_is_root(self) -> None:
        pass

    def _make_mount_points(self) -> None:
        pass


class ReadLayer:
    """A layer that is made from an image.

    Attributes:
        tree: its root filesystem.
        config: the image's configuration.
        changed: the paths that flatten changed, by kind of change.
    """

    def __init__(self, image: ArchiveImage, tree: FlattenedRootfs, press: Press) -> None:
        self.tree = tree
        self.config = image.config
        self.changed: Mapping[str, Sequence[bytes]] = tree.changed
        self._image = image
        self._press = press

    def end_in(self, path: Path, front: bytes) -> int:
        """As in ``CopiedLayer``: the layer is not there."""
        del path, front
        return 0

    @functools.cached_property
    def secrets(self) -> Sequence[Secret]:
        """The secrets in its files."""
        return in_tree(self.tree)

    @property
    def reused(self) -> int:
        """Return the number of frames from the cache. Valid after the layer was written."""
        return self._press.reused

    def write(self, writer: BundleWriter, see: Callable[[int, bytes], None] | None = None) -> KnownLayer:
        """Write the layer, and return its record. ``see`` is as in ``Press.frames``."""
        tree, press = self.tree, self._press
        with ThreadPoolExecutor(1, "packages") as beside:
            finding = beside.submit(_packages, tree)
            with progress.bar("pack", tree.size) as advance:
                layer = writer.layer(_counted(press.frames(layers.pieces(tree), see), advance))
        search = command.variables(imageconfig.checked(self.config).env).get("PATH", command.DEFAULT_PATH)
        return KnownLayer(
            identity=self._image.identity,
            architecture=self.architecture,
            config=self._image.config,
            python=tree.find_program("python3", search.split(":")),
            changes=tree.changes,
            layer=layer,
            raw=press.raw,
            holes=press.holes,
            segments=_frames_of(writer),
            keys=press.keys,
            entries=list(tree.entries()),
            packages=finding.result(),
            users=None,
            secrets=self.secrets,
        )

    @functools.cached_property
    def architecture(self) -> str:
        """Return the architecture that the programs are for. Warn if the image's label names another one."""
        label, measured = self._image.architecture, self.tree.architecture()
        if label and machine.contradicts(label, measured):
            terminal.warn(f"the image is labelled {label}, but its programs are for {measured}: packed as {measured}")
            return measured
        return label or measured


class CopiedLayer:
    """A known layer, copied from a bundle in the cache. Attributes and methods are as in ``ReadLayer``."""

    tree: ListedTree
    changed: Mapping[str, Sequence[bytes]] = {}  # only known of layers that were read

    def __init__(self, known: KnownBundle, codec: Codec) -> None:
        self.tree = KnownTree(known, codec.record())
        self.config = known.layer.config
        self.architecture = known.layer.architecture
        self.secrets = known.layer.secrets
        self._known = known
        self._stands = False
        self.reused = len(known.layer.segments)

    def end_in(self, path: Path, front: bytes) -> int:
        """Return the end of the layer in ``path`` if it is already there after ``front``; otherwise 0.

        The file must be the cache's own bundle without a third link.
        """
        known, bundle = self._known
        start = front + sealed_file.member_header(layer_member(known.layer))
        end = len(start) + known.layer.size
        state, there = os.fstat(bundle.fileno()), files.status(str(path), follow=False)
        if there is None or not os.path.samestat(state, there) or state.st_nlink != _NAMES or state.st_size < end:
            return 0
        places = itertools.accumulate((segment.size for segment in known.segments), initial=len(start))
        if [segment.offset for segment in known.segments] + [end] != list(places):
            return 0
        self._stands = os.pread(bundle.fileno(), len(start), 0) == start
        return end if self._stands else 0

    def write(self, writer: BundleWriter, see: Callable[[int, bytes], None] | None = None) -> KnownLayer:
        """Write the layer unless it is already there. ``see`` is not called. Raises DamagedLayer."""
        del see
        known = self._known.layer
        if self._stands:
            writer.standing_layer(known.layer, known.segments)
            return known
        if sum(segment.size for segment in known.segments) != known.layer.size:
            raise DamagedLayer("a bundle in the cache is damaged")
        with progress.bar("pack", known.raw.size) as advance:
            # Each frame is verified, so the layer has this digest; no need to compute it again.
            frames = _counted(known_layers.copied(self._known), advance)
            writer.frames(known.layer.member, known.layer.size, frames)
        return known._replace(segments=_frames_of(writer))


def _frames_of(writer: BundleWriter) -> list[Segment]:
    return [segment for segment in writer.segments if segment.kind == FRAME]


def _packages(tree: FlattenedRootfs) -> "PackageInventory":
    """Return the packages of an image. The imports are slow, so this runs in another thread."""
    from deployer.connected.bundle.about import packages, sbom  # noqa: F401  needed after the layer

    return packages.of_tree(tree)


def _counted(frames: Iterable[Pressed], advance: Callable[[int], None]) -> Iterator[Pressed]:
    """Yield the frames. Call ``advance`` with the size of each."""
    for frame in frames:
        yield frame
        advance(frame.raw)
