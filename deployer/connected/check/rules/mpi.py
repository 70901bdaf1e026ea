"""Rules of MPI: that the ranks use the site's library, all of it, and find in it what they call.

Sources: the project's facts on ABIs (MPICH ABI compatibility initiative; Open MPI's library versioning), and what the
lab showed: a program with Debian's ``libmpich.so.12`` keeps the container's library and ends with exit code 0.
"""

from collections.abc import Iterator

from deployer.connected.linker.loader import Object
from deployer.connected.linker.process import CXX, FAMILIES, Process, family_of
from deployer.contract.findings import ERROR, WARNING, Finding

#: Libraries that belong to an MPI installation and must come from where its libmpi does.
_PARTS = {
    "openmpi": ("libopen-pal.so", "libopen-rte.so", "libpmix.so", "libprrte.so", "libevent", "libhwloc.so"),
    "intel": ("libfabric.so",),
    "mpich": ("libfabric.so", "libucp.so", "libucs.so"),
}


def family(process: Process) -> Iterator[Finding]:
    """mpi.family: a file of the image is built for another family of MPI than the site's."""
    mpi = process.plan.mpi
    for user in process.users if mpi else ():
        found = family_of(user.facts)
        if mpi and found and found != mpi.abi:
            yield Finding(
                "mpi.family",
                ERROR,
                user.path,
                f"it is built for {_needed(user)} ({found}), and the site's MPI is {mpi.says} ({mpi.abi})",
                f"add {mpi.abi} to mpi in the definition, build and pack again",
            )


def library(process: Process) -> Iterator[Finding]:
    """mpi.escape, mpi.rpath: the container's own MPI library would be used in place of the site's, without a word."""
    mpi = process.plan.mpi
    if mpi is None:
        return
    for user in process.users:
        for name in user.dynamic.needed:
            used = process.loader.find(name) if FAMILIES.get(name) == mpi.abi else None
            if used is not None and not process.host_path(used.path):
                by_rpath = _with_rpath(user) is not None
                yield Finding(
                    "mpi.rpath" if by_rpath else "mpi.escape",
                    ERROR,
                    user.path,
                    f"it would use {used.path} of the image, not the site's MPI: {_why(user, name)}",
                    _remedy(user, name),
                )


def cxx(process: Process) -> Iterator[Finding]:
    """mpi.cxx: a file needs Open MPI's C++ library, which the site's Open MPI no longer has.

    Where the image brings it, it brings the rest of its own Open MPI along.
    """
    for each in process.loader.objects:
        for name in each.dynamic.needed:
            if not name.startswith(CXX) or process.host_path(each.path):
                continue
            used, mpi = process.loader.find(name), process.plan.mpi
            # With another Open MPI 4 the image's own does: both have the libraries that it needs.
            fits = mpi is None or process.host_path(used.path if used else "") or mpi.version.startswith("4.")
            if used is None or not fits:
                there = "is nowhere" if used is None else "only the image has, not the site's MPI"
                yield Finding(
                    "mpi.cxx",
                    ERROR,
                    each.path,
                    f"it needs {name}, the C++ library of Open MPI up to release 4, which {there}",
                    "build it with -DOMPI_SKIP_MPICXX and -Wl,--as-needed: C++ programs do not need it",
                )


def symbols(process: Process) -> Iterator[Finding]:
    """mpi.symbols: a file calls MPI functions that the site's library does not have.

    Python loads extension modules with all symbols at once (RTLD_NOW), so each is needed. A program is linked lazily
    unless it was built otherwise, and dies when it comes to call one, which may be hours later; it names what it calls.
    A library names all that it could ever call, so that a lazy one is a warning.
    """
    for user in process.users:
        names = [name for name in user.dynamic.needed if name in FAMILIES]
        used = next(filter(None, map(process.loader.find, names)), process.library)
        if used is None or not used.facts.exports:
            continue
        # Any file that is mapped may have it: Open MPI's C++ library has what its programs want of it.
        others = (each.facts.exports for each in process.loader.objects if each is not user)
        exported = {name for exports in others for name in exports}
        absent = [name for name in user.facts.imports if name not in exported]
        if absent:
            at_once = user.dynamic.now or user.first is not process.program
            when = "" if at_once else ": it starts, and aborts when it calls one"
            shown = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
            yield Finding(
                "mpi.symbols",
                ERROR if at_once or user is process.program else WARNING,
                user.path,
                f"it calls {shown}, which {used.path} does not have{when}",
                "build it against an older MPI of this family: these functions were added later",
            )


def tree(process: Process) -> Iterator[Finding]:
    """mpi.mixed: the site's MPI library would load parts of an MPI installation from the image."""
    mpi = process.plan.mpi
    used = process.library
    if mpi is None or used is None or not process.host_path(used.path):
        return
    for each in process.loader.objects:
        name = each.dynamic.soname or ""
        if process.host_path(each.path) or not name.startswith(_PARTS.get(mpi.family, ())):
            continue
        if each.parent is not None and process.host_path(each.parent.path):
            yield Finding(
                "mpi.mixed",
                ERROR if mpi.family == "openmpi" else WARNING,
                each.path,
                f"{each.parent.path} of the site's MPI would load it from the image",
                "bind the whole installation: in the profile, add the folder that contains it to the MPI's libraries",
            )


def _needed(user: Object) -> str:
    return next(name for name in user.dynamic.needed if name in FAMILIES)


def _why(user: Object, name: str) -> str:
    owner = _with_rpath(user)
    if owner is not None:
        return f"the DT_RPATH of {owner.path} comes before LD_LIBRARY_PATH"
    if name == "libmpich.so.12":
        return "it is linked to libmpich.so.12, Debian's name, which the site's MPI does not have"
    return f"{name} is not found where the plan binds the site's"


def _with_rpath(user: Object) -> Object | None:
    """Return what has a DT_RPATH that holds for a file: the file, or one above it."""
    owner: Object | None = user
    while owner is not None and (owner.dynamic.runpath or not owner.dynamic.rpath):
        owner = owner.parent
    return owner


def _remedy(user: Object, name: str) -> str:
    if _with_rpath(user) is not None:
        return "patchelf --remove-rpath it in the Dockerfile"
    if name == "libmpich.so.12":
        return "build it against an MPICH whose library is libmpi.so.12 (PyPI's mpich), not Debian's"
    return "correct prefix and libraries of the MPI in the profile; capture it again"
