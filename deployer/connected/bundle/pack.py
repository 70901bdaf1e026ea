"""pack: write a bundle, a plain tar with an image and everything that a site needs to run it."""

import functools
import gc
import hashlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, NamedTuple

import zstandard

import deployer
from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.layer import codecs, known_layers, overlays
from deployer.connected.bundle.layer.framecache import FrameCache
from deployer.connected.bundle.layer.known_layers import DamagedLayer, KnownLayer
from deployer.connected.bundle.layer.layer_source import LayerSources, ReadLayer
from deployer.connected.bundle.pyz import make_pyz, vendored
from deployer.connected.bundle.seal import BundleWriter
from deployer.connected.check.checking import USUAL, Checking
from deployer.connected.ground import progress
from deployer.connected.ground.locked_folder import lock
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image import lint
from deployer.connected.image.lint import secrets
from deployer.connected.linker import commands, families, index
from deployer.connected.linker.commands import Tree
from deployer.connected.rootfs import datafolder, imageconfig, wheels
from deployer.connected.rootfs.datafolder import DataFile
from deployer.connected.rootfs.entries import OnDisk, shown
from deployer.contract.base import json_records, records, tarformat
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle import oci, sealed_file
from deployer.contract.elf.machines import kernel_name
from deployer.contract.site import mount_points
from deployer.contract.site.plan import APP, Plan
from deployer.system import files

if TYPE_CHECKING:  # slow to import, and unused without a site
    from deployer.connected.site_profile.profile import Profile

_logger = logging.getLogger("deployer.pack")

#: How long, in seconds, a thread may hold the interpreter's lock while another waits; the default is 0.005. The thread
#: that computes the layer's digest needs the lock once per piece, and a piece takes 0.003.
_SWITCH = 0.0005


class Packed(NamedTuple):
    """A finished bundle.

    Attributes:
        path: the file.
        digest: the bundle's digest.
        size: its size in bytes.
        manifest: its manifest.
        reused: the number of frames from the cache.
        plans: its plans, each with the verdict from ``check``.
    """

    path: Path
    digest: str
    size: int
    manifest: manifests.Manifest
    reused: int = 0
    plans: Sequence[Plan] = ()

    def record(self) -> json_records.Record:
        """Return the fields for ``--json``."""
        image = self.manifest.image
        return {
            "bundle": str(self.path),
            "name": self.manifest.name,
            "version": self.manifest.version,
            "digest": self.digest,
            "size": self.size,
            "raw_size": image.raw_size,
            "entries": image.entries,
            "changes": self.manifest.changes,
            "frames": self.frames,
            "frames_reused": self.reused,
            "plans": {name: records.plain(plan.checked) for name, plan in self.named_plans() if plan.checked},
        }

    @property
    def frames(self) -> int:
        """Return the number of the layer's frames."""
        return len(sealed_file.member_segments(self.manifest, sealed_file.layer_member(self.manifest)))

    def named_plans(self) -> list[tuple[str, Plan]]:
        """Return the plans by name: SITE for a site's first plan, SITE:PARTITION for the others."""
        first: dict[str, Plan] = {}
        return [
            (plan.site if first.setdefault(plan.site, plan) is plan else f"{plan.site}:{plan.partition}", plan)
            for plan in self.plans
        ]


def pack(
    contents: Contents,
    profiles: "Iterable[Profile]",
    output: Path,
    codec: str = "zstd",
    cache: Path | None = None,
    changes: Path | None = None,
    checking: Checking = USUAL,
    say: Callable[[str], None] = _logger.info,
    own: bool = False,
    follow: Callable[[BundleWriter], None] | None = None,
) -> Packed:
    """Write a bundle with a plan for each partition of each profile, including the verdict from ``check``.

    A partition without a possible plan is left out if the profile has another with a plan; ``say`` receives the reason.

    The same image, app, data, profiles and tool versions give the same bytes. No file remains after an error.

    Args:
        output: the path of the bundle.
        codec: zstd or gzip.
        cache: the folder of cached frames; None: no cache.
        changes: a file for the list of all paths that flatten changed.
        checking: how plans are checked.
        say: receives the steps of making the kit, and a warning for each part that is left out.
        own: ``output`` is a file in deployer's own cache, which nobody else changes. If it already has the layer, the
            layer is not read, and only what follows it is written. After an error the file is removed.
        follow: receives the writer before a layer that is not known is written.

    Raises:
        UsageError: the contents cannot be packed, or ``output`` is a folder.
        Refused: a job's command is missing in the image, the app folder does not match the image, the image has a
            secret, the MPI family is ambiguous, or no plan is possible.
        Unknown: a profile lacks facts for its plan.
        SpaceError: not enough space for the bundle.
    """
    manifests.check_label(contents.name, contents.version)
    files.check_not_folder(str(output))  # fail before reading the image
    profiles = list(profiles)
    if profiles and contents.read is None:
        raise UsageError(f"{contents.name} holds only data, which needs no plan", "leave out --site")
    files.reap_parts(str(output))
    write = functools.partial(
        _packed, contents, profiles, output, codecs.codec(codec), cache, changes, checking, say, own, follow
    )
    with _busy():
        try:
            return write(may_know=changes is None)  # the cache does not have the list of changed paths
        except DamagedLayer as error:
            say(f"{error.message}: the image is read again")
            return write(may_know=False)


@contextmanager
def _busy() -> Iterator[None]:
    """Tune the interpreter for threads that briefly need its lock often, and for a tree of many objects."""
    interval, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_SWITCH)
    gc.disable()  # it would repeatedly scan all image entries; none is in a cycle
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if collects:
            gc.enable()


def _packed(
    contents: Contents,
    profiles: "Sequence[Profile]",
    output: Path,
    codec: codecs.Codec,
    cache: Path | None,
    changes: Path | None,
    checking: Checking,
    say: Callable[[str], None],
    own: bool,
    follow: Callable[[BundleWriter], None] | None,
    may_know: bool,
) -> Packed:
    """Write a bundle, as ``pack`` describes.

    Args:
        may_know: use a known layer if there is one.

    Raises:
        DamagedLayer: the known layer is damaged.
    """
    with ExitStack() as cleanup:
        frames = cleanup.enter_context(closing(FrameCache(cache, codec))) if cache else None
        scratch = cleanup.enter_context(Scratch(output.parent))
        sources = LayerSources(contents, codec, frames, scratch, output, may_know, own)
        if not contents.mpi and any(profile.starts_inside for profile in profiles):
            contents = contents._replace(mpi=None)  # its own MPI starts the ranks
        contents = _with_families(contents, sources, say)
        pairs = _plans(profiles, contents, say)
        plans = [plan for _, plan in pairs]
        source = sources.layer(cleanup)
        if plans or contents.kit:
            from deployer.connected.bundle import kit

            parts = kit.carried(contents.kit, pairs, kernel_name(source.architecture), say)
            contents = contents._replace(carried={**contents.carried, **parts})
        folders = {name: datafolder.files_of(path) for name, path in sorted(contents.data.items())}
        in_memory = io.BytesIO()
        front = BundleWriter(in_memory)
        front.member("deployer.pyz", make_pyz(), 0o755)
        front.member(oci.LAYOUT_FILE, oci.LAYOUT)
        before = in_memory.getvalue()
        standing = source.end_in(output, before) if own else 0
        with _renewed(output, standing) if standing else files.published(str(output)) as stream:
            with files.errors_named(f"write {output}"):
                settings = imageconfig.checked(source.config)
                if settings.dropped:
                    say(
                        "variables of the image left out, because their names are not valid in a shell: "
                        + ", ".join(settings.dropped)
                    )
                lacking = _mount_points(contents, profiles, plans, source.tree)
                if commands.CODE not in checking.accept:
                    _refuse_missing(contents, settings, source.tree, plans)
                lint.refuse_errors(secrets.in_image(source.secrets, settings.kept()), contents.accept)
                if standing:
                    stream.seek(len(before))
                else:
                    stream.write(before)
                writer = BundleWriter.after(stream, front.members, front.segments)
                if follow and isinstance(source, ReadLayer):
                    follow(writer)
                facts = index.LayerFacts()
                layer = source.write(writer, facts.see if plans else None)
                manifest = _write(writer, contents, layer, settings, folders, codec)._replace(mount_points=lacking)
                layer = _write_sbom(writer, contents, layer)
                _write_provenance(writer, contents, image=manifest.image.config_digest, layer=layer.raw.digest)
                plans = _checked(writer, manifest, pairs, checking, facts)
                digest = writer.seal(manifest)
                manifest = manifest._replace(members=writer.members, segments=writer.segments)
                scratch.settle()
            if changes:
                lines = (
                    f"{kind}\t/{shown(path)}\n"
                    for kind in sorted(source.changed)
                    for path in sorted(source.changed[kind])
                )
                files.write_text(str(changes), "".join(lines))
        sources.keep(layer, digest.rpartition(":")[2])
        return Packed(output, digest, output.stat().st_size, manifest, source.reused, plans)


@contextmanager
def _renewed(path: Path, size: int) -> Iterator[IO[bytes]]:
    """Yield the file ``path``, cut to its first ``size`` bytes, for reading and writing. An error removes it.

    It is a file in deployer's own cache. As with ``files.published``, the file gets its name only when complete. Until
    then it has a temporary name, which ``files.reap_parts`` removes if this process is killed.

    Raises:
        UsageError: another process is writing it.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(4)}.part")
    with files.errors_named(f"write {path}"):
        stream = open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b")
    with stream:
        try:
            lock(stream)
        except BlockingIOError:
            raise UsageError(f"another process writes {path}", "wait until it has ended") from None
        try:
            with files.errors_named(f"write {path}"):
                os.rename(path, temporary)
                stream.truncate(size)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _with_families(contents: Contents, sources: LayerSources, say: Callable[[str], None]) -> Contents:
    """Return the contents with the MPI families of the image's and app's programs, unless the contents name them."""
    if contents.mpi is not None:
        return contents
    app = datafolder.app_files(contents.app) if contents.app else []
    in_app = [(f"{APP}/{file.name}", OnDisk(file.path, file.size)) for file in app]
    has_wheels = manifests.WHEELS in overlays.by_name(contents.carried)
    used = families.find(sources.users(), contents.jobs, has_wheels, in_app)
    if used.families:
        say(f"mpi: {', '.join(used.families)}, to which {used.path} is linked")
    return contents._replace(mpi=used.families)


def _plans(
    profiles: "Sequence[Profile]", contents: Contents, say: Callable[[str], None]
) -> "list[tuple[Profile, Plan]]":
    """Return the plans, each with its profile. Plans of a profile are adjacent, its first partition first."""
    if not profiles:
        return []
    from deployer.connected.site_profile.plan import by_queue, make_plans

    label = f"{contents.name}:{contents.version}"
    pairs = []
    for profile in profiles:
        first, *others = plans = make_plans(profile, label, contents.mpi or ())
        for partition, reason in first.without.items():
            say(f"no plan for partition {partition} of {first.site}: {reason}")
        first = first._replace(without={**by_queue(profile.left_out, plans), **first.without})
        pairs += [(profile, plan) for plan in (first, *others)]
    return pairs


def _checked(
    writer: BundleWriter,
    manifest: manifests.Manifest,
    pairs: "Sequence[tuple[Profile, Plan]]",
    checking: Checking,
    facts: index.LayerFacts,
) -> list[Plan]:
    """Write the plans, each with the verdict on the members written so far, which are all that jobs can load."""
    if not pairs:
        return []
    from deployer.connected.check.check import check_plan

    written = writer.written(manifest)
    image = index.of_image(written, checking.cache, facts)
    checked = [plan._replace(checked=check_plan(written, profile, plan, checking, image)) for profile, plan in pairs]
    sites: set[str] = set()
    for plan in checked:
        below = f"/{plan.partition}" if plan.site in sites else ""
        sites.add(plan.site)
        writer.member(f"{manifests.PLANS_PREFIX}{plan.site}{below}.json", json_records.pretty(plan.record()).encode())
    return checked


def _mount_points(
    contents: Contents, profiles: "Iterable[Profile]", plans: Iterable[Plan], tree: Tree
) -> tuple[str, ...]:
    """Return the missing mount points for the plans' binds, the sites' file systems and the definition.

    Raises:
        UsageError: the image has a link or a file at a mount point.
    """

    def is_folder(path: str) -> bool | None:
        entry = tree.find(os.fsencode(path).strip(b"/"))
        return None if entry is None else entry.kind == tarformat.FOLDER

    bound = [bind.target for plan in plans for bind in plan.binds]
    for path in [*bound, *map(mount_points.check_site, contents.mount_points)]:
        part = mount_points.in_the_way(path, is_folder)
        if part:
            hint = "bind to another path, or make it a folder in the Dockerfile"
            raise UsageError(f"{path} must be a mount point, but {part} is not a folder in the image", hint)
    partitions = [profile.partition(name)[1] for profile in profiles for name in profile.partitions]
    file_systems = [path for partition in partitions for path in partition.filesystems]
    free = (path for path in mount_points.possible(file_systems) if not mount_points.in_the_way(path, is_folder))
    lacking = (path for path in {*bound, *contents.mount_points, *free} if is_folder(path) is None)
    return tuple(sorted(map(mount_points.check, lacking)))


def _refuse_missing(contents: Contents, settings: imageconfig.ImageConfig, tree: Tree, plans: Sequence[Plan]) -> None:
    """Raise Refused if a job's command cannot start in the image at any site."""
    carried = overlays.by_name(contents.carried)
    programs = set().union(*(wheels.programs(carried[name]) for name in carried if name != manifests.ENGINE))
    look = commands.in_tree(tree, contents.app)
    place = commands.place(look, settings.env, settings.workdir or "/", plans, programs)
    commands.refuse(contents.jobs, place)


def _write(
    writer: BundleWriter,
    contents: Contents,
    layer: KnownLayer,
    settings: imageconfig.ImageConfig,
    folders: Mapping[str, Sequence[DataFile]],
    codec: codecs.Codec,
) -> manifests.Manifest:
    """Write the members after the layer, up to the SBOM. Return the manifest without its tables."""
    config = writer.blob(oci.config(layer.architecture, settings.kept(), layer.raw.digest))
    image_manifest = writer.blob(oci.manifest(config, layer.layer, codec.name))
    writer.member(oci.INDEX_FILE, oci.index(image_manifest, contents.name, contents.version, layer.architecture))
    for file in datafolder.app_files(contents.app) if contents.app else ():
        writer.member(manifests.APP_PREFIX + file.name, b"".join(datafolder.pieces(file)), file.mode)
    carried = overlays.by_name(contents.carried)
    beside = [overlays.write(writer, name, paths, layer.python, codec) for name, paths in carried.items()]
    for name, path in sorted(contents.carried.items()):
        if not name.endswith(".whl"):
            _write_file(writer, name, path)
    with progress.bar("data", sum(file.size for found in folders.values() for file in found)) as advance:
        for data_name, file in ((data_name, file) for data_name, found in folders.items() for file in found):
            member = f"{manifests.DATA_PREFIX}{data_name}/{file.name}"
            writer.pieces(member, file.size, datafolder.pieces(file, advance), file.mode)
    return manifests.Manifest(
        name=contents.name,
        version=contents.version,
        codec=codec.record(),
        tools={"deployer": deployer.__version__, "zstandard": zstandard.__version__, **vendored()},
        image=manifests.Image(
            config_digest=config.digest,
            layer_digest=layer.layer.digest,
            architecture=layer.architecture,
            env=settings.env,
            workdir=settings.workdir or "/",
            entrypoint=settings.entrypoint,
            cmd=settings.cmd,
            python=layer.python,
            raw_size=layer.raw.size,
            entries=len(layer.entries),
            holes=layer.holes,
        ),
        changes={**layer.changes, **({"variables dropped": len(settings.dropped)} if settings.dropped else {})},
        jobs=list(contents.jobs),
        members=[],
        segments=[],
        needs=tuple(contents.needs),
        mpi=tuple(contents.mpi or ()),
        overlays=tuple(beside),
    )


def _write_file(writer: BundleWriter, name: str, path: Path) -> None:
    """Write a file of any size as a member. Raises UsageError if it changes during the copy."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size

        def pieces() -> Iterator[bytes]:
            left = size
            while left:
                piece = stream.read(min(left, files.CHUNK * 8))
                if not piece:
                    raise UsageError(f"{path} became shorter while it was packed", "pack again")
                left -= len(piece)
                yield piece

        writer.pieces(name, size, pieces(), 0o755 if os.fstat(stream.fileno()).st_mode & 0o111 else 0o644)


def _write_sbom(writer: BundleWriter, contents: Contents, layer: KnownLayer) -> KnownLayer:
    """Write the SBOM of the members written so far. Return the layer with its SBOM recorded.

    The SBOM lists the image's packages, the wheels and the data. A cached SBOM for the same content is reused,
    because the imports for a new one take longer than everything else except the layer.
    """
    digests = sealed_file.contents(writer.members, writer.segments)
    prefixes = (manifests.OVERLAYS_PREFIX, manifests.KIT_PREFIX)
    inputs = [[name, [item.sha256 for item in digests[name]]] for name in digests if name.startswith(prefixes)]
    words = [contents.name, contents.version, sorted(contents.data), sorted(contents.carried), inputs]
    made_of = hashlib.sha256(json.dumps(words).encode())
    if list(layer.sbom[:1]) != [made_of.hexdigest()]:
        from deployer.connected.bundle.about import sbom

        carried = sorted(contents.carried.items())
        packages = [sbom.of_wheel(path, name) for name, path in carried if name.endswith(".whl")]
        if any(name.startswith(manifests.KIT_PREFIX) for name in contents.carried):
            from deployer.connected.bundle import kit

            packages += kit.packages(writer.contents())
        listed = known_layers.inventory(layer)
        lines = sbom.make(contents.name, contents.version, listed, packages, contents.data)
        layer = layer._replace(sbom=[made_of.hexdigest(), *(line.decode() for line in lines)])
    pieces = [piece.encode() for piece in layer.sbom[1:]]
    writer.pieces(manifests.SBOM_MEMBER, sum(map(len, pieces)), pieces)
    return layer


def _write_provenance(writer: BundleWriter, contents: Contents, **digests: str) -> None:
    """Write the statement about how an image and its layer, with these digests, were built."""
    if contents.provenance:
        from deployer.connected.bundle.about import provenance

        writer.member(manifests.PROVENANCE_MEMBER, provenance.statement(contents.provenance(), **digests))
