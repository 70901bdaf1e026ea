"""Unpack the wheels of a bundle into overlays beside the image: the wheelhouse, and one per Horovod variant.

::

    images/DIGEST/wheels/{lib,bin,...}          deployer/wheels/*.whl
    images/DIGEST/variants/ABI/{lib,bin,...}    deployer/variants/ABI/*.whl

Forked workers unpack one wheel at a time. A worker checks the wheel's segments, copies them into an unnamed file, and
unpacks the files that the wheel's own RECORD lists. Every file is new (O_EXCL) and no link is ever made, so no path can
lead out of the overlay. Two wheels may contain the same file only if its bytes are identical.
"""

import hashlib
import io
import os
import re
import tempfile
from typing import IO, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from deployer.contract.base import tarformat
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import sealed_file, wheel
from deployer.contract.bundle.manifest import BundleMember, Manifest, Segment
from deployer.contract.bundle.wheel import WheelFile
from deployer.site.install.unpack import Unpacked
from deployer.system import files, workers
from deployer.system import wheel as wheels
from deployer.system.trust.verify import Progress, Verification

_MEMBER = re.compile(r"deployer/(?P<overlay>wheels|variants/[a-z0-9]+(-[a-z0-9]+)*)/(?P<name>[^/]+\.whl)\Z")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TIMES = (tarformat.MTIME * 10**9, tarformat.MTIME * 10**9)
#: Used if the image's Python is not known: PATH in the container decides.
_ANY_PYTHON = "/usr/bin/env python3"


class _Written(NamedTuple):
    """A wheel's file in the overlay: SHA-256, size, and whether the path already existed."""

    digest: str
    size: int
    met: bool


def overlay(member: str) -> Optional[str]:
    """Return the overlay for a member of the bundle, a folder in the installed image; None if it is not a wheel."""
    match = _MEMBER.match(member)
    return match.group("overlay") if match else None


def room(verification: Verification, stream: IO[bytes], jobs: int) -> Unpacked:
    """Return how many files and bytes a bundle's wheels will need, as their archives claim, without any check.

    This includes a verified copy of each wheel that is being unpacked.
    """
    members = _wheels(verification.manifest)
    entries, size = 0, sum(sorted((member.size for member in members), reverse=True)[: max(1, jobs)])
    for member in members:
        start = verification.member_segments(member.name)[0].offset if member.size else 0
        window = files.Window(stream.fileno(), start, member.size)
        with io.BufferedReader(window) as buffered:
            claimed = wheels.claim(buffered, _name(member))
        entries += claimed.files
        size += claimed.bytes
    return Unpacked(entries, size)


def segments(verification: Verification) -> Dict[str, List[Segment]]:
    """Return the segments of each wheel in a bundle, by its name in the bundle."""
    contents = sealed_file.contents(verification.manifest.members, verification.manifest.segments)
    return {member.name: contents[member.name] for member in _wheels(verification.manifest)}


def unpack(folder: str, verification: Verification, python: Optional[str], jobs: int, progress: Progress) -> Unpacked:
    """Write the overlays of a bundle's wheels into ``folder``.

    After an error, the caller removes what was written.

    Args:
        python: the image's Python, for scripts.

    Raises:
        IntegrityError: a wheel is invalid.
    """
    members = _wheels(verification.manifest)
    if not members:
        return Unpacked(0, 0)
    contents = segments(verification)

    def write(member: BundleMember) -> Dict[str, _Written]:
        """Unpack one wheel in a worker, and return its files by their paths in the overlay."""
        root = os.path.join(folder, str(overlay(member.name)))
        with tempfile.TemporaryFile(dir=folder) as copy:
            for segment in contents[member.name]:
                copy.write(verification.read(segment))
            return OverlayWriter(root, python or _ANY_PYTHON).add(wheels.Wheel(copy, _name(member)))

    owners: Dict[Tuple[str, str], List[Tuple[str, str]]] = {}  # the wheels that contain each file, by overlay and path
    met: List[Tuple[str, str]] = []
    count = size = 0
    with workers.Pool(min(jobs, len(members)), write) as pool:
        for member in sorted(members, key=lambda member: -member.size):
            pool.submit(member)
        for member, written in pool.results():
            for segment in contents[member.name]:
                verification.passed(segment)
            for path, file in written.items():
                place = (str(overlay(member.name)), path)
                owners.setdefault(place, []).append((_name(member), file.digest))
                if file.met:
                    met.append(place)
                else:
                    count += 1
                    size += file.size
            progress(member.size)
    for place in met:
        _check_same(place[1], owners[place])
    return Unpacked(count, size)


def _check_same(path: str, owners: List[Tuple[str, str]]) -> None:
    """Raise IntegrityError unless the existing file came from another wheel and has the same content."""
    (first, digest), others = owners[0], owners[1:]
    if not others:
        # Two names are the same on a file system that ignores case, or a folder has that name.
        raise IntegrityError(f"{first}: {path} already exists, so it cannot be written")
    for other, another in others:
        if another != digest:
            raise IntegrityError(f"{first} and {other} both contain {path}, with different content")


class OverlayWriter:
    """Writes one wheel into its overlay ``root``."""

    def __init__(self, root: str, python: str) -> None:
        self.root = root
        self.python = python
        self.written: Dict[str, _Written] = {}

    def add(self, source: wheels.Wheel) -> Dict[str, _Written]:
        """Write all files of a wheel, its console scripts, and the RECORD of the installed files."""
        for file in source.files:
            known = file.digest.value.hex() if file.digest.algorithm == "sha256" and not file.script else None
            self._write(file.path, self._content(source, file), file.executable, known)
        scripts = source.scripts(self.python)
        for name in sorted(scripts):
            path = f"{wheel.BIN}/{name}"
            if path not in self.written:  # scripts in the wheel itself take precedence
                self._write(path, [scripts[name].encode("utf-8")], True)
        info = f"{wheel.LIB}/{source.info}/"
        self._write(info + wheel.INSTALLER, [b"deployer\n"], False)
        lines = [wheel.record_line(path, file.digest, file.size) for path, file in sorted(self.written.items())]
        record = "".join(lines) + f"{source.info}/{wheel.RECORD},,\n"
        self._write(info + wheel.RECORD, [record.encode("utf-8")], False)
        return self.written

    def _content(self, source: wheels.Wheel, file: WheelFile) -> Iterator[bytes]:
        first = True
        for chunk in source.chunks(file):
            yield wheel.with_interpreter(chunk, self.python) if first and file.script else chunk
            first = False

    def _write(self, path: str, pieces: Iterable[bytes], executable: bool, known: Optional[str] = None) -> None:
        """Write a file into the overlay; ``known`` is its SHA-256 if the caller has verified it."""
        target = os.path.join(self.root, path)
        self._make_folder(os.path.dirname(target))
        try:
            descriptor = os.open(target, _NEW_FILE, 0o755 if executable else 0o644)
            met = False
        except FileExistsError:
            # It belongs to another wheel, which may still be unpacked. Only the parent knows both and can compare them.
            descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            met = True
        digest, size = hashlib.sha256(), 0
        with os.fdopen(descriptor, "wb") as stream:
            for piece in pieces:
                if known is None:
                    digest.update(piece)
                size += len(piece)
                stream.write(piece)
        if not met:
            os.utime(target, ns=_TIMES, follow_symlinks=False)
        self.written[path] = _Written(known or digest.hexdigest(), size, met)

    def _make_folder(self, path: str) -> None:
        """Make a folder and its parents; another worker may make them at the same time."""
        if files.is_folder(path):
            return
        self._make_folder(os.path.dirname(path))
        try:
            os.mkdir(path)
        except FileExistsError:
            if not files.is_folder(path):
                raise IntegrityError(
                    f"{os.path.relpath(path, self.root)} is a file of one wheel and a folder of another"
                ) from None


def _wheels(manifest: Manifest) -> List[BundleMember]:
    return [member for member in manifest.members if overlay(member.name)]


def _name(member: BundleMember) -> str:
    return member.name.rpartition("/")[2]
