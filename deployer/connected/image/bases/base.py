"""Base images: from a registry, from an archive, or a small Debian that mmdebstrap makes from packages.

Where mmdebstrap cannot work, on macOS or without user namespaces, it runs in a helper container.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import docker

from deployer.connected.ground import caches, engine, this_machine
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image.bases import helper, imported, registry
from deployer.connected.image.definition.definition import Base
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import JobFailed, MissingTool, UsageError
from deployer.contract.base.shell import quoted
from deployer.contract.elf.machines import BY_KERNEL
from deployer.system import files, process

_logger = logging.getLogger("deployer.base")

#: Part of the key of every cached base. Increase it when ``command`` makes a different base.
RECIPE = 1

#: The time limit in seconds for mmdebstrap. Under emulation, 350 packages took more than an hour on busy cores.
_TIMEOUT = 4 * 3600

#: Files that no image needs. dpkg also excludes them from packages that the Dockerfile adds. Licences are kept.
_EXCLUDED = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
)

#: Files that the installation writes receive the date of the Debian archive, so that the same archive gives the same
#: tarball. Files of packages are older and keep their dates, because a .pyc contains the date of its source.
_SAME_DATES = (
    'date=$(cat "$1"/var/lib/apt/lists/*_InRelease | sed -n "s/^Date: //p" | while read -r d; do date -d "$d" +%s; done'
    ' | sort -n | tail -n 1); cd "$1" && find . -xdev'
    " \\( -path ./dev -o -path ./proc -o -path ./sys -o -path ./tmp \\) -prune"
    ' -o -newermt "@$date" -exec touch -h -d "@$date" {} +'
)
_TRIMMED = 'cd "$1" && rm -rf etc/hostname etc/resolv.conf var/cache/apt/* var/cache/debconf/*-old var/log/*'

#: The name of a sources.list that exists only while mmdebstrap runs.
_SOURCES = "deployer.list"
_END = "deployer-end-of-file"


def ensure(
    client: docker.DockerClient,
    base: Base,
    host: BuildSettings,
    say: Callable[[str], None],
    folder: Path,
    offline: bool = False,
) -> str:
    """Return the name of the base image in the engine. Make, load or pull it if the engine lacks it.

    Args:
        host: apt's proxies and mirror for a Debian base.
        folder: the definition's folder.
        offline: download nothing.

    Raises:
        UsageError: a download is needed despite ``offline``, or the image does not exist or is for another processor.
        DeployerError: an error of ``registry.ensure``, ``imported.ensure`` or ``debian``.
    """
    if base.image is not None:
        name = registry.ensure(client, base.image, say, offline, base.machine)
    elif base.archive is not None:
        name = imported.ensure(client, folder / base.archive, base.sha256, say)
    else:
        return debian(client, base, host, say, offline)
    architecture, engines = str(engine.image_config(client, name)["Architecture"]), engine.architecture(client)
    if base.machine and architecture != BY_KERNEL[base.machine].oci:
        hint = f"name a base for {base.machine}, or leave {base.machine} out of architectures and --architecture"
        raise UsageError(f"the base {base.image or base.archive} is for {architecture}, not for {base.machine}", hint)
    if architecture != engines:
        say(f"base: {name} is for {architecture}, and the engine's machine is {engines}: RUN needs emulation")
    return name


def debian(
    client: docker.DockerClient, base: Base, host: BuildSettings, say: Callable[[str], None], offline: bool = False
) -> str:
    """Return the tag of a Debian base. Make and import it if the engine lacks it.

    The tarball is cached, with a key of everything that it depends on.

    Args:
        host: the proxies and the mirror for the download. They leave no trace in the base, because every mirror has the
            same packages of a suite.
        offline: download nothing.

    Raises:
        MissingTool: there is neither mmdebstrap nor an engine for a helper container.
        JobFailed: mmdebstrap failed, for example because a package does not exist.
        SpaceError: there is not enough space for the tarball.
    """
    tag = tag_of(base)
    if engine.has_image(client, tag):
        return tag
    tarball = debian_tarball(base, host, say, offline)
    say(f"base: import {tarball.name} as {tag}")
    with Scratch(Path(tempfile.gettempdir())) as scratch, engine.errors_named(client, f"import {tarball}"):
        imported.load_flat(client, tarball, tag, BY_KERNEL[str(base.machine)].oci, scratch)
    return tag


def debian_tarball(base: Base, host: BuildSettings, say: Callable[[str], None], offline: bool = False) -> Path:
    """Return the tarball of a Debian base in the cache, made if necessary. Raises the same errors as ``debian``."""
    tarball = tarball_of(base)
    if not tarball.is_file():
        if offline:
            raise UsageError(f"offline, and the base {base.debian} is not in the cache", "build once without --offline")
        say(f"base: mmdebstrap {base.debian} with {', '.join(base.include) or 'nothing more'}")
        _make(base, host, tarball, say)
    os.utime(tarball)  # its last use, for `cache prune`
    return tarball


def tarball_of(base: Base) -> Path:
    """Return the path in the cache for the tarball of a Debian base."""
    return caches.BASES.folder / f"{base.debian}-{base_key(base)}.tar"


def tag_of(base: Base) -> str:
    """Return the name of a Debian base in the engine."""
    return f"{imported.REPOSITORY}:{base_key(base)}"


def base_key(base: Base) -> str:
    """Return the key of a base: a short digest of suite, packages, architecture, mmdebstrap's version and recipe."""
    if this_machine.without_mmdebstrap():
        maker = helper.name(BuildSettings(), BY_KERNEL[str(base.machine)].oci)
    else:
        maker = process.run(["mmdebstrap", "--version"], timeout=30).stdout.strip()
    return caches.key(
        RECIPE, base.debian, sorted(set(base.include)), base.machine, maker, *([True] if base.again else [])
    )


def _make(base: Base, host: BuildSettings, tarball: Path, say: Callable[[str], None]) -> None:
    with files.published(str(tarball)) as stream:
        lacking = this_machine.without_mmdebstrap()
        done = _helped(base, host, stream, say, lacking) if lacking else _run(base, host, stream)
        if done.returncode != 0:
            _logger.debug("%s", done.stderr)
            # the errors of apt, before mmdebstrap's report that apt failed
            reasons = [line.strip() for line in done.stderr.splitlines() if line.startswith("E: ")]
            hint = f"check the package names, and that the mirror is reachable: {quoted(done.argv)}"
            if base.machine != this_machine.machine():
                hint = f"{engine.EMULATION}; {hint}"
            raise JobFailed(
                f"mmdebstrap cannot make {base.debian}: {' / '.join(reasons[:3]) or done.last_words()}", hint
            )


def _run(base: Base, host: BuildSettings, stream: IO[bytes]) -> process.Completed:
    proxies = [f"{scheme}_proxy" for scheme in ("http", "https", "ftp", "no")]
    environment = process.base_environment(*proxies, *(name.upper() for name in proxies))
    argv = command(base, host.apt, host.sources)
    return process.run(argv, timeout=_TIMEOUT, env=environment, stdout=stream, check=False)


def _helped(
    base: Base, host: BuildSettings, stream: IO[bytes], say: Callable[[str], None], lacking: str
) -> process.Completed:
    """Run mmdebstrap in a helper container, for the reason ``lacking``."""
    try:
        client = engine.connect()
    except MissingTool as error:
        hint = f"{error.hint}; or make the base on Linux: apt-get install mmdebstrap"
        raise MissingTool(f"{lacking}, and a helper container needs an engine: {error.message}", hint) from error
    with contextlib.closing(client):
        say(f"base: in a helper container, because {lacking}")
        certificates = {"Acquire::https::CAInfo": f"{helper.FOLDER}/ca.crt"} if host.ca else {}
        argv = command(base, {**host.apt, **certificates}, host.sources)
        return helper.run(client, argv, host, say, stream, BY_KERNEL[str(base.machine)].oci)


def command(base: Base, apt: Mapping[str, str], sources: str = "") -> list[str]:
    """Return the argv that writes a base's tarball to its standard output.

    Args:
        apt: apt's options for proxies, with their values.
        sources: the lines of a sources.list; empty: mmdebstrap's default mirror. The base always keeps the default.
    """
    argv = ["mmdebstrap", "--variant=minbase", "--format=tar", '--aptopt=APT::Install-Recommends "false"']
    argv += [f"--dpkgopt={option}" for option in _EXCLUDED]
    # An --aptopt stays in the image, so the settings are in files that exist only while mmdebstrap runs.
    settings = "".join(f'{name} "{value}";\n' for name, value in sorted(apt.items()))
    if sources:  # relative paths, because apt runs outside the new root
        settings += f'Dir::Etc::SourceList "{_SOURCES}";\nDir::Etc::SourceParts "-";\n'
        argv += _temporary(f"etc/apt/{_SOURCES}", sources)
    if settings:
        argv += _temporary("etc/apt/apt.conf.d/99deployer", settings)
    argv += [f"--customize-hook={_TRIMMED}", f"--customize-hook={_SAME_DATES}"]
    if base.machine:
        argv.append(f"--architectures={BY_KERNEL[base.machine].oci}")
    if base.include:
        argv.append("--include=" + ",".join(sorted(set(base.include))))
    return [*argv, str(base.debian), "-"]


def _temporary(path: str, text: str) -> list[str]:
    """Return the mmdebstrap hooks that write a file into the new root and remove it at the end."""
    return [f"--setup-hook=cat >\"$1\"/{path} <<'{_END}'\n{text.rstrip()}\n{_END}", f'--customize-hook=rm "$1"/{path}']
