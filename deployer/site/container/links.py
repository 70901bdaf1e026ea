"""A job's links to the bundle's data and app at the site, made in a new folder (``contract.site.links``)."""

import os
import stat
from typing import List, Mapping, NamedTuple, Tuple

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.site import links
from deployer.site.storage.data import InstalledData
from deployer.site.storage.store import InstalledImage
from deployer.system import files

#: Maximum number of folders to search in a source, as a multiple of the links that a job can have.
_FOLDERS = 10


def resolve(
    installed: InstalledImage, carriers: List[InstalledData], asked: Mapping[str, str]
) -> List[Tuple[str, str]]:
    """Return a place and a container path for each file of a job's links.

    If a source has too many files, its largest folders without subfolders are linked whole. They are read-only then.

    Raises:
        UsageError: a source does not exist, or is neither a file nor a folder.
        Refused: there are too many files.
    """
    resolved: List[Tuple[str, str]] = []
    for place, source in asked.items():
        found = _folded(_folders(_on_host(installed, carriers, source), source), links.MOST - len(resolved))
        resolved += [(place + below, links.target(source) + below) for below in found]
        if len(resolved) > links.MOST:
            raise _too_many(source, links.MOST, "files")
    return resolved


class _Folder(NamedTuple):
    """A folder of a source: its path below the source, its files' names, and whether it has subfolders."""

    below: str
    files: List[str]
    has_folders: bool


def _folded(folders: List[_Folder], most: int) -> List[str]:
    """Return the paths to link, sorted: files, and folders in place of their files if there are more than ``most``."""
    whole, total = set(), sum(len(folder.files) for folder in folders)
    for folder in sorted(folders, key=lambda each: -len(each.files)):
        if total <= most or len(folder.files) < 2:
            break
        if not folder.has_folders and folder.below:
            whole.add(folder.below)
            total -= len(folder.files) - 1
    found = list(whole)
    for folder in folders:
        found += [] if folder.below in whole else folder.files
    return sorted(found)


def _too_many(source: str, most: int, what: str) -> Refused:
    return Refused(
        "links: %s has over %d %s, and each would be one on every node" % (source, most, what),
        "pack them into an archive (npz, TFRecord), or give the program the path below /deployer/data",
    )


def make(folder: str, targets: Mapping[str, str]) -> None:
    """Make links in this user's new ``folder``: target by path. Intermediate folders are real folders."""
    with files.errors_named("make the links of the job in " + folder):
        for place, target in targets.items():
            path = os.path.join(folder, place)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)


def _on_host(installed: InstalledImage, carriers: List[InstalledData], source: str) -> str:
    """Return the path of a source on this machine."""
    kind, _, below = source.partition("/")
    if kind == "app":
        return os.path.join(installed.app, below) if below else installed.app
    name, _, rest = below.partition("/")
    folder = next((item.folder for item in carriers if item.need.data == name), os.path.join(installed.data, name))
    return os.path.join(folder, rest) if rest else folder


def _folders(path: str, source: str) -> List[_Folder]:
    """Return the folders at and below ``path`` with their files, each path after a slash; a file is an empty path."""
    top = files.status(path, follow=False)
    if top is None:
        raise UsageError(
            "links: the bundle has no %s" % source, "correct `links` in the definition, or push a bundle that has it"
        )
    if stat.S_ISREG(top.st_mode):
        return [_Folder("", [""], False)]
    if not stat.S_ISDIR(top.st_mode):
        raise _odd(source)
    found: List[_Folder] = []
    pending = [""]
    while pending:
        below = pending.pop()
        if len(found) > _FOLDERS * links.MOST:
            raise _too_many(source, _FOLDERS * links.MOST, "folders")
        own: List[str] = []
        folders: List[str] = []
        for name in files.names(path + below):
            child = f"{below}/{name}"
            mode = os.lstat(path + child).st_mode
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise _odd(source + child)
            (folders if stat.S_ISDIR(mode) else own).append(child)
        found.append(_Folder(below, own, bool(folders)))
        pending += folders
    return found


def _odd(path: str) -> UsageError:
    return UsageError("links: %s is neither a file nor a folder" % path, "install or push the bundle again")
