"""receive from one of several media, or from encrypted files (docs/adr/0072).

Each part is checked and copied to the folder where the parts of a push are too. So media may come in any order, a
second start continues, and the last medium completes the bundle.
"""

import os
import tempfile
from typing import IO, Iterator, List, Optional, Sequence, Tuple

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import delta, plan_update, sealed_file
from deployer.contract.bundle.delta import Ending, Part, Range
from deployer.contract.bundle.scan import ON_MEDIUM
from deployer.site.install import incoming, receive
from deployer.site.install.content import InstallProgress
from deployer.site.install.incoming import Parcel
from deployer.site.storage import inventory
from deployer.site.storage.store import Store
from deployer.system import age, files

_Parts = Iterator[Tuple[Range, int, IO[bytes], str]]
_COPY = "copy it again from the medium: what has arrived is kept"


def gather(folders: List[str], store: Store, key: str, program: str, meter: InstallProgress) -> Tuple[str, List[str]]:
    """Copy the parts on media to the site. Those of a single medium, if not encrypted, need no copy.

    Args:
        key: the file of the private key for encrypted media.
        program: the program age.

    Returns:
        The folder with the parts of the bundle, and the names of the media that are missing.

    Raises:
        UsageError: the media are of different bundles, or the key is wrong.
        IntegrityError: a part is damaged. The parts that have arrived are kept.
        SpaceError: there is no space for the parts, the bundle and the image. Nothing was copied.
        MissingTool: age is not installed.
    """
    target, missing = folders[0], []
    parcel: Optional[Parcel] = None
    for folder in folders:
        names = sorted(files.names(folder))
        marks = list(filter(None, map(delta.MEDIUM_NAME.match, names)))
        scan, hidden = os.path.join(folder, ON_MEDIUM), ON_MEDIUM + delta.ENCRYPTED
        encrypted = [name for name in names if name.endswith(delta.ENCRYPTED) and name != hidden]
        if len(folders) == 1 and not encrypted and not marks:
            break
        parts = _decrypted(folder, encrypted, store, key, program) if encrypted else _plain(folder)
        for place, size, stream, what in parts:
            if isinstance(place, Ending):
                parcel = _begun(place, stream.read(min(size, sealed_file.MAX_MANIFEST)), store, what, parcel)
            elif parcel and isinstance(place, Part) and size == place.size:
                _take(parcel, place, stream, what)
                meter(size, parcel.seal.offset)
            else:
                raise IntegrityError(f"{what} is damaged: it has {size} bytes", _COPY)
        if parcel is None:
            raise UsageError(f"{folder} contains no bundle's parts", "give the folders that push --to wrote")
        for mark in marks:
            files.write_text(os.path.join(parcel.folder, mark.group()), "")
        if hidden in names:
            with files.published(os.path.join(parcel.folder, ON_MEDIUM), hint=incoming.NO_SPACE) as plain:
                age.decrypt(scan + delta.ENCRYPTED, plain, key, program)
        elif ON_MEDIUM in names:
            data = files.read_text(scan, _COPY, plan_update.MAX_SIZE)
            files.write_text(os.path.join(parcel.folder, ON_MEDIUM), data)
        target, total = parcel.folder, max([int(mark.group(2)) for mark in marks], default=0)
        wanted = [delta.MEDIUM % (number, total) for number in range(1, total + 1)] if _lacking(parcel, store) else []
        missing = [mark for mark in wanted if not files.lexists(os.path.join(target, mark))]
    return target, missing


def _plain(folder: str) -> _Parts:
    """Yield the place, size, content and file of each part in a folder, after those of the ending."""
    places = filter(None, map(delta.read_name, files.names(folder)))
    for place in sorted(places, key=lambda place: (isinstance(place, Part), place)):
        path = os.path.join(folder, place.name)
        with files.open_regular(path) as stream:
            yield place, os.fstat(stream.fileno()).st_size, stream, path


def _decrypted(folder: str, names: Sequence[str], store: Store, key: str, program: str) -> _Parts:
    """Yield the same from encrypted files, each of which has the ending first."""
    os.makedirs(store.incoming, exist_ok=True)
    for path in (os.path.join(folder, name) for name in names):
        with tempfile.TemporaryFile(dir=store.incoming) as stream:
            age.decrypt(path, stream, key, program)
            stream.seek(0)
            for _, place, size in incoming.announcements(stream):
                yield place, size, stream, path


def _begun(place: Ending, data: bytes, store: Store, what: str, before: Optional[Parcel]) -> Parcel:
    """Return the bundle with the ending ``data``, after making its folder if there is space for all of it."""
    ending, seal, manifest = delta.decompress(data, place)
    if before:
        if seal.digest != before.seal.digest:
            raise UsageError(f"{what} has parts of another bundle", "give the media of one bundle")
        return before
    folder = incoming.folder_of(store, seal.digest)
    parcel = Parcel(folder, ending, seal, manifest, incoming.parts_in(folder))
    if not inventory.whole(store, seal.digest):
        receive.check_space(parcel, store, parcel.arrived, _lacking(parcel, store))
    with files.published(os.path.join(folder, place.name), hint=incoming.NO_SPACE) as target:
        target.write(data)
    return parcel


def _lacking(parcel: Parcel, store: Store) -> int:
    """Return the bytes of a bundle that are neither here nor in kept bundles."""
    arrived = parcel._replace(parts=incoming.parts_in(parcel.folder)).sources()
    known = {*incoming.kept(store), *arrived}
    return sum(segment.size for segment in parcel.manifest.segments if segment.sha256 not in known)


def _take(parcel: Parcel, part: Part, stream: IO[bytes], what: str) -> None:
    """Copy a part, unless it is here already. Raises IntegrityError if its bytes are not those of the bundle."""
    if part in parcel.parts:
        stream.seek(part.size, os.SEEK_CUR)
        return
    with files.published(parcel.path(part), hint=incoming.NO_SPACE) as target:
        incoming.copy(stream, target, part.size)
        target.seek(0)
        if receive.undamaged(target, delta.inside(parcel.manifest.segments, [part]), part.offset) < part.end:
            raise IntegrityError(f"{what} is damaged, or of another bundle", _COPY)
