"""pack: a built image becomes a bundle, one plain tar that carries all that a site needs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import zstandard

import deployer
from deployer.connected import archive, codecs, progress
from deployer.connected import layer as layers
from deployer.connected.flatten import Tree
from deployer.connected.framecache import FrameCache
from deployer.connected.members import shown
from deployer.connected.plan import make_plan
from deployer.connected.press import Press, Pressed
from deployer.connected.profile import Profile
from deployer.connected.pyz import make_pyz, vendored
from deployer.connected.scratch import Scratch
from deployer.connected.seal import BundleWriter
from deployer.contract import oci, records
from deployer.contract.errors import UsageError
from deployer.contract.job import Job
from deployer.contract.manifest import FRAME, Image, Manifest, check_label
from deployer.contract.plan import Plan
from deployer.system import files

#: What of an image's own configuration is kept.
_KEPT = ("Env", "WorkingDir", "Entrypoint", "Cmd", "Labels")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Contents(NamedTuple):
    """What goes into a bundle.

    ``read`` returns the image; what it leaves open and spooled is the scratch's. ``app`` is the folder of the training
    code.
    """

    name: str
    version: str
    read: Callable[[Scratch], archive.Image]
    jobs: Sequence[Job] = ()
    app: Path | None = None


class Packed(NamedTuple):
    """A finished bundle: its path, digest and size in bytes, its manifest, and the frames that the cache had."""

    path: Path
    digest: str
    size: int
    manifest: Manifest
    reused: int = 0

    def record(self) -> records.Record:
        """Return what a program would want to know of it."""
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
            "frames": sum(segment.kind == FRAME for segment in self.manifest.segments),
            "frames_reused": self.reused,
        }


def pack(
    contents: Contents,
    profiles: Iterable[Profile],
    output: Path,
    codec: str = "zstd",
    cache: Path | None = None,
    changes: Path | None = None,
) -> Packed:
    """Write the bundle ``output``, whole or not at all, with a plan for each profile.

    The same image, app, profiles and tool versions give the same bytes. Frames are taken from, and kept in, the folder
    ``cache``, when one is given. ``changes`` gets a line for each path that flatten changed.
    """
    check_label(contents.name, contents.version)
    compression = codecs.codec(codec)
    press = Press(compression, FrameCache(cache, compression) if cache else None)
    plans = [make_plan(profile, f"{contents.name}:{contents.version}") for profile in profiles]
    with files.published(str(output)) as stream, Scratch(output.parent) as scratch:
        with files.errors_named(f"write {output}"):
            image = contents.read(scratch)
            tree = Tree(image.root, [bind.target for plan in plans for bind in plan.binds])
            digest, manifest = _write(BundleWriter(stream), contents, image, tree, plans, press, compression)
            scratch.settle()
        if changes:
            files.write_text(str(changes), "".join(_change_lines(tree)))
    return Packed(output, digest, output.stat().st_size, manifest, press.reused)


def _change_lines(tree: Tree) -> Iterator[str]:
    for kind in tree.changes:
        for path in sorted(tree.changed[kind]):
            yield f"{kind}\t/{shown(path)}\n"


def _write(
    writer: BundleWriter,
    contents: Contents,
    image: archive.Image,
    tree: Tree,
    plans: Sequence[Plan],
    press: Press,
    codec: codecs.Codec,
) -> tuple[str, Manifest]:
    writer.member("deployer.pyz", make_pyz(), 0o755)
    writer.member(oci.LAYOUT_FILE, oci.LAYOUT)
    with progress.bar("pack", tree.size) as advance:
        layer = writer.layer(_counted(press.frames(layers.pieces(tree)), advance))
    architecture = image.architecture or tree.architecture()
    settings = {key: image.config[key] for key in _KEPT if image.config.get(key)}
    config = writer.blob(oci.config(architecture, settings, press.raw.digest))
    image_manifest = writer.blob(oci.manifest(config, layer, codec.name))
    writer.member(oci.INDEX_FILE, oci.index(image_manifest, contents.name, contents.version, architecture))
    for plan in plans:
        writer.member(f"deployer/plans/{plan.site}.json", records.pretty(plan.record()).encode())
    for path in _app_files(contents.app):
        mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
        writer.member("deployer/app/" + path.relative_to(contents.app or path).as_posix(), path.read_bytes(), mode)
    env = [str(item) for item in settings.get("Env", [])]
    manifest = Manifest(
        name=contents.name,
        version=contents.version,
        codec=codec.record(),
        tools={"deployer": deployer.__version__, "zstandard": zstandard.__version__, **vendored()},
        image=Image(
            config_digest=config.digest,
            layer_digest=layer.digest,
            architecture=architecture,
            env=env,
            workdir=settings.get("WorkingDir", "/"),
            entrypoint=list(settings.get("Entrypoint", [])),
            cmd=list(settings.get("Cmd", [])),
            python=tree.find_program("python3", _search_path(env)),
            raw_size=press.raw.size,
            entries=len(tree),
        ),
        changes=tree.changes,
        jobs=list(contents.jobs),
        members=[],
        segments=[],
    )
    digest = writer.seal(manifest)
    return digest, manifest._replace(members=writer.members, segments=writer.segments)


def _search_path(env: Sequence[str]) -> list[str]:
    values = dict(item.partition("=")[::2] for item in env)
    return values.get("PATH", _DEFAULT_PATH).split(":")


def _app_files(folder: Path | None) -> list[Path]:
    """Return the regular files of the app folder, sorted, without what running them leaves behind."""
    if folder is None:
        return []
    found = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    for path in found:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UsageError(f"{path} is neither a file nor a folder", "an app folder holds plain files only")
    return [path for path in found if path.is_file()]


def _counted(frames: Iterable[Pressed], advance: Callable[[int], None]) -> Iterator[Pressed]:
    for frame in frames:
        yield frame
        advance(frame.raw)
