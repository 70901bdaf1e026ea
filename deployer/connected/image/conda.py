"""conda: an environment of conda or pixi in the image, at PREFIX, before the Dockerfile's own steps.

It was packed with conda-pack, whose script conda-unpack writes the new place into the files. Environment files, locks
and what pixi-pack wrote are first installed here, with the programs of this machine, and packed for PREFIX.
Sources: conda-pack's documents, "Usage"; README of pixi-pack; manual of micromamba, "create".
"""

import lzma
import os
import posixpath
import re
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from deployer.connected.ground import caches, engine
from deployer.connected.ground.locked_folder import BUILD, LockedFolder
from deployer.connected.image.builders.builder import ImageBuild
from deployer.contract.base.errors import MissingTool, UsageError
from deployer.contract.base.text import printable
from deployer.contract.elf import machines
from deployer.system import files, process

PREFIX = "/opt/conda"
#: conda's names of platforms, by OCI's name of the processor.
_PLATFORMS = {machines.X86_64.oci: "linux-64", machines.AARCH64.oci: "linux-aarch64"}
_FILES = re.compile(r"\.(ya?ml|txt|lock)$")
_SUBDIR = re.compile(rb'"subdir": ?"([\w-]+)"')
#: Bytes of a package's record that are read.
_MOST = 32 * 1024 * 1024
_SECONDS = 3600
_PACK = "pack it where it is installed: conda-pack --prefix ENVIRONMENT --output environment.tar.gz"
_MEMBER, _PIXI = "environment.tar", "pixi-pack.json"


def add(build: ImageBuild, base: str, path: Path, proxies: Mapping[str, str]) -> str:
    """Return the id of an image: ``base`` and the environment in a file.

    Args:
        build: how to build; its messages are about the environment.
        proxies: variables of the programs that download packages.

    Raises:
        UsageError: the file is not an environment, is for another processor, or has no solution.
        MissingTool: a program is missing that makes an environment of the file.
    """
    config = engine.image_config(build.client, base)
    platform = _PLATFORMS.get(config["Architecture"], config["Architecture"])
    archive, is_file = path, bool(_FILES.search(path.name))
    paths, platforms = (set[str](), set[str]()) if is_file else _read(path)
    made = is_file or _PIXI in paths
    if made:
        archive = _made(path, platform, is_file, proxies)
        paths, platforms = _read(archive)
    others = platforms - {platform, "noarch"}
    if others:
        raise UsageError(f"{path} is for {', '.join(sorted(others))}, and the base for {platform}", _PACK)
    lines = ["ARG BASE", "FROM ${BASE}", "USER 0", f"ADD {_MEMBER} {PREFIX}/"]
    lines.append(f"ENV PATH={PREFIX}/bin:$PATH CONDA_PREFIX={PREFIX}")
    if not made:
        if not {"bin/conda-unpack", "bin/python"} <= paths:
            raise UsageError(
                f"{path} lacks bin/conda-unpack, or the Python that runs it", f"{_PACK}, with Python in it"
            )
        lines.append(f'RUN ["{PREFIX}/bin/python", "{PREFIX}/bin/conda-unpack"]')
    if any(name.startswith("etc/conda/activate.d/") for name in paths):
        build.transcript.say(f"{path.name}: nothing runs its scripts in etc/conda/activate.d; set their variables")
    lines += [f"USER {config['User']}"] * bool(config["User"])
    return build.of_context({"Dockerfile": "\n".join(lines).encode()}, {_MEMBER: archive})


def _read(path: Path) -> tuple[set[str], set[str]]:
    """Return the paths of the files in a packed environment, and the platforms of its packages. Raises UsageError."""
    paths, platforms = set[str](), set[str]()
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = posixpath.normpath(member.name)
                if name == ".." or name.startswith(("/", "../")):
                    raise UsageError(f"{path}: {printable(name)} would be outside {PREFIX}", _PACK)
                paths.add(name)
                if re.fullmatch(r"conda-meta/[^/]+\.json", name) and (stream := archive.extractfile(member)):
                    platforms.update(each.decode() for each in _SUBDIR.findall(stream.read(_MOST)))
            while archive.fileobj.read(files.CHUNK):
                pass  # to the checksum at the end
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise UsageError(f"{path} is not a whole environment of conda-pack or pixi-pack: {error}", _PACK) from error
    if not platforms and _PIXI not in paths:
        raise UsageError(f"{path} is not an environment: it has no packages in conda-meta", _PACK)
    return paths, platforms


def _made(path: Path, platform: str, is_file: bool, proxies: Mapping[str, str]) -> Path:
    """Return an archive, packed for PREFIX, of the environment of a file. Raises UsageError, MissingTool."""
    entry = caches.CONDA.folder / caches.key(files.sha256_file(str(path)), platform)
    archive = entry / _MEMBER
    if not archive.is_file():
        pack = [_program("conda-pack"), "--quiet", f"--dest-prefix={PREFIX}"]
        with caches.CONDA.new_entry(entry.name) as new, LockedFolder(BUILD) as scratch:
            made = f"{scratch}/env"
            argv = [_program("pixi-unpack"), "--output-directory", scratch, str(path)] if not is_file else [
                _program("micromamba", "mamba"), "create", "--yes", "--quiet", f"--platform={platform}",
                f"--prefix={made}", f"--file={path}",
            ]  # fmt: skip
            for command in argv, [*pack, f"--prefix={made}", f"--output={new / _MEMBER}"]:
                variables = {**process.base_environment("MAMBA_ROOT_PREFIX"), **proxies}
                done = process.run(command, _SECONDS, variables, cwd=str(path.parent), check=False)
                if done.returncode:
                    what = f"{Path(command[0]).name} cannot make an environment of {path}"
                    raise UsageError(f"{what}: {printable(done.last_words(6))}", _PACK)
        caches.CONDA.trim()
    os.utime(entry)
    return archive


def _program(*names: str) -> str:
    """Return the path of the first program that exists. Raises MissingTool."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise MissingTool(f"there is no {' or '.join(names)} here, which makes an environment of this file", _PACK)
    return found
