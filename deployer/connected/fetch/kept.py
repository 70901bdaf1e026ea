"""Keep what a program downloaded: the files of its HOME, and of its own folder if a download is among them.

The program made these folders, and may have had bad intentions: links are followed only to files of the same folder,
and everything that is neither a file, a folder nor a link is left.
"""

import contextlib
import io
import itertools
import os
import re
import shutil
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from deployer.connected.bundle.about.running_code import HEAD, runs_code
from deployer.contract.base.errors import Refused
from deployer.contract.site import links
from deployer.contract.site.plan import HOME, JOB
from deployer.system import files

#: Files of the program's tools, not downloads.
_TOOLS = re.compile(
    r"(\.cache/(matplotlib|fontconfig|torch_extensions|mesa_shader_cache)|\.config/matplotlib|\.triton|\.nv|"
    r"torchinductor_[^/]*|tmp[a-z0-9_]{8}|pymp-[a-z0-9_]{8})(/|$)|(^|/)__pycache__/|\.pyc$"
)
#: The folder of the hub's files; names of its links beside it are those that programs use.
_BLOBS = re.compile(r"/blobs/[^/]+$")
#: The bytes at the beginning of an archive, and the members of a tar file, that are read.
_BEGINNING, _MEMBERS = 4 * 1024 * 1024, 100
#: The most files, and the most characters of a path.
_MOST, _LONGEST = 1_000_000, 800


#: A number of files, and their bytes.
_Count = tuple[int, int]
#: The size of a file, and its CRC-32.
_Content = tuple[int, int]


class KeptFiles(NamedTuple):
    """The kept files.

    Attributes:
        home: names in HOME, with the number of files and bytes.
        job: the same in the job's folder.
        left: names in the job's folder in which no file was a download, other than copies from HOME.
        outside: links that lead to no file of the folder, and names that no link of a job can have.
        running: kept files that run code when they are loaded.
        digests: digests of kept files that have the size of a download.
    """

    home: dict[str, _Count]
    job: dict[str, _Count]
    left: list[str]
    outside: list[str]
    running: list[str]
    digests: set[str]


def keep(home: Path, job: Path, target: Path, downloads: Mapping[str, int], wanted: Collection[str] = ()) -> KeptFiles:
    """Give the files to keep a second name below the new folder ``target``, in ``home`` and ``job``.

    Args:
        home: the job's HOME.
        job: the job's own folder.
        downloads: the sizes of the downloads, by digest.
        wanted: names in the job's folder to keep in any case.

    Raises:
        Refused: there are too many files.
        DeployerError: the disk is full.
    """
    kept = KeptFiles({}, {}, [], [], [], set())
    with files.errors_named(f"write {target}"):
        _tree(_Source(home, HOME), "", target / "home", downloads, kept, kept.home)
        # A file that HOME has too is a copy: results include their model's tokenizer.
        others = {sha256: size for sha256, size in downloads.items() if sha256 not in kept.digests}
        source = _Source(job, JOB)
        names = [name for name in files.names(str(job)) if not name.startswith(".") and name not in links.OURS]
        sizes = set(others.values())
        downloaded = (name for name in names if source.has(name, sizes, lambda x: files.sha256_file(x) in others))
        own = {*downloaded, *(name for name in names if name in wanted)}
        members = dict(pair for name in own if files.is_file(str(job / name)) for pair in _members(job / name))
        unpacked, contents = {path.removeprefix("./").split("/")[0] for path in members}, set(members.values())
        sizes = {size for size, _ in contents if size}
        for name in names:
            if name in own or name in unpacked or source.has(name, sizes, lambda x: _content(x) in contents):
                _tree(source, name, target / "job", downloads, kept, kept.job)
            else:
                kept.left.append(name)
    return kept


def _members(path: Path) -> Iterator[tuple[str, _Content]]:
    """Yield the first members of an archive; none of another file. Only its beginning is read."""
    with files.open_regular(str(path)) as stream:
        data = stream.read(_BEGINNING)
    if data.startswith(b"PK\x03\x04") and len(data) >= 30:  # a zip file: its first member
        crc, size, name, extra = struct.unpack_from("<14xI4xIHH", data)
        if not size:  # a zip file that was written to a pipe has both after the content
            with contextlib.suppress(zlib.error):
                body = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[30 + name + extra :], _BEGINNING)
                crc, size = zlib.crc32(body), len(body)
        yield data[30 : 30 + name].decode("utf-8", "replace"), (size, crc)
    with contextlib.suppress(tarfile.TarError, zlib.error, EOFError, ValueError):
        if data.startswith(b"\x1f\x8b"):
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _BEGINNING)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in itertools.islice(tar, _MEMBERS):
                yield member.name, (0, 0)
                if member.isreg():
                    yield member.name, (member.size, zlib.crc32((tar.extractfile(member) or io.BytesIO()).read()))


def _content(path: str) -> _Content:
    """Return the size and the CRC-32 of a file."""
    crc = size = 0
    with files.open_regular(path) as stream:
        while chunk := stream.read(_BEGINNING):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return size, crc


class _Source:
    """A folder that the program filled."""

    def __init__(self, folder: Path, seen_as: str) -> None:
        """``seen_as`` is the folder's path in the container."""
        self.folder, self._seen_as = str(folder), seen_as
        self.outside: set[str] = set()
        self.linked: set[str] = set()

    def files(self, below: str) -> list[tuple[str, str]]:
        """Return the files at and below a path, each with the file of its content, which is another one for a link."""
        pending, found = [os.path.join(self.folder, below) if below else self.folder], []
        while pending:
            path = pending.pop()
            state = os.lstat(path)
            if stat.S_ISDIR(state.st_mode):
                os.chmod(path, 0o700)
                pending += [f"{path}/{name}" for name in files.names(path)]
            elif stat.S_ISREG(state.st_mode):
                found.append((path, path))
            elif stat.S_ISLNK(state.st_mode):
                real = self._followed(path)
                self.outside |= set() if real else {os.path.relpath(path, self.folder)}
                self.linked |= {real} if real else set()
                found += [(path, real)] if real else []
            if len(found) > _MOST:
                raise Refused(f"it wrote over {_MOST} files, too many for a bundle", "let it pack them into an archive")
        return sorted(found)

    def has(self, name: str, sizes: Collection[int], is_wanted: Callable[[str], bool]) -> bool:
        """Return whether a file at or below a name has one of these sizes, and is wanted."""
        return any(is_wanted(real) for _, real in self.files(name) if os.stat(real).st_size in sizes)

    def _followed(self, path: str) -> str | None:
        """Return the file of a link, or None if it leads out of the folder, or to no file."""
        where = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        if where.startswith(self._seen_as + "/"):
            where = self.folder + where[len(self._seen_as) :]
        real, top = os.path.realpath(where), os.path.realpath(self.folder)
        is_within = real.startswith(top + "/") and not files.is_link(real)  # a circle of links is still a link
        return real if is_within and files.is_file(real) else None


def _tree(
    source: _Source, name: str, target: Path, downloads: Mapping[str, int], kept: KeptFiles, counts: dict[str, _Count]
) -> None:
    """Keep the files at and below a name of a folder, and count them by the first part of their path."""
    sizes = set(downloads.values())
    for path, real in source.files(name):
        below, size = os.path.relpath(path, source.folder), os.lstat(real).st_size
        # The hub's programs use links with names; the files that they lead to have none.
        nameless = real in source.linked and path == real and _BLOBS.search(real)
        if not below.isprintable() or len(below) > _LONGEST or below.startswith("~"):
            source.outside.add(below)  # a job cannot have a link with this name
            continue
        if nameless or _TOOLS.search(below) or (not size and below.endswith(".lock")):
            continue
        place = target / below
        place.parent.mkdir(parents=True, exist_ok=True)
        _bring(real, place)
        if size in sizes:
            kept.digests.add(files.sha256_file(str(place)))
        if runs_code(below, _head(place)):
            kept.running.append(below)
        top = below.split("/")[0]
        number, total = counts.get(top, (0, 0))
        counts[top] = number + 1, total + size
    kept.outside.extend(sorted(source.outside))


def _bring(real: str, place: Path) -> None:
    """Make a file of its own: a second name of the same content if both are on one disk."""
    os.chmod(real, 0o700 if os.lstat(real).st_mode & 0o100 else 0o600)
    try:
        os.link(real, place, follow_symlinks=False)
    except OSError:
        shutil.copyfile(real, place, follow_symlinks=False)


def _head(path: Path) -> bytes:
    with files.open_regular(str(path)) as stream:
        return stream.read(HEAD)
