"""The inputs of a build: a digest of everything in a definition that affects its image. It is a label of the image.

``pack`` computes the digest again, so an outdated image is never packed. The machine's build settings (proxies,
certificates, mirrors) are not included, because they leave no trace in the image.
"""

import contextlib
import fnmatch
import hashlib
import json
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from deployer.connected.ground import engine
from deployer.connected.image import context
from deployer.connected.image.bases import imported
from deployer.connected.image.definition import dockerfile as dockerfiles
from deployer.connected.image.definition.definition import Definition
from deployer.contract.base.errors import Refused
from deployer.system import files

#: The label's name. Its value is ``SCOPE:HEX``.
LABEL = "deployer.inputs"
#: Part of every digest. Increase it when ``build`` makes a different image from the same inputs.
RECIPE = 1

#: Characters in a source path that indicate a variable or another form that is not parsed here.
_SPECIAL = frozenset("$[\\<\"'")

#: The scopes of the digest: the files that the Dockerfile lists, or all files of the context.
_NAMED, _ALL = "sha256", "whole-sha256"


def label(client: docker.DockerClient, definition: Definition, base: str) -> str:
    """Return the label's value for a build on the image ``base``. If ``base`` has ONBUILD steps, include all files."""
    with engine.errors_named(client, f"inspect {base}"):
        triggers = (engine.inspect(client, base).get("Config") or {}).get("OnBuild")
    return _label(definition, _ALL if triggers else _NAMED)


def current(definition: Definition, candidates: Sequence[str]) -> str:
    """Return the id of the first image of ``candidates`` that was built from the current definition.

    Raises:
        Refused: no candidate was built from it.
        MissingTool: no engine was found.
    """
    images = 0
    with contextlib.closing(engine.connect()) as client:
        for reference in dict.fromkeys(candidates):
            with engine.errors_named(client, f"inspect {reference}"):
                try:
                    image = engine.inspect(client, reference)
                except ImageNotFound:
                    continue
            images += 1
            if is_current(definition, (image.get("Config") or {}).get("Labels") or {}):
                return str(image["Id"])
    reason = "its image was built from other inputs or by an older deployer" if images else "it is not built"
    raise Refused(f"cannot pack {definition.tag}: {reason}", f"build it: {definition.again}")


def is_current(definition: Definition, labels: Mapping[str, str]) -> bool:
    """Return whether an image with these labels was built from the current definition."""
    label = labels.get(LABEL, "")
    scope = label.partition(":")[0]
    return scope in (_NAMED, _ALL) and label == _label(definition, scope)


def named_files(dockerfile: str, folder: Path, paths: Iterable[str]) -> list[str]:
    """Return those of the context's ``paths`` that a Dockerfile can read, sorted. If unsure, return all paths.

    A superfluous path causes an unnecessary build at worst. A missing path would hide a change.
    """
    all_paths = sorted(paths)
    patterns: list[list[str]] = []
    for instruction in dockerfiles.parse(dockerfile).instructions():
        if instruction.name == "RUN" and any(flag.startswith("--mount") for flag in instruction.flags):
            return all_paths
        if instruction.name not in ("COPY", "ADD") or instruction.flag("from"):
            continue
        sources = (instruction.exec_form() or instruction.value.split())[:-1]
        if any(set(source) & _SPECIAL for source in sources):
            return all_paths
        patterns += [posixpath.normpath("/" + source).strip("/").split("/") for source in sources]
    chosen = [path for path in all_paths if any(_is_named(path.split("/"), pattern) for pattern in patterns)]
    depth = max(map(len, patterns), default=0)
    # The engine follows links in a source's path to any file of the context.
    linked = any((folder / top).is_symlink() for path in chosen for top in _above(path.split("/")[:depth]))
    return all_paths if linked else chosen


def _above(parts: Sequence[str]) -> Iterator[str]:
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _is_named(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path matches a pattern, is below such a path, or is a folder above one."""
    return pattern == [""] or all(fnmatch.fnmatchcase(part, name) for part, name in zip(parts, pattern, strict=False))


def _label(definition: Definition, scope: str) -> str:
    base = definition.base
    base_inputs: object = {**base.model_dump(), "machine": definition.suffix} if base else None
    if base and base.archive is not None:
        base_inputs = base.sha256 or imported.digest_of(definition.folder / base.archive)
    horovod = None  # otherwise the additional inputs of its variants, which the same build makes
    if definition.horovod:
        horovod = [definition.horovod.model_dump(), definition.framework, definition.families]
    environment = definition.conda_file and files.sha256_file(str(definition.conda_file))
    others = filter(None, [definition.build_args, environment])
    words = [RECIPE, base_inputs, _context(definition, scope), horovod, *others]
    return f"{scope}:{hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()}"


def _context(definition: Definition, scope: str) -> object:
    """Return the Dockerfile, and the name, kind, mode and content of each included file of the context."""
    path = definition.dockerfile_path
    if path is None:
        return None
    text = files.read_text(str(path))
    names = list(context.names(definition))
    if scope == _NAMED:
        names = named_files(text, definition.context_folder, names)
    with files.errors_named("read the build context"):
        return [text, [(name, *_entry(definition.context_folder / name)) for name in names]]


def _entry(path: Path) -> tuple[str, int, str]:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "link", 0, os.readlink(path)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return "file", mode, files.sha256_file(str(path))
    return "folder" if stat.S_ISDIR(status.st_mode) else "other", mode, ""
