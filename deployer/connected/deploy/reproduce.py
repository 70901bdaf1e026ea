"""reproduce: build a bundle's image again from what the bundle itself says, and compare.

Nothing is taken from caches of layers or of bases. Wheels are downloaded as the lock says, and the network settings are
this machine's. The build has a name and a base of its own, which are removed afterwards.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docker.errors import APIError

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.about import diff as diffs
from deployer.connected.bundle.about import provenance, reasons
from deployer.connected.bundle.about.listing import files_of
from deployer.connected.ground import engine
from deployer.connected.image.bases import base as bases
from deployer.connected.image.build import BuildOptions, build
from deployer.connected.image.definition.definition import Definition, load
from deployer.connected.image.last_build import record_of
from deployer.connected.rootfs.entries import shown
from deployer.contract.base import json_records, records
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle.manifest import OVERLAYS_PREFIX, VARIANTS
from deployer.system.trust.verify import Verification, begin, opened, verify

#: The name of what is built ends with this.
_AGAIN = "reproduced"
_FILE = f"{_AGAIN}.yaml"
#: Bytes. Larger files are not read to find out why they differ.
_MOST = 16 * 1024 * 1024
_SETTINGS = ("architecture", "env", "workdir", "entrypoint", "cmd")


def reproduce(path: str, given: Path | None, options: BuildOptions, say: Callable[[str], None]) -> json_records.Record:
    """Build a bundle's image again, and compare.

    Args:
        path: the bundle. Its Dockerfile is run, with this machine's network settings.
        given: its definition, for files that the bundle does not carry.
        options: the settings for the build.

    Returns:
        ``reproduced``: layer, settings and wheels are the same; the digests of both layers; the settings, packages and
        files that differ, each file with the reason; and both builders.

    Raises:
        UsageError: the bundle has no provenance, or it lacks files of its definition.
        DeployerError: an error of ``verify``, ``build`` or ``pack``.
    """
    with tempfile.TemporaryDirectory() as name, opened(path) as stream:
        verify(stream, path)
        bundle, again = begin(stream, path), f"{name}/again.tar"
        parameters, digests, builder = provenance.read(bundle, path)
        machine = parameters.pop("architecture", None) or None
        own = provenance.own_files(load(given)) if given else _definition(bundle, parameters, Path(name))
        if provenance.dir_hash(own) != digests["definition"] or (not given and "archive" in parameters.get("base", {})):
            text = f"{given} is not the definition of {path}" if given else f"{path} lacks files of its definition"
            raise UsageError(text, "" if given else f"deployer reproduce {path} DEFINITION")
        definition = load(given or Path(name) / _FILE)
        again_name = {"name": f"{definition.name}-{_AGAIN}"}
        definition = definition.model_copy(update=again_name).on(machine, again=True)
        overlays = [each.name for each in bundle.manifest.overlays if each.name.startswith(VARIANTS)]
        families = [each.partition("/")[2] for each in overlays]
        try:
            built = build(definition, options._replace(no_cache=True, families=families), say)
            contents = sources.from_definition(definition, families, options.accept)._replace(jobs=())
            packed = pack.pack(contents, [], Path(again), str(bundle.manifest.codec["name"]), say=say)
            with opened(again) as made:
                new = begin(made, again)
                layer = provenance.read(new, again)[1]["layer"]
                difference = diffs.diff(path, again)
                files = _files(bundle, new, difference)
        finally:
            _forget(definition)
    images = bundle.manifest.image, packed.manifest.image
    settings = [each for each in _SETTINGS if getattr(images[0], each) != getattr(images[1], each)]
    return {
        "bundle": path, "reproduced": layer == digests["layer"] and not settings and not files,
        "layer": digests["layer"], "layer_again": layer, "settings": settings, "files": files,
        "packages": records.plain(difference.packages), "builder": [builder, built.builder],
    }  # fmt: skip


def _definition(bundle: Verification, parameters: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Write the definition with some keys, and the files that the bundle carries, into a folder. Return its files."""
    own = {}
    for member in [each for each in bundle.manifest.members if each.name.startswith(provenance.PREFIX)]:
        name = member.name.removeprefix(provenance.PREFIX)
        own[name] = file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(map(bundle.read, bundle.member_segments(member.name))))
        file.chmod(member.mode)
    written = {**parameters, "name": bundle.manifest.name, "jobs": {_AGAIN: {"command": ["true"]}}}
    if (folder / provenance.CONTEXT).is_dir():
        written["context"] = provenance.CONTEXT
    if environment := parameters.get("conda"):
        written["conda"] = provenance.CONDA + Path(str(environment)).name
    if python := parameters.get("python"):
        written["python"] = {"requirements": provenance.PYTHON + Path(str(python["requirements"])).name}
    (folder / _FILE).write_text(json.dumps(written))
    return own


def _files(old: Verification, new: Verification, difference: diffs.Difference) -> list[json_records.Record]:
    """Return the files of the image, and the overlays, that differ."""
    kinds = {"added": difference.added, "removed": difference.removed, "changed": difference.changed}
    found = {name: kind for kind in kinds for name in kinds[kind] if name.startswith(("/", OVERLAYS_PREFIX))}
    a, b = (_contents(bundle, {name for name in difference.changed if name in found}) for bundle in (old, new))
    unknown = f"{reasons.UNKNOWN}; packages differ" if difference.packages else reasons.UNKNOWN
    why = {name: reasons.reason(name, a[name], b[name]).replace(reasons.UNKNOWN, unknown) for name in a.keys() & b}
    return [{"path": name, "change": found[name], "reason": why.get(name, unknown)} for name in sorted(found)]


def _contents(bundle: Verification, wanted: set[str]) -> dict[str, bytes]:
    """Return the contents of files of the image, without large ones."""
    listed = files_of(bundle, lambda entry: _MOST if "/" + shown(entry.path) in wanted else 0) if wanted else ()
    entries = {"/" + shown(each.entry.path): each for each in listed}
    return {name: entries[name].head for name in wanted & entries.keys() if entries[name].entry.size <= _MOST}


def _forget(definition: Definition) -> None:
    """Remove the image, its base and the record of the build, which nobody needs any longer."""
    record_of(definition).unlink(missing_ok=True)
    tags = [definition.tag]
    if definition.base is not None and definition.base.debian:
        bases.tarball_of(definition.base).unlink(missing_ok=True)
        tags.append(bases.tag_of(definition.base))
    if definition.needs_engine:
        with contextlib.closing(engine.connect()) as client:
            for tag in tags:
                with contextlib.suppress(APIError):  # it was not made, or another image needs it
                    client.api.remove_image(tag)
