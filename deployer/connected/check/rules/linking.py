"""Rules of the loader's own: what would end in "cannot open shared object file" or "version ... not found"."""

import posixpath
from collections.abc import Iterator

from deployer.connected.check.libc import newer_base
from deployer.connected.linker.process import CXX, FAMILIES, Process
from deployer.contract import hostfiles
from deployer.contract.findings import ERROR, NOTE, Finding


def program(process: Process) -> Iterator[Finding]:
    """link.program: the job's program is not in the image, or is for another machine."""
    if process.program is None:
        yield Finding(
            "link.program",
            ERROR,
            process.plan.bundle,
            "the job's program is not in the image, or is not a program for this machine",
            "name a program of the image in the job's command; build it for the site's architecture",
        )


def missing(process: Process) -> Iterator[Finding]:
    """link.missing: a library that neither the image nor a bind has.

    One that another file of the image has as its soname is not missing: Python packages load each other's libraries
    before their own (Horovod's needs TensorFlow's). For what the program itself needs at its start that is no help. An
    MPI library of another family than the site's is ``mpi.family``'s.
    """
    mpi, program = process.plan.mpi, process.program
    for each in process.loader.missing:
        at_start = program is not None and each.opened == program.path
        known = each.name in process.sonames and not at_start
        other = mpi is not None and FAMILIES.get(each.name, mpi.abi) != mpi.abi
        if not known and not other and not each.name.startswith(CXX):
            yield Finding(
                "link.missing",
                _severity(process, each.opened),
                each.needed_by,
                f"it needs {each.name}, which neither the image nor the site's binds have",
                f"add the package that has {each.name} to the image"
                if not process.host_path(each.needed_by)
                else f"bind the site's {each.name} as well: add its folder to the MPI's libraries in the profile",
            )


def plugins(process: Process) -> Iterator[Finding]:
    """link.plugin: a plug-in that TensorFlow opens at its import needs a library that is not there."""
    for path in process.plugins:
        lacking = [name for name in process.loader.attempt(path) if name not in process.sonames]
        if lacking:
            yield Finding(
                "link.plugin",
                ERROR,
                path,
                f"TensorFlow loads it on import, but it needs {', '.join(lacking)}, which is not there",
                "install the plug-in's own libraries beside it (intel-extension-for-tensorflow-lib), or remove it",
            )


def versions(process: Process) -> Iterator[Finding]:
    """link.version: a file needs a version of a library, mostly glibc's, that the mapped one does not have."""
    for each in process.loader.wrong_versions():
        host = process.host_path(each.needed_by)
        yield Finding(
            "link.version",
            _severity(process, each.opened),
            each.needed_by,
            f"it needs {each.version}, which {each.path} does not have",
            f"{newer_base(each.version)}: the site's library needs a newer C library than the image has"
            if host
            else f"install the package for this image's base, or {newer_base(each.version)}",
        )


def said(process: Process) -> set[str]:
    """Return the names and versions that are missing by an error of these rules: others need not say it again."""
    loader = process.loader
    names = {each.name for each in loader.missing if _severity(process, each.opened) == ERROR}
    return names | {each.version for each in loader.wrong_versions() if _severity(process, each.opened) == ERROR}


def _severity(process: Process, opened: str) -> str:
    """Return NOTE for what only a single file of the host would come to need.

    Most of those are there for what may open them: libfabric passes over a provider that it cannot load, and the one
    that the plan asks for is ``fabric.library``'s. The GPU driver's are opened where the image has CUDA.
    """
    if not opened.startswith(hostfiles.FOLDER + "/"):
        return ERROR
    of_driver = posixpath.basename(opened).startswith(("libcuda", "libnvidia"))
    has_cuda = any(name.startswith("libcudart.so") for name in process.sonames)
    return ERROR if of_driver and has_cuda else NOTE


def broken(process: Process) -> Iterator[Finding]:
    """link.broken: a library that is needed is cut off or damaged."""
    for each in process.loader.broken:
        yield Finding(
            "link.broken", ERROR, each.path, f"it is not a complete ELF file: {each.reason}", "build the image again"
        )
