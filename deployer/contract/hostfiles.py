"""Single files of the host in the container: one folder of stubs, with each file bound over its stub. Pure.

An image is read-only, and a bind needs its like to be there. So a folder of empty files is made on the site and bound
where every image has an empty folder; the host's files are bound over the empty ones. In this way one library of a
system folder gets in without the folder, which would bring the host's C library along.
"""

import re
from typing import Callable, List, Mapping, NamedTuple, Sequence

from deployer.contract.json_records import Fields

#: Where the container sees them; flatten makes this folder in every image.
FOLDER = "/deployer/host"
LIBRARIES = FOLDER + "/lib"
PROGRAMS = FOLDER + "/bin"

FILE, DIRECTORY, LINK = "file", "directory", "link"

#: What is searched without being asked: by the loaders of Debian's family, of Red Hat's and SUSE's, and what their
#: /etc/ld.so.conf says besides.
_SYSTEM = (
    "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", "/lib", "/lib64",
    "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu",
)  # fmt: skip

_NAME = re.compile(r"^(lib|bin)/[A-Za-z0-9_+][A-Za-z0-9._+-]*$")


class HostFile(NamedTuple):
    """``name`` is relative to FOLDER. A FILE or DIRECTORY of the host is bound there; a LINK leads to ``source``.

    A ``spare`` library is for images that have none of that name: the image's own is taken where there is one.
    """

    name: str
    kind: str
    source: str
    why: str
    spare: bool = False

    @property
    def target(self) -> str:
        """Return where the container sees it."""
        return FOLDER + "/" + self.name

    @staticmethod
    def read(fields: Fields) -> "HostFile":
        name, kind, source, why = (fields.text(name) for name in HostFile._fields[:4])
        found = HostFile(name, kind, source, why, fields.flag("spare"))
        if not _NAME.match(found.name) or found.kind not in (FILE, DIRECTORY, LINK):
            raise fields.error("%s: %s %r is not for %s" % (fields.what, found.kind, found.name, FOLDER))
        return found


def for_image(found: Sequence[HostFile], exists: Callable[[str], bool]) -> List[HostFile]:
    """Return what an image gets; ``exists`` says whether it has something at an absolute path.

    Both sides ask here, so that what is checked is what the job will see.
    """
    return [item for item in found if not (item.spare and _has(item.name.rpartition("/")[2], exists))]


def _has(library: str, exists: Callable[[str], bool]) -> bool:
    return any(exists("%s/%s" % (folder, library)) for folder in _SYSTEM)


def library_path(environment: Mapping[str, str], image: Mapping[str, str]) -> str:
    """Return LD_LIBRARY_PATH: the plan's folders before those that the image itself asks for, each once."""
    folders: List[str] = []
    for values in (environment, image):
        for folder in values.get("LD_LIBRARY_PATH", "").split(":"):
            if folder and folder not in folders:  # an empty part would be the current folder
                folders.append(folder)
    return ":".join(folders)
