"""The outcomes of rehearsals in a bundle. They are the last members, so the payload's segments stay the same.

A new outcome is appended, and the bundle is sealed again. Its digest changes, which voids its signatures. push sends
only the new end. Only the laptop reads these members.
"""

import os
from pathlib import Path

from deployer.connected.bundle.seal import BundleWriter
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.json_records import pretty
from deployer.contract.bundle.manifest import HEADER, REHEARSALS_PREFIX, Manifest
from deployer.contract.bundle.sealed_file import member_segments, payload
from deployer.contract.rehearsal import rehearsal
from deployer.contract.rehearsal.rehearsal import Rehearsal
from deployer.system import files
from deployer.system.trust.verify import begin, opened


def record(path: Path, outcome: Rehearsal) -> bool:
    """Write an outcome into a bundle. It replaces an earlier outcome for the same job and site.

    Returns:
        True if the bundle had signatures, which are now void.

    Raises:
        SpaceError: not enough space for the new bundle; the old one is unchanged.
        UsageError: the outcome is too large, could not be read back, or belongs to another bundle.
    """
    data = pretty(outcome.record()).encode()
    if len(data) > rehearsal.MAX_SIZE:
        raise UsageError(f"the outcome of {outcome.job} has {len(data)} bytes", "shorten the job's arguments")
    rehearsal.read(data, f"the outcome of {outcome.job}")  # an unreadable member would spoil the bundle
    new = f"{REHEARSALS_PREFIX}{outcome.job}{'@' + outcome.site if outcome.site else ''}.json"
    if not files.is_file(str(path)):
        hint = "rehearse with pack --rehearse, or record in the bundle for one processor and pack again"
        raise UsageError(f"cannot record a rehearsal in {path}, one of several bundles", hint)
    with opened(str(path)) as stream:
        bundle = begin(stream, str(path))
        manifest = bundle.manifest
        if outcome.payload != payload(manifest):
            raise UsageError(f"{path} is not the bundle that was rehearsed: it has changed", "rehearse it again")
        names = [member.name for member in manifest.members]
        first = next((place for place, name in enumerate(names) if name.startswith(REHEARSALS_PREFIX)), len(names))
        if not all(name.startswith(REHEARSALS_PREFIX) for name in names[first:]):
            raise IntegrityError(f"{path} has other files after its rehearsals", "pack it again")
        others = {
            name: b"".join(map(bundle.read, member_segments(manifest, name))) for name in names[first:] if name != new
        }
        cut = _start(manifest, first)
        mode = os.fstat(stream.fileno()).st_mode & 0o777
        with files.errors_named(f"write {path}"), files.published(str(path), mode) as target:
            _copy(stream.fileno(), target.fileno(), cut)
            target.seek(0, os.SEEK_END)
            kept = [segment for segment in manifest.segments if segment.offset < cut]
            writer = BundleWriter.after(target, manifest.members[:first], kept)
            for name, content in sorted({**others, new: data}.items()):
                writer.member(name, content)
            writer.seal(manifest)
        return bool(bundle.trust.keys)


def _start(manifest: Manifest, number: int) -> int:
    """Return the offset of a member's header; for the number of members, the end of the last one."""
    headers = sorted(segment.offset for segment in manifest.segments if segment.kind == HEADER)
    ends = (segment.offset + segment.size for segment in manifest.segments)
    return [*headers, max(ends)][number]


def _copy(source: int, target: int, size: int) -> None:
    """Copy the first bytes of a file. Some Linux file systems need not read them."""
    done = 0
    while done < size:
        if hasattr(os, "copy_file_range"):
            count = os.copy_file_range(source, target, size - done, done, done)
        else:
            count = os.pwrite(target, os.pread(source, min(size - done, files.CHUNK), done), done)
        if not count:
            raise IntegrityError("the bundle became shorter while it was copied", "get it again")
        done += count
