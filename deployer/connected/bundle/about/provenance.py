"""The provenance of a bundle: an in-toto statement with SLSA's provenance, and the definition's own files.

It has no time of the build, so the same inputs give the same bundle; it has the date of the definition's commit. Its
SLSA build level is 1: the person who packs vouches for it, not a build service (https://slsa.dev/spec/v1.1/levels).
Source: https://in-toto.io/Statement/v1 and https://slsa.dev/provenance/v1.
"""

import datetime as dt
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deployer
from deployer.connected.image import context, inputs
from deployer.connected.image.bases import imported
from deployer.connected.image.definition.definition import FILE, Definition
from deployer.connected.image.last_build import last_record
from deployer.connected.image.wheelhouse import lock as locks
from deployer.connected.image.wheelhouse import wheelhouse
from deployer.connected.rootfs import datafolder
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, UsageError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import OURS, PROVENANCE_MEMBER, WHEELS
from deployer.system import files, process
from deployer.system.trust.verify import Verification

#: The definition's own files: bundle.yaml and locks; in folders: build ``context``, ``python`` requirements, ``conda``.
PREFIX = "deployer/definition/"
CONTEXT, PYTHON, CONDA = "context/", "python/", "conda/"
PREDICATE = "https://slsa.dev/provenance/v1"

#: Keys of a definition that decide what its image and its wheels contain.
_PARAMETERS = {"version", "base", "dockerfile", "build_args", "conda", "python", "framework", "horovod", "mpi", "lean"}
#: A bundle carries the definition's files if they have at most this many bytes together.
_MOST = 1024 * 1024
_GIT_SECONDS = 30
#: git reads objects only: it contacts nobody, not even for a partial clone.
_GIT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


def own_files(definition: Definition) -> dict[str, Path]:
    """Return the files that decide what a definition's image and wheels contain, by their names below PREFIX."""
    found, path, folder = {FILE: definition.file}, definition.dockerfile_path, definition.context_folder
    if path is not None:
        names = inputs.named_files(files.read_text(str(path)), folder, context.names(definition))
        names = [name for name in {*names, definition.dockerfile} if (folder / name).is_file()]
        found.update({f"{CONTEXT}{name}": folder / name for name in names})
    if definition.conda_file:
        found[f"{CONDA}{definition.conda_file.name}"] = definition.conda_file
    requirements = wheelhouse.requirements(definition)
    if requirements is not None:
        top, lock = requirements.resolve().parent, locks.place(definition)
        asked = {f"{PYTHON}{os.path.relpath(file, top)}": file for file in locks.requirement_files(requirements)}
        found.update({**asked, lock.name: lock})
    return found


def carried(own: Mapping[str, Path]) -> dict[str, Path]:
    """Return those files that a bundle carries: none that is hidden, a wheel or a link, and nothing large."""
    plain = [name for name in own if "/." not in name and not name.endswith(".whl") and not own[name].is_symlink()]
    large = sum(own[name].stat().st_size for name in plain) > _MOST
    return {name: own[name] for name in ([FILE] if large else plain)}


def dir_hash(own: Mapping[str, Path]) -> str:
    """Return in-toto's ``dirHash`` of files: what `sha256sum` prints for all of them, sorted, and hashed again."""
    lines = (f"{files.sha256_file(str(path))}  {name}\n" for name, path in sorted(own.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def of_definition(
    definition: Definition, image: str, file: Path | None, wheels: Mapping[str, Path]
) -> json_records.Record:
    """Return SLSA's predicate about the build of a definition.

    Args:
        image: the id of the image that is packed.
        file: the file that is packed instead, if the image is only the base.
        wheels: those beside the image, by their paths in the bundle.
    """
    last = last_record(definition)
    last = last if last.get("image") == image else {}  # otherwise that build made another image
    base = _base_digest(definition, file) or str(last.get("base_digest") or "")
    digests = {"base": base.rpartition(":")[2]} if base else {}
    for name, path in sorted(wheels.items()):
        # In the cache, the folder of a downloaded wheel is named after its digest.
        known = path.parent.name if name.startswith(f"{OURS[0]}{WHEELS}/") else files.sha256_file(str(path))
        digests[name.removeprefix(OURS[0])] = known
    own = own_files(definition)
    found: list[json_records.Record] = [{"name": "definition", "digest": {"dirHash": dir_hash(own)}}]
    found += [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]
    commit, seconds, clean = _commit(definition, own)
    date = dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()
    if commit:
        found.append({"name": "source", "digest": {"gitCommit": commit}, "annotations": {"clean": clean}})
    parameters = definition.model_dump(include=_PARAMETERS, exclude_defaults=True)
    versions = {"deployer": deployer.__version__, **({"builder": last["builder"]} if last.get("builder") else {})}
    return {
        "buildDefinition": {
            "buildType": "urn:deployer-hpc:build", "resolvedDependencies": found,
            "externalParameters": {**parameters, "architecture": definition.machine or ""},
            "internalParameters": {"sourceDate": date} if clean else {},
        },
        "runDetails": {
            "builder": {"id": "urn:deployer-hpc:the-packers-machine", "version": versions, "deployer_slsaBuildLevel": 1}
        },
    }  # fmt: skip


def _base_digest(definition: Definition, file: Path | None) -> str:
    """Return the digest of a base, or nothing for one of Debian in the engine, which the record of the build has."""
    base = definition.base
    if base is None or base.image or base.sha256:
        return str(base and (base.sha256 or base.image))
    file = definition.folder / base.archive if base.archive else file
    return imported.digest_of(file) if file else ""


def statement(predicate: json_records.Record, **digests: str) -> bytes:
    """Return the in-toto statement about what has these digests: the ``image`` and its uncompressed ``layer``."""
    subject = [{"name": name, "digest": {"sha256": text.rpartition(":")[2]}} for name, text in digests.items()]
    head = {"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": PREDICATE}
    return json_records.pretty({**head, "predicate": predicate}).encode()


def read(bundle: Verification, path: str) -> tuple[dict[str, Any], dict[str, str], str]:
    """Return what the provenance of an open bundle says: the definition's keys, digests by name, and the builder.

    Raises:
        UsageError: it has none.
        IntegrityError: it is damaged, or is not one of deployer's.
    """
    data = sealed_file.small(bundle.manifest, PROVENANCE_MEMBER, bundle.read)
    if data is None:
        raise UsageError(f"{path} has no provenance", "it is not of a definition, or an older deployer packed it")
    try:
        document = json_records.parse(data, "the provenance", IntegrityError)
        made, run = (document["predicate"][name] for name in ("buildDefinition", "runDetails"))
        named = [*made["resolvedDependencies"], *document["subject"]]
        digests = {str(each["name"]): str(next(iter(each["digest"].values()))) for each in named}
        return dict(made["externalParameters"]), digests, str(run["builder"]["version"].get("builder", ""))
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise IntegrityError(f"{path}: the provenance is not one of deployer's: {error!r}") from error


def _commit(definition: Definition, own: Mapping[str, Path]) -> tuple[str, int, bool]:
    """Return the last commit that changed a definition, its date, and whether the files are as in it.

    The repository's settings cannot run a program: git reads objects only, and the files are hashed here.
    """
    folders = [definition.folder, definition.context_folder, *filter(None, [definition.app_folder])]
    app = datafolder.app_files(definition.app_folder) if definition.app_folder else []
    try:
        top = Path(_git(definition.folder, "rev-parse", "--show-toplevel").rstrip("\n"))
        paths = [path.resolve().relative_to(top).as_posix() for path in folders]
        seconds, commit = _git(top, "rev-list", "-1", "--timestamp", "HEAD", "--", *paths).split()
        lines = _git(top, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths).split("\0")
    except (DeployerError, ValueError):
        return "", 0, False  # no git, no repository, or no commit
    blobs = {name: about.split()[2] for about, _, name in (line.partition("\t") for line in lines if line)}
    clean = all((top / name).exists() for name in blobs)
    for path in [*own.values(), *(Path(os.fsdecode(file.path)) for file in app)]:
        blob = hashlib.new("sha1" if len(commit) == 40 else "sha256", b"blob %d\0" % path.stat().st_size)
        with files.errors_named(f"read {path}"), open(path, "rb") as stream:
            for piece in iter(lambda: stream.read(files.CHUNK), b""):
                blob.update(piece)
        clean &= blobs.get(os.path.relpath(path.resolve(), top)) == blob.hexdigest()
    return commit, int(seconds), clean


def _git(folder: Path, *words: str) -> str:
    argv = ["git", "--no-pager", "-C", str(folder), *words]
    return process.run(argv, _GIT_SECONDS, {**process.base_environment(), **_GIT}).stdout
