"""Detection of the MPI families that an image's programs are linked to, if the definition does not state them."""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from deployer.connected.linker.process import FAMILIES, NVSHMEM_BY_MPI
from deployer.connected.rootfs.entries import FileContent, reader_of
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.errors import Refused
from deployer.contract.base.tarformat import FILE
from deployer.contract.bundle.job import Job
from deployer.contract.elf import dynamic
from deployer.contract.elf.dynamic import BadElf
from deployer.contract.site.plan import MPICH_ABI, OPENMPI

_MAGIC = b"\x7fELF"
#: The maximum number of bytes read from a script.
_SCRIPT = 1024 * 1024
#: Files of MPI libraries, which need their own family whatever the programs need, and modules of NVSHMEM.
_OF_MPI = re.compile(rf"^lib(mpi|oshmem|pmpi)|^(mca|ompi)_|^mpi(chversion|vars)$|{NVSHMEM_BY_MPI.pattern}")
#: MPI's libraries for Fortran and C++. A Fortran program may need no other (``--as-needed`` in Debian's mpif90).
_BINDINGS = (
    (re.compile(r"^libmpi_(mpifh|usempi\w*|cxx)\.so\.40$"), OPENMPI),
    (re.compile(r"^libmpi(ch)?(fort|cxx|f90)\.so\.12$"), MPICH_ABI),
)
_WRITE = "write mpi: [mpich-abi] or mpi: [openmpi] in the definition, or both if it has programs for both"


class MpiUser(NamedTuple):
    """A file in a bundle that is linked to an MPI library."""

    path: str
    family: str
    is_program: bool


class FoundFamilies(NamedTuple):
    """The MPI families of a bundle, and the path of the file that shows them; both empty if the bundle has none."""

    families: Sequence[str]
    path: str = ""


def find(
    in_image: Sequence[MpiUser], jobs: Sequence[Job], wheels: bool, app: Sequence[tuple[str, FileContent]] = ()
) -> FoundFamilies:
    """Return the families that programs or, if there are no programs, libraries are linked to.

    If there are several programs, only those count that the commands of ``jobs``, or the app's scripts that these
    commands start, mention. Programs of the app that neither mentions never count. A folder with libraries for both
    families, such as mpi4py's, runs on both.

    Args:
        in_image: ``users`` of the image.
        wheels: whether the bundle has Python packages besides the image, which may call MPI.
        app: the files of the app: absolute path and content.

    Raises:
        Refused: programs for both families exist; or no family was found and a job has more than one rank.
    """
    in_commands = {posixpath.basename(word) for job in jobs for words in job.command for word in words.split()}
    named = in_commands | in_scripts(data for path, data in app if posixpath.basename(path) in in_commands)
    in_app = users(app)
    mpi_users = [*in_image, *(user for user in in_app if not user.is_program or posixpath.basename(user.path) in named)]
    programs = [user for user in mpi_users if user.is_program]
    by_command, started = (
        [user for user in programs if posixpath.basename(user.path) in names] for names in (in_commands, named)
    )
    for candidates in (by_command, started, programs, mpi_users):
        families, is_common = _common(candidates)
        if len(families) == 1 or (families and not programs and is_common):
            return FoundFamilies(sorted(families), candidates[0].path)
        if families:
            first = sorted({user.family: user for user in reversed(candidates)}.values())
            listed = ", ".join(f"{user.path} ({user.family})" for user in first)
            raise Refused(f"the bundle has programs for both families of MPI: {listed}", _WRITE)
    if wheels or all(job.nodes * job.ranks_per_node == 1 for job in jobs):
        return FoundFamilies([])
    what = "no program of the image or in app/ is linked to an MPI library, and a job has more than one rank"
    raise Refused(what, f"{_WRITE}; mpi: [] if the ranks do without MPI")


def users(files: Iterable[tuple[str, FileContent]]) -> list[MpiUser]:
    """Return the files that are linked to an MPI library, sorted by path, without MPI's own files."""
    mpi_users = []
    for path, data in files:
        if _OF_MPI.match(posixpath.basename(path)) or data.read(0, min(data.size, len(_MAGIC))) != _MAGIC:
            continue
        try:
            facts = dynamic.read(reader_of(data))
        except BadElf:
            continue  # `check` reports it
        family = next(filter(None, map(_family, facts.needed)), None) if facts else None
        if facts and family:
            mpi_users.append(MpiUser(path, family, facts.interpreter is not None))
    return sorted(mpi_users)


def files_of(root: Rootfs) -> Iterator[tuple[str, FileContent]]:
    """Yield the files of an image: absolute path and content."""
    for path, node in root.walk():
        if node.kind == FILE and node.data is not None:
            yield "/" + path.decode("utf-8", "surrogateescape").strip("/"), node.data


def in_scripts(files: Iterable[FileContent]) -> set[str]:
    """Return the words of scripts. A word ends where a path or a shell operator ends."""
    starts = [data.read(0, min(data.size, _SCRIPT)) for data in files]
    return {
        word
        for text in starts
        if not text.startswith(_MAGIC)
        for word in re.findall(r"[\w.+-]+", text.decode("utf-8", "replace"))
    }


def _family(needed: str) -> str | None:
    return FAMILIES.get(needed) or next((family for name, family in _BINDINGS if name.match(needed)), None)


def _common(users: Iterable[MpiUser]) -> tuple[set[str], bool]:
    """Return the families of the users that support only one; if there are none, all families, and True.

    The files of a folder together are one user; each program is its own.
    """
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for user in users:
        folders[user.path if user.is_program else posixpath.dirname(user.path)].add(user.family)
    single = [families for families in folders.values() if len(families) == 1]
    return set[str]().union(*(single or folders.values())), not single
