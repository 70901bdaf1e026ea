"""init --from-image: a definition for an existing image in the Docker engine, a registry or a file."""

import functools
import glob
import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import APIError, ImageNotFound

from deployer.connected.bundle import sources
from deployer.connected.ground import engine, progress
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image.bases import imported, registry
from deployer.connected.image.definition import recipe
from deployer.connected.image.init import Made, init
from deployer.connected.linker import families
from deployer.connected.rootfs import archive, imageconfig
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.contract.base.errors import Refused
from deployer.contract.base.text import printable
from deployer.system import files, terminal

#: An image from the engine, saved beside bundle.yaml.
SAVED = "image.tar"
_PYTHON = re.compile(r"i?python[0-9.]*")
#: Programs that wait for user input if they are an image's whole command.
_INTERACTIVE = re.compile(rf"(ba|da|a|z|c|tc|k)?sh|{_PYTHON.pattern}|R|julia|node")
_VERSION = re.compile(r"(?!latest$)[A-Za-z0-9][\w.-]*")


class _Existing(NamedTuple):
    """An existing image.

    Attributes:
        label: NAME:TAG or NAME, from which the definition gets its name and version.
        base: the keys of ``base`` in the definition; empty: the image is saved.
        read: reads the image.
    """

    label: str
    base: dict[str, str]
    read: Callable[[Scratch], ArchiveImage]


def definition(reference: str, name: str | None, where: Path, dry_run: bool = False) -> Made:
    """Write a definition for an existing image, with the image's MPI and a job that it can start.

    If no registry has an image of the engine, it is saved beside the definition. A file is used in place.

    Args:
        reference: a file that ``archive`` reads, or a definition file of Apptainer, which is translated; otherwise the
            name or id of an image in the engine; otherwise a registry image, which is pulled.
        name: the definition's name; None: derived from the reference.
        where: as for ``init``.

    Raises:
        UsageError: the image does not exist, or ``init`` fails.
        DeployerError: ``registry.pull`` fails.
    """
    path = Path(reference)
    made = recipe.translate(path) if path.is_file() and recipe.hint(path) else None
    source = made.base if made else path if path.is_file() else reference
    if isinstance(source, Path):
        found = _Existing(source.stem, {}, functools.partial(archive.read_image, source))
    else:
        found = _of_engine(source)
    stem, _, tag = (path.stem if made else found.label).rpartition("/")[2].partition(":")

    def words(folder: Path, final: Path) -> dict[str, str]:
        base = found.base
        if isinstance(source, Path):
            base = {"archive": os.path.relpath(source, final), "sha256": imported.digest_of(source)}
        elif not base:
            base = {"archive": SAVED, "sha256": _save(source, folder / SAVED)}
        version = tag if _VERSION.fullmatch(tag) else "0.1.0"
        texts = {"VERSION": version, "DESCRIPTION": f"The image {reference}", "BASE": base}
        with Scratch(folder) as scratch:
            job = _job(found.read(scratch))
        if made:
            job = _translated(made, path.parent, folder, job)
        return {**{word: json.dumps(text) for word, text in texts.items()}, **job}

    name = name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    saved = [] if found.base or isinstance(source, Path) else [SAVED]
    return init(name, "image", where, dry_run, words, [*saved, *(made.files if made else ())])


def _translated(made: recipe.TranslatedRecipe, home: Path, folder: Path, job: dict[str, str]) -> dict[str, str]:
    """Write the files of a translated definition file in ``home``, and report what is lost. Return its job's words."""
    for name in {name for pattern in made.copied for name in glob.glob(pattern, root_dir=home) or [pattern]}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with files.errors_named(f"copy {home / name}"):
            (shutil.copytree if (home / name).is_dir() else shutil.copy2)(home / name, folder / name)
    for name, text in made.files.items():
        (folder / name).write_text(text, "utf-8")
    for line in made.lost:
        terminal.tell(f"deployer: not translated: {printable(line)}")
    command = {"COMMAND": f"{json.dumps(made.command)} # its %runscript"} if made.command else {}
    return {**job, "MPI": "null # found in the image when it is packed", **command}


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
    tags = image.get("RepoTags") or [reference.removeprefix("sha256:")]
    label = reference if reference in tags else str(tags[0])
    read = functools.partial(sources.read_image, str(image["Id"]))
    return _Existing(label.partition("@")[0], {"image": digest} if digest else {}, read)


def _in_registry(client: docker.DockerClient, reference: str) -> bool:
    try:
        client.api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    except APIError:
        return False
    return True


def _save(reference: str, path: Path) -> str:
    """Write an image from the engine to a file. Return the file's SHA-256."""
    with closing(engine.connect()) as client, engine.errors_named(client, f"save {reference}"):
        size = int(engine.inspect(client, reference).get("Size") or 0)
        with files.errors_named(f"write {path}"), open(path, "wb") as stream, progress.bar("save", size) as advance:
            for chunk in client.api.get_image(reference, chunk_size=files.CHUNK):
                stream.write(chunk)
                advance(len(chunk))
    return imported.digest_of(path)


def _job(image: ArchiveImage) -> dict[str, str]:
    """Return the text of ``mpi`` and of a first job: the image's own command unless it waits for input."""
    config = imageconfig.checked(image.config)
    command, origin = [*config.entrypoint, *config.cmd], "the image's ENTRYPOINT and CMD"
    if not command or (len(command) == 1 and _INTERACTIVE.fullmatch(posixpath.basename(command[0]))):
        has_hostname = any(image.root.find(f"{folder}/hostname".encode()) for folder in ("bin", "usr/bin"))
        command, origin = ["hostname"] if has_hostname else ["uname", "-n"], "write your own command"
    mpi, nodes = _mpi(image, command)
    words = {"COMMAND": f"{json.dumps(command)} # {origin}", "WORKDIR": json.dumps(config.workdir or None)}
    return {"MPI": mpi, "NODES": str(nodes), **words}


def _mpi(image: ArchiveImage, command: list[str]) -> tuple[str, int]:
    """Return the text of ``mpi``, and the number of nodes: one unless the command is known to use MPI."""
    contents = list(families.files_of(image.root))
    users = families.users(contents)
    words = set(re.findall(r"[\w.+-]+", " ".join(command)))
    words |= families.in_scripts(data for path, data in contents if posixpath.basename(path) in words)
    by_name = [user for user in users if user.is_program and posixpath.basename(user.path) in words]
    python = [user for user in users if not user.is_program and any(map(_PYTHON.fullmatch, words))]
    try:
        used = families.find(by_name or python, [], True)
    except Refused:  # the image has programs for both families
        used = families.FoundFamilies([])
    if used.families:
        return f"[{', '.join(used.families)}] # of {used.path}; [] if the ranks do without MPI", 2
    for user in users:
        return f"[] # for jobs with MPI: [{user.family}], as {user.path} needs", 1
    return "[] # no program of the image is linked to an MPI library", 1
