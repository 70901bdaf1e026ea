"""Bind single files of the host into the container, each over its stub in one folder. Pure.

An image is read-only, and a bind needs an existing target of the same kind. Therefore the site makes a folder of empty
files and binds it over a folder that is empty in every image. The host's files are then bound over the empty files.
Thus a job gets one library from a system folder without the rest of that folder, such as the host's C library.
"""

import re
from typing import Callable, List, Mapping, NamedTuple, Sequence

from deployer.contract.base import records
from deployer.contract.base.json_records import Fields

#: The folder in the container; flatten makes it in every image.
FOLDER = "/deployer/host"
LIBRARIES = FOLDER + "/lib"
PROGRAMS = FOLDER + "/bin"

FILE, DIRECTORY, LINK = "file", "directory", "link"

#: Folders that loaders search by default in the Debian, Red Hat and SUSE families, with the usual folders from their
#: /etc/ld.so.conf.
_SYSTEM = (
    "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", "/lib", "/lib64",
    "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu",
)  # fmt: skip

#: The folders of the system's own packages; MPI installations are elsewhere.
_PACKAGED = ("/usr/", "/lib/", "/lib64/")

_NAME = re.compile(r"^(lib|bin)/[A-Za-z0-9_+][A-Za-z0-9._+-]*$")


class HostFile(NamedTuple):
    """A host file for the container.

    Attributes:
        name: its path relative to FOLDER.
        kind: FILE or DIRECTORY, which are bound; or LINK.
        source: the host's path, or the target of a LINK.
        why: the reason, for people.
        spare: whether it is used only for images that have no library of this name.
    """

    name: str
    kind: str
    source: str
    why: str
    spare: bool = False

    @property
    def target(self) -> str:
        """Return the path in the container."""
        return FOLDER + "/" + self.name

    @staticmethod
    def read(fields: Fields) -> "HostFile":
        file = records.read(HostFile, fields)
        if not _NAME.match(file.name) or file.kind not in (FILE, DIRECTORY, LINK):
            raise fields.error(f"{fields.what}: {file.kind} {file.name!r} is not for {FOLDER}")
        return file


def for_image(files: Sequence[HostFile], exists: Callable[[str], bool]) -> List[HostFile]:
    """Return the files for an image; ``exists`` returns whether the image has an absolute path.

    Both sides call this function, so that `check` and the job use the same files.
    """

    def is_there(name: str) -> bool:
        return any(exists("{}/{}".format(folder, name.rpartition("/")[2])) for folder in _SYSTEM)

    return [file for file in files if not (file.spare and is_there(file.name))]


def of_system(path: str) -> bool:
    """Return whether a host library belongs to the system; its version may differ between nodes."""
    return path.startswith(_PACKAGED) and not path.startswith(("/usr/local/", "/usr/mpi/"))


def library_path(environment: Mapping[str, str], image: Mapping[str, str]) -> str:
    """Return LD_LIBRARY_PATH: the plan's folders, then the image's own, each once."""
    folders = [folder for values in (environment, image) for folder in values.get("LD_LIBRARY_PATH", "").split(":")]
    return ":".join(dict.fromkeys(filter(None, folders)))  # an empty entry would be the current folder
