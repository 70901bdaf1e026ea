"""reproduce: build a bundle's image again from what the bundle itself says, and compare.

Nothing is taken from caches of layers or of bases. Wheels are downloaded as the lock says, and the network settings are
this machine's. The build has a name and a base of its own, which are removed afterwards.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from docker.errors import APIError

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.about import diff as diffs
from deployer.connected.bundle.about import provenance, reasons
from deployer.connected.bundle.about import sbom as sboms
from deployer.connected.ground import engine, progress
from deployer.connected.image.bases import base as bases
from deployer.connected.image.build import BuildOptions, build
from deployer.connected.image.definition.definition import Definition, load
from deployer.connected.image.last_build import record_of
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.manifest import OVERLAYS_PREFIX, VARIANTS, Manifest
from deployer.contract.bundle.sealed_file import member_segments
from deployer.system.trust.verify import Verification, begin, opened, size_of, verify

#: The name of what is built, and of its base, ends with this.
_AGAIN = "reproduced"
#: Larger files are not read to find out why they differ.
_MOST = 16 * 1024 * 1024
_SETTINGS = ("architecture", "env", "workdir", "entrypoint", "cmd")


class DifferentFile(NamedTuple):
    """A file that two builds made differently.

    Attributes:
        path: a file of the image, which starts with ``/``, or an overlay of the bundle.
        change: added, removed or changed.
        reason: why; ``reasons.UNKNOWN`` if nothing could be found.
    """

    path: str
    change: str
    reason: str


class Reproduction(NamedTuple):
    """The result of building a bundle's image again.

    Attributes:
        bundle: the bundle.
        reproduced: the layer, the image's settings and the wheels are the same.
        layer: the digest of the bundle's uncompressed layer.
        layer_again: that of the new build.
        settings: the settings of the image that differ: ``env``, ``workdir`` and others.
        packages: packages whose versions differ.
        files: files that differ.
        builder: what built the bundle's image, and what built it again.
    """

    bundle: str
    reproduced: bool
    layer: str
    layer_again: str
    settings: list[str]
    packages: list[diffs.PackageChange]
    files: list[DifferentFile]
    builder: tuple[str, str]

    def record(self) -> json_records.Record:
        """Return the fields for ``--json``."""
        return {
            **self._asdict(),
            "packages": [each._asdict() for each in self.packages],
            "files": [each._asdict() for each in self.files],
        }


class _Statement(NamedTuple):
    """What a bundle's provenance says.

    Attributes:
        parameters: the keys of the definition.
        dir_hash: the digest of its files.
        layer: the digest of the uncompressed layer.
        builder: the program that built the image.
    """

    parameters: dict[str, Any]
    dir_hash: str
    layer: str
    builder: str


def reproduce(path: str, given: Path | None, options: BuildOptions, say: Callable[[str], None]) -> Reproduction:
    """Build a bundle's image again, and compare.

    Args:
        path: the bundle. Its Dockerfile is run, with this machine's network settings.
        given: its definition, for files that the bundle does not carry.
        options: the settings for the build.

    Raises:
        UsageError: the bundle has no provenance, or it lacks files of its definition.
        DeployerError: an error of ``verify``, ``build`` or ``pack``.
    """
    with tempfile.TemporaryDirectory() as name, opened(path) as stream:
        with progress.bar("verify", size_of(stream)) as advance:
            verify(stream, path, progress=advance)
        bundle = begin(stream, path)
        statement, manifest = _read(path), bundle.manifest
        definition = _definition(bundle, path, statement, Path(name), given)
        families = [each.name.partition("/")[2] for each in manifest.overlays if each.name.startswith(VARIANTS)]
        try:
            built = build(definition, options._replace(no_cache=True, families=families), say)
            contents = sources.from_definition(definition, families, options.accept)
            contents = contents._replace(name=manifest.name, jobs=(), judge=None)
            again = Path(name) / "again.tar"
            packed = pack.pack(contents, [], again, str(manifest.codec["name"]), say=say)
            return _compared(path, manifest, statement, str(again), packed.manifest, built.builder)
        finally:
            _forget(definition)


def _read(path: str) -> _Statement:
    """Return what the provenance of a bundle says."""
    with opened(path) as stream:
        data = sboms.read(stream, begin(stream, path).manifest, provenance.MEMBER)
    if data is None:
        hint = "only bundles of a definition have it; an older deployer did not write it: pack it again"
        raise UsageError(f"{path} has no provenance", hint)
    try:
        document = json_records.parse(data, "the provenance", IntegrityError)
        made, details = document["predicate"]["buildDefinition"], document["predicate"]["runDetails"]
        digests = {each["name"]: each.get("digest", {}) for each in [*made["resolvedDependencies"], *document["subject"]]}
        builder = details["builder"]["version"].get("builder", "")
        return _Statement(
            dict(made["externalParameters"]), digests["definition"]["dirHash"], digests["layer"]["sha256"], builder
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise IntegrityError(f"{path}: the provenance is not one of deployer's: {error!r}") from error


def _definition(bundle: Verification, path: str, statement: _Statement, folder: Path, given: Path | None) -> Definition:
    """Write the definition into a folder, and load it."""
    theirs = load(given) if given else None
    if theirs:
        own = {name: (file.read_bytes(), file.stat().st_mode) for name, file in provenance.own_files(theirs).items()}
    else:
        own = {
            member.name.removeprefix(provenance.PREFIX): (_content(bundle, member.name), member.mode)
            for member in bundle.manifest.members
            if member.name.startswith(provenance.PREFIX)
        }
    for name, (data, mode) in own.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(mode & 0o777)
    if provenance.dir_hash({name: folder / name for name in own}) != statement.dir_hash:
        if theirs:
            raise UsageError(f"{given} is not the definition of {path}: its files have another digest")
        raise UsageError(f"{path} does not carry all files of its definition", f"deployer reproduce {path} DEFINITION")
    parameters = {**statement.parameters, "jobs": {_AGAIN: {"command": ["true"]}}}
    parameters["name"] = f"{bundle.manifest.name[:80].rstrip('._-')}-{_AGAIN}"
    machine = parameters.pop("architecture", None)
    base = parameters.get("base") or {}
    if any(name.startswith(provenance.CONTEXT) for name in own):
        parameters["context"] = provenance.CONTEXT
    if python := parameters.get("python"):
        parameters["python"] = {"requirements": provenance.PYTHON + Path(str(python["requirements"])).name}
    if "archive" in base:
        if not theirs:
            raise UsageError(f"{path} does not carry its base", f"deployer reproduce {path} DEFINITION")
        parameters["base"] = {**base, "archive": str((theirs.folder / str(base["archive"])).resolve())}
    file = folder / f"{_AGAIN}.yaml"
    file.write_text(json.dumps(parameters))
    definition = load(file).on(machine or None)
    if definition.base is None:
        raise IntegrityError(f"{path}: the provenance has no base")
    return definition.model_copy(update={"base": definition.base.made_again(_AGAIN)})


def _content(bundle: Verification, name: str) -> bytes:
    return b"".join(map(bundle.read, member_segments(bundle.manifest, name)))


def _compared(path: str, manifest: Manifest, statement: _Statement, again: str, new: Manifest, by: str) -> Reproduction:
    """Compare a bundle with the one that was made again."""
    layer = _read(again).layer
    settings = [name for name in _SETTINGS if getattr(manifest.image, name) != getattr(new.image, name)]
    difference = diffs.diff(path, again)
    kinds = (("added", difference.added), ("removed", difference.removed), ("changed", difference.changed))
    found = [(name, kind) for kind, names in kinds for name in names if name.startswith(("/", OVERLAYS_PREFIX))]
    contents = diffs.differing(path, again, {name for name, kind in found if kind == "changed"}, _MOST)
    unknown = f"{reasons.UNKNOWN}; packages differ" if difference.packages else reasons.UNKNOWN
    different = []
    for name, kind in sorted(found):
        why = reasons.reason(name, *contents[name]) if name in contents else reasons.UNKNOWN
        different.append(DifferentFile(name, kind, unknown if why == reasons.UNKNOWN else why))
    same = layer == statement.layer and not settings and not different
    builder = (statement.builder, by)
    return Reproduction(path, same, statement.layer, layer, settings, difference.packages, different, builder)


def _forget(definition: Definition) -> None:
    """Remove the image, its base and the records of the build, which nobody needs any longer."""
    base = definition.base
    if base is not None and base.debian:
        bases.tarball_of(base).unlink(missing_ok=True)
    if not definition.needs_engine:
        return
    with contextlib.closing(engine.connect()) as client:
        tags = [definition.tag, *([bases.tag_of(base)] if base is not None and base.debian else [])]
        for tag in tags:
            with contextlib.suppress(APIError):  # it was not made, or another image needs it
                client.api.remove_image(tag)
    for ending in (".json", ".log"):
        record_of(definition).with_suffix(ending).unlink(missing_ok=True)
