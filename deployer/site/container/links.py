"""A job's links to the bundle's data and app at the site, made in a new folder (``contract.site.links``)."""

import os
import stat
from typing import Iterator, List, Mapping, Tuple

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

    Raises:
        UsageError: a source does not exist, or is neither a file nor a folder.
        Refused: there are too many files.
    """
    resolved: List[Tuple[str, str]] = []
    for place, source in asked.items():
        for below in _files(_on_host(installed, carriers, source), source):
            resolved.append((place + below, links.target(source) + below))
            if len(resolved) > links.MOST:
                raise _too_many(source, links.MOST, "files")
    return resolved


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


def _files(path: str, source: str) -> Iterator[str]:
    """Yield the files below ``path``, each after a slash; yield an empty text if ``path`` itself is a file."""
    pending, folders = [""], 0
    while pending:
        below = pending.pop()
        state = files.status(path + below, follow=False)
        if state is None:
            raise UsageError(
                "links: the bundle has no %s" % (source + below),
                "correct `links` in the definition, or push a bundle that has it",
            )
        if stat.S_ISREG(state.st_mode):
            yield below
        elif stat.S_ISDIR(state.st_mode):
            folders += 1
            if folders > _FOLDERS * links.MOST:
                raise _too_many(source, _FOLDERS * links.MOST, "folders")
            pending += [f"{below}/{name}" for name in reversed(files.names(path + below))]
        else:
            raise UsageError(
                "links: %s is neither a file nor a folder" % (source + below), "install or push the bundle again"
            )
