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

import deployer
from deployer.connected.bundle.contents import PROVENANCE_MEMBER, Origin
from deployer.connected.image import context, inputs
from deployer.connected.image.bases import imported
from deployer.connected.image.definition.definition import FILE, Definition
from deployer.connected.image.last_build import last_record
from deployer.connected.image.wheelhouse import lock as locks
from deployer.connected.image.wheelhouse import wheelhouse
from deployer.connected.rootfs import datafolder
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.manifest import OURS, VARIANTS, WHEELS
from deployer.system import files, process

MEMBER = PROVENANCE_MEMBER
#: The definition's own files: bundle.yaml and locks, and in folders the build ``context`` and ``python`` requirements.
PREFIX = "deployer/definition/"
CONTEXT, PYTHON = "context/", "python/"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:deployer-hpc:build"

#: Keys of a definition that decide what its image and its wheels contain.
_PARAMETERS = {"version", "base", "dockerfile", "build_args", "python", "framework", "horovod", "mpi"}
#: A bundle carries the definition's files if they have at most this many bytes together.
_MOST = 1024 * 1024
_GIT_SECONDS = 30
#: git reads objects only: it contacts nobody, not even for a partial clone.
_GIT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


def own_files(definition: Definition) -> dict[str, Path]:
    """Return the files that decide what a definition's image and wheels contain, by their names below PREFIX."""
    found = {FILE: definition.file}
    path = definition.dockerfile_path
    if path is not None:
        folder = definition.context_folder
        names = inputs.named_files(files.read_text(str(path)), folder, context.names(definition))
        ours = {name: folder / name for name in [*names, definition.dockerfile]}
        found.update({f"{CONTEXT}{name}": file for name, file in ours.items() if file.is_file()})
    requirements = wheelhouse.requirements(definition)
    if requirements is not None:
        for file in locks.requirement_files(requirements):
            found[f"{PYTHON}{os.path.relpath(file, requirements.resolve().parent)}"] = file
        found[locks.place(definition).name] = locks.place(definition)
    return found


def carried(own: Mapping[str, Path]) -> dict[str, Path]:
    """Return those files that a bundle carries: none that is hidden, a wheel or a link, and nothing large."""
    small = {
        name: path
        for name, path in own.items()
        if "/." not in name and not name.endswith(".whl") and not path.is_symlink()
    }
    if sum(path.stat().st_size for path in small.values()) > _MOST:
        return {FILE: own[FILE]}
    return small


def dir_hash(own: Mapping[str, Path]) -> str:
    """Return in-toto's ``dirHash`` of files: what `sha256sum` prints for all of them, sorted, and hashed again."""
    lines = (f"{files.sha256_file(str(path))}  {name}\n" for name, path in sorted(own.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def of_definition(definition: Definition, image: str, file: Path | None = None) -> Origin:
    """Return the origin of a definition's image.

    Args:
        image: the id of the image that is packed.
        file: the file that is packed instead, if the image is only the base.
    """
    own = own_files(definition)
    found: list[json_records.Record] = [{"name": "definition", "digest": {"dirHash": dir_hash(own)}}]
    commit, seconds, clean = _commit(definition, own)
    if commit:
        found.append({"name": "source", "digest": {"gitCommit": commit}, "annotations": {"clean": clean}})
    last = last_record(definition)
    last = last if last.get("image") == image else {}  # otherwise that build made another image
    base = definition.base
    if base is not None:
        digest = base.sha256 or str(base.image).partition("@sha256:")[2] or str(last.get("base_digest") or "")
        digest = imported.digest_of(file) if file else digest.removeprefix("sha256:")
        name = base.image or base.archive or f"debian {base.debian}"
        found.append({"name": f"base: {name}", **({"digest": {"sha256": digest}} if digest else {})})
    parameters = definition.model_dump(include=_PARAMETERS, exclude_defaults=True)
    parameters["architecture"] = definition.machine or ""
    date = dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat() if commit and clean else ""
    lacking = sorted(own.keys() - carried(own).keys())
    return Origin(parameters, found, date, str(last.get("builder") or ""), lacking)


def statement(origin: Origin, wheels: Mapping[str, Path], subjects: Mapping[str, str]) -> bytes:
    """Return the in-toto statement.

    Args:
        wheels: by their paths in the bundle. Those of the wheelhouse were downloaded, variants of Horovod were built.
        subjects: SHA-256 digests of what was built, by name.
    """
    digests = {name: files.sha256_file(str(path)) for name, path in sorted(wheels.items()) if name.endswith(".whl")}
    fetched = [name for name in digests if name.startswith(f"{OURS[0]}{WHEELS}/")]
    built = {name: digest.removeprefix("sha256:") for name, digest in subjects.items()}
    built.update({name: digests[name] for name in digests if name.startswith(f"{OURS[0]}{VARIANTS}/")})
    pinned = [{"name": name.rpartition("/")[2], "digest": {"sha256": digests[name]}} for name in fetched]
    internal = {"sourceDate": origin.source_date, "deployer_notCarried": origin.lacking}
    version = {"deployer": deployer.__version__, "builder": origin.builder}
    return json_records.pretty(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in built.items()],
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": origin.parameters,
                    "internalParameters": {key: value for key, value in internal.items() if value},
                    "resolvedDependencies": [*origin.dependencies, *pinned],
                },
                "runDetails": {
                    "builder": {
                        "id": "urn:deployer-hpc:the-packers-machine",
                        "version": {key: value for key, value in version.items() if value},
                        "deployer_slsaBuildLevel": 1,
                    }
                },
            },
        }
    ).encode()


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
        data, algorithm = path.read_bytes(), hashlib.sha1 if len(commit) == 40 else hashlib.sha256
        digest = algorithm(b"blob %d\0" % len(data) + data).hexdigest()
        clean &= blobs.get(path.resolve().relative_to(top).as_posix()) == digest
    return commit, int(seconds), clean


def _git(folder: Path, *words: str) -> str:
    argv = ["git", "--no-pager", "-C", str(folder), *words]
    return process.run(argv, _GIT_SECONDS, {**process.base_environment(), **_GIT}).stdout
