"""init --from-image: a definition for an image that exists, in the Docker engine, in a registry or in a file."""

import functools
import json
import os
import posixpath
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import APIError, ImageNotFound

from deployer.connected.build import init
from deployer.connected.build.bases import imported, registry
from deployer.connected.bundle import sources
from deployer.connected.ground import engine, progress
from deployer.connected.ground.scratch import Scratch
from deployer.connected.linker import families
from deployer.connected.rootfs import archive, imageconfig
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.contract.errors import Refused
from deployer.system import files, terminal

#: The image of an engine, beside bundle.yaml.
SAVED = "image.tar"
_PYTHON = re.compile(r"i?python[0-9.]*")
#: Programs that wait for a person if they are the whole command of an image.
_INTERACTIVE = re.compile(rf"(ba|da|a|z|c|tc|k)?sh|{_PYTHON.pattern}|R|julia|node")
_VERSION = re.compile(r"(?!latest$)[A-Za-z0-9][\w.-]*")

_TEXT = """\
{editors}
# Made by `deployer init --from-image`. `deployer schema --table` explains every key.
name: {name}
version: {version}
description: {description}

base:
{base}

mpi: {mpi}

jobs: # the first is the default; options of `run` override these numbers
  main:
    command: {command}
{workdir}    nodes: {nodes}
    ranks_per_node: 1
    threads: 1
    time: "00:10:00"
"""


class _Existing(NamedTuple):
    """An image that exists.

    Attributes:
        label: NAME:TAG or NAME, from which the definition's name and version follow.
        base: the keys of ``base`` in the definition.
        read: reads the image.
        save: the image of the engine to save beside the definition; empty: none.
    """

    label: str
    base: dict[str, str]
    read: Callable[[Scratch], ArchiveImage]
    save: str = ""


def definition(reference: str, name: str | None, where: Path, dry_run: bool = False) -> init.Made:
    """Write a definition whose image is an existing one, with the image's MPI and a job that it can start.

    An image of the engine that no registry has is saved beside the definition. A file is used where it is.

    Args:
        reference: a file of docker save, an OCI archive or a flat tar; else an image of the engine, by name or id; else
            an image of a registry, which is pulled.
        name: the definition's name; None: it follows from the reference.
        where: as of ``init.place``.

    Raises:
        UsageError: there is no such image, or as ``init.place`` raises.
        DeployerError: as ``registry.pull`` raises.
    """
    found = _file(Path(reference)) if Path(reference).is_file() else _of_engine(reference)
    stem, _, tag = found.label.rpartition("/")[2].partition(":")
    name = name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")

    def write(folder: Path, final: Path, editors: str) -> None:
        base = dict(found.base)
        if found.save:
            base = {"archive": SAVED, "sha256": _save(found.save, folder / SAVED)}
        elif "archive" in base:
            base["archive"] = os.path.relpath(base["archive"], final)
        with Scratch(folder) as scratch:
            words = _job(found.read(scratch))
        text = _TEXT.format(
            editors=editors,
            name=name,
            version=json.dumps(tag if _VERSION.fullmatch(tag) else "0.1.0"),
            description=json.dumps(f"The image {reference}"),
            base="\n".join(f"  {key}: {json.dumps(value)}" for key, value in base.items()),
            **words,
        )
        (folder / "bundle.yaml").write_text(text, "utf-8")

    made = [Path("bundle.yaml"), *([Path(SAVED)] if found.save else [])]
    return init.place(str(name), where, made, write, dry_run)


def _file(path: Path) -> _Existing:
    base = {"archive": str(path.resolve()), "sha256": imported.digest_of(path)}
    return _Existing(path.name.partition(".")[0], base, functools.partial(archive.read, path))


def _of_engine(reference: str) -> _Existing:
    with closing(engine.connect()) as client, engine.errors_named(client, f"look for {reference}"):
        pulled = False
        try:
            image = engine.inspect(client, reference)
        except ImageNotFound:
            terminal.tell(f"deployer: the engine has no image {reference}: it is pulled")
            registry.pull(client, reference)
            image, pulled = engine.inspect(client, reference), True
        digest = next((each for each in image.get("RepoDigests") or [] if pulled or _in_registry(client, each)), "")
    names = [name.partition("@")[0] for name in (reference, *(image.get("RepoTags") or []))]
    label = next(
        (name for name in names if not str(image["Id"]).startswith((name, f"sha256:{name}"))), f"image-{names[0][-12:]}"
    )
    read = functools.partial(sources.read_image, str(image["Id"]))
    return _Existing(label, {"image": digest} if digest else {}, read, "" if digest else reference)


def _in_registry(client: docker.DockerClient, reference: str) -> bool:
    try:
        client.api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    except APIError:
        return False
    return True


def _save(reference: str, path: Path) -> str:
    """Write an image of the engine to a file. Return the SHA-256 of the file."""
    with closing(engine.connect()) as client, engine.errors_named(client, f"save {reference}"):
        size = int(engine.inspect(client, reference).get("Size") or 0)
        with files.errors_named(f"write {path}"), open(path, "wb") as stream, progress.bar("save", size) as advance:
            for chunk in client.api.get_image(reference, chunk_size=files.CHUNK):
                stream.write(chunk)
                advance(len(chunk))
    return imported.digest_of(path)


def _job(image: ArchiveImage) -> dict[str, object]:
    """Return the texts of ``mpi`` and of a first job, which is the image's own unless that waits for a person."""
    config = imageconfig.read(image.config)
    command, origin = [*config.entrypoint, *config.cmd], "the image's ENTRYPOINT and CMD"
    own = len(command) > 1 or (command and not _INTERACTIVE.fullmatch(posixpath.basename(command[0])))
    if not own:
        has_hostname = any(image.root.find(f"{folder}/hostname".encode()) for folder in ("bin", "usr/bin"))
        command, origin = ["hostname"] if has_hostname else ["uname", "-n"], "write your own command"
    text, used = _mpi(image, command if own else [])
    workdir = f"    workdir: {json.dumps(config.workdir)} # the image's WORKDIR\n" if own and config.workdir else ""
    words = {"command": f"{json.dumps(command)} # {origin}", "workdir": workdir}
    return {"mpi": text, "nodes": 2 if used else 1, **words}


def _mpi(image: ArchiveImage, command: list[str]) -> tuple[str, bool]:
    """Return the text of ``mpi``, and whether a command is known to use MPI."""
    found = list(families.files_of(image.root))
    users = families.users(found)
    try:
        whole = families.find(users, [], True)
    except Refused:  # it has programs for both
        whole = families.FoundFamilies(sorted({user.family for user in users}), users[0].path)
    if not whole.families:
        return "[] # no program of the image is linked to an MPI library", False
    words = set(re.findall(r"[\w.+-]+", " ".join(command)))
    words |= families.in_scripts(data for path, data in found if posixpath.basename(path) in words)
    by_name = [user for user in users if user.is_program and posixpath.basename(user.path) in words]
    python = [user for user in users if not user.is_program and any(map(_PYTHON.fullmatch, words))]
    try:
        used = families.find(by_name or python, [], True)
    except Refused:
        used = families.FoundFamilies([])
    if used.families:
        return f"[{', '.join(used.families)}] # of {used.path}; [] if the ranks do without MPI", True
    return f"[] # for jobs with MPI: [{', '.join(whole.families)}], as {whole.path} needs", False
