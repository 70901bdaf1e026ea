"""Single libraries from the host's system folders: the rule that chooses between the host's and the image's library.

The rule applies to a library that a host file needs and that is in a system folder, by soname:

- the C library and its family always come from the image: loader and libc.so.6 belong together, and programs need their
own;
- libraries that talk to a kernel driver, a host daemon, or the other half of the MPI always come from the host;
  - all others (compilers' run-time libraries, libnuma, libnl) come from the image if it has them, else from the host.
  The image's programs keep the libraries that they were built with, and newer releases only add symbol versions.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from deployer.connected.linker import index
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.site_profile.profile import SiteFiles
from deployer.contract.elf.dynamic import Facts
from deployer.contract.rules.hostfiles import FILE, HostFile

#: glibc's libraries, and the kernel's virtual library.
_NEVER = re.compile(
    r"^(ld-linux.*|ld64|lib(c|m|mvec|dl|rt|pthread|util|resolv|nsl(?=\.so\.1$)|anl|BrokenLocale|thread_db|nss_\w+))\.so\.\d+$"
)
#: Omni-Path, verbs, UCX, EFA, XPMEM, Slingshot; libfabric; PMI, Slurm, munge; Open MPI's parts and their dependencies;
#: NVIDIA; GDRCopy, Cray MPICH's part for GPUs.
_HOSTS = re.compile(
    r"^lib(psm2|psm_infinipath|ibverbs|rdmacm|ibumad|ibmad|mlx[45]|hns|mana|efa|uc[pstm]|uc[st]_\w+|xpmem|cxi"
    r"|fabric|pals|pmi2?|pmix|slurm\w*|munge|open-(pal|rte)|mca_common_\w+|hwloc|event\w*(-[\d.]+)?|prrte"
    r"|cuda|cudadebugger|nvidia-[\w-]+|gdrapi|mpi_gtl_\w+)\.so(\.[\d.]+)?$"
)


class CapturedHost(NamedTuple):
    """The captured files of a site.

    Attributes:
        files: facts of files, and links.
        view: finds files through links.
        inside: paths below the MPI's prefix, by base name.
        outside: paths of system libraries, by base name.
        prefix: the MPI's prefix, "" for none.
    """

    files: SiteFiles
    view: JobFilesystem
    inside: dict[str, str]
    outside: dict[str, str]
    prefix: str

    @property
    def tree(self) -> Iterator[str]:
        """The libraries below the MPI's prefix, without links."""
        return (path for path in self.files.files if path.startswith(self.prefix + "/"))

    def facts(self, path: str) -> Facts | None:
        """Return the captured facts of a file after following links, or None."""
        real = self.view.resolve(path)
        return self.files.files.get(real) if real else None


def captured(files: SiteFiles, prefix: str) -> CapturedHost:
    """Return the captured files of a site, for an MPI at ``prefix`` ("" for none)."""
    prefix = prefix or "/nowhere"
    paths = [*files.links, *files.files][::-1]  # the first of a name counts; links, because their name is the soname
    inside = {posixpath.basename(path): path for path in paths if path.startswith(prefix + "/")}
    outside = {posixpath.basename(path): path for path in paths if not path.startswith(prefix + "/")}
    view = JobFilesystem(index.of_site(files.files, files.links))
    return CapturedHost(files, view, inside, outside, prefix)


def needs(host: CapturedHost, roots: Iterable[str]) -> dict[str, str]:
    """Return libraries outside the prefix that ``roots`` need directly or indirectly, as names with paths.

    The path is empty for a library that was not captured.
    """
    return {name: path for name, path in _closure(host, roots).items() if name not in host.inside}


def tree_needs(host: CapturedHost, root: str) -> set[str]:
    """Return the files below the prefix, without links, that the loader maps with ``root``."""
    paths = [root, *(path for name, path in _closure(host, [root]).items() if name in host.inside)]
    return {real for real in map(host.view.resolve, paths) if real}


def _closure(host: CapturedHost, roots: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    todo = list(roots)
    while todo:
        facts = host.facts(todo.pop())
        for name in map(posixpath.basename, facts.dynamic.needed if facts else ()):
            if name not in found:
                found[name] = host.inside.get(name) or host.outside.get(name, "")
                todo.append(found[name])
    return found


def libraries(found: dict[str, str], why: str) -> list[HostFile]:
    """Return host files for needed libraries by the rule above. Uncaptured libraries are left out."""
    return [
        library(path, why, name, spare=not _HOSTS.match(name))
        for name, path in sorted(found.items())
        if path and not _NEVER.match(name)
    ]


def library(path: str, why: str, name: str | None = None, spare: bool = False) -> HostFile:
    """Return one library under the name that the loader requests."""
    return HostFile(f"lib/{name or posixpath.basename(path)}", FILE, path, why, spare)
