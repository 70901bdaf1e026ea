"""The check that the commands of jobs exist, both in an image being packed and in a bundle being checked."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from deployer.connected.linker.index import Index
from deployer.connected.rootfs.entries import FileContent
from deployer.contract.base import tarformat
from deployer.contract.base.errors import Refused
from deployer.contract.base.tarformat import TarEntry
from deployer.contract.bundle import command
from deployer.contract.bundle.command import DEFAULT_PATH, CommandSearch, Look, PathInfo
from deployer.contract.bundle.job import Job
from deployer.contract.rules.findings import Finding, finding
from deployer.contract.rules.hostfiles import PROGRAMS
from deployer.contract.site.plan import APP, Plan

#: The code of these findings. ``pack --accept`` accepts it even without a site.
CODE = "command.missing"

_KINDS = {tarformat.FOLDER: command.FOLDER, tarformat.FILE: command.FILE, tarformat.SYMLINK: command.LINK}
_LINE = 256  # bytes of a script's first line that the kernel reads
_HOST_PROGRAMS = PROGRAMS.rpartition("/")[2] + "/"


class Tree(Protocol):
    """A root filesystem in normal form."""

    def find(self, path: bytes) -> TarEntry | None:
        """Return the entry at a path relative to the root, without following links; for a hard link, the file."""

    def content(self, entry: TarEntry) -> FileContent:
        """Return a file's content."""


class ListedTree(Tree, Protocol):
    """A root filesystem whose entries can be listed."""

    def entries(self) -> Iterable[TarEntry]:
        """Return all entries."""


def findings(jobs: Iterable[Job], place: CommandSearch) -> Iterator[Finding]:
    """Yield command.missing for jobs whose command or standard input is certainly absent."""
    for job in jobs:
        here = place._replace(workdir=command.workdir(job.workdir, place.workdir or ""))
        problem = command.missing_of(job, here)
        problem = problem or (command.missing_input(job.stdin, here) if job.stdin else None)
        if problem:
            yield finding(CODE, f"job {job.name}", reason=problem.reason, remedy=problem.remedy)


def refuse(jobs: Iterable[Job], place: CommandSearch) -> None:
    """Raise Refused if a job's command or standard input does not exist."""
    for item in findings(jobs, place):
        raise Refused(f"{item.subject}: {item.code}: {item.message}", item.remedy)


def place(
    look: Look, env: Sequence[str], workdir: str, plans: Sequence[Plan] = (), programs: Collection[str] = ()
) -> CommandSearch:
    """Return the places to search for commands in an image with the environment ``env``, under each of ``plans``.

    ``programs`` are the programs in the bundle's wheels.
    """
    path = command.variables(env).get("PATH", DEFAULT_PATH)
    path = ":".join([path, *(plan.environment["PATH"] for plan in plans if "PATH" in plan.environment)])
    outside = [bind.target for plan in plans for bind in plan.binds]
    names = (item.name for plan in plans for item in plan.host)
    host = {name[len(_HOST_PROGRAMS) :] for name in names if name.startswith(_HOST_PROGRAMS)}
    return CommandSearch(look, path, frozenset(programs) | host, workdir, outside)


def in_tree(tree: Tree, app: Path | None) -> Look:
    """Return the lookup for an image that is not packed yet, together with the app folder."""

    def look(path: str) -> PathInfo | None:
        if path == APP or path.startswith(APP + "/"):
            return _in_folder(app, path[len(APP) + 1 :]) if app else None
        entry = tree.find(os.fsencode(path.strip("/")))
        if entry is None:
            return None
        if entry.kind != tarformat.FILE:
            return PathInfo(_KINDS[entry.kind], os.fsdecode(entry.target))
        executable = bool(entry.mode & 0o111)
        data = tree.content(entry) if executable else None
        line = command.first_line(data.read(0, min(_LINE, data.size))) if data else None
        return PathInfo(command.FILE, executable=executable, line=line)

    return look


def _in_folder(folder: Path, inner: str) -> PathInfo | None:
    path = folder / inner
    if path.is_dir():
        return PathInfo(command.FOLDER)
    if not path.is_file():
        return None
    with open(path, "rb") as stream:
        line = command.first_line(stream.read(_LINE), own=True)
    return PathInfo(command.FILE, executable=bool(path.stat().st_mode & 0o111), line=line)


def in_bundle(image: Index, overlays: Mapping[str, Index]) -> Look:
    """Return the lookup for a bundle; ``overlays``, by folder, cover the image."""

    def look(path: str) -> PathInfo | None:
        files, inner = image, path
        for target, overlay in overlays.items():
            if path == target or path.startswith(target + "/"):
                files, inner = overlay, path[len(target) :] or "/"
        kind, entry = files.kind(inner), files.entries.get(inner)
        if kind == command.FILE and entry:
            return PathInfo(command.FILE, executable=entry.executable, line=entry.target or None)
        return PathInfo(kind, entry.target if entry else "") if kind else None

    return look
