"""Rules for MPI: that the ranks use the site's library, completely, and that it has the functions that they call.

Sources: the project's facts on ABIs (MPICH ABI compatibility initiative; Open MPI's library versioning), and results
from the lab: a program with Debian's ``libmpich.so.12`` keeps using the container's library and ends with exit code 0.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator

from deployer.connected.check.rules.case import MISSING_FACTS
from deployer.connected.linker import h5py
from deployer.connected.linker.loader import BY_PATH, LIBRARY_PATH, RPATH, RUNPATH, Object
from deployer.connected.linker.process import CXX, FAMILIES, Process
from deployer.contract.elf.linked_mpi import TEXTS
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding
from deployer.contract.site.plan import MPICH_ABI, OPENMPI, SONAMES, HostMpi

#: Libraries of an MPI installation that must come from the same place as its libmpi.
_PARTS = {
    "openmpi": ("libopen-pal.so", "libopen-rte.so", "libpmix.so", "libprrte.so", "libevent", "libhwloc.so"),
    "intel": ("libfabric.so",),
    "mpich": ("libfabric.so", "libucp.so", "libucs.so"),
    "cray": ("libfabric.so", "libpmi.so", "libpmi2.so", "libpals.so", "libcxi.so", "libxpmem.so"),
}
#: Core libraries that Open MPI's other libraries share. A copy from another release has its own data, which is empty.
_CORES = re.compile(r"^(libopen-(?:pal|rte))(?:-[0-9a-f]{8})?\.so\.")
#: Libraries for languages other than C: each of their functions calls one in the C library.
_BINDINGS = ("libmpi_mpifh", "libmpi_usempi", "libmpifort", "libmpichfort", "libmpicxx", "libmpichcxx", "libmpi_cxx")
#: Cray MPICH's switch for sending directly from GPU memory, and the prefix of the library for that.
_GPU_SUPPORT, _GTL = "MPICH_GPU_SUPPORT_ENABLED", "libmpi_gtl_"
#: The variable that makes the loader look up all functions at startup.
_NOW = "LD_BIND_NOW"
#: The name of the MPI that a file was built for, by family.
_BUILT_FOR = {MPICH_ABI: "MPICH", OPENMPI: "Open MPI"}


def family(process: Process) -> Iterator[Finding]:
    """mpi.family: a file of the image was built for an MPI family other than the site's."""
    mpi = process.plan.mpi
    for user in process.users if mpi else ():
        name = next((name for name in user.dynamic.needed if name in FAMILIES), "")
        if mpi and name and FAMILIES[name] != mpi.abi:
            text = f"it is built for {name} ({FAMILIES[name]}), and the site's MPI is {mpi.says} ({mpi.abi})"
            remedy = (
                f"build it with {_BUILT_FOR.get(mpi.abi, mpi.abi)}, so that it is linked to {SONAMES.get(mpi.abi)}; "
                "or choose a site or a partition whose MPI is of its family"
            )
            yield Finding("mpi.family", ERROR, user.path, text, remedy)


def library(process: Process) -> Iterator[Finding]:
    """mpi.escape, mpi.rpath: the container's own MPI library would silently replace the site's."""
    mpi = process.plan.mpi
    for used in escaped(process) if mpi else ():
        code = "mpi.rpath" if used.place and used.place.rule == RPATH else "mpi.escape"
        why, remedy = _explained(used, mpi)
        text = f"it would use {used.path} of the image, not the site's MPI: {why}"
        yield Finding(code, ERROR, (used.parent or used).path, text, remedy)
    for user in process.users if mpi and process.library is None else ():
        name = next((name for name in user.dynamic.needed if FAMILIES.get(name) == process.plan.abi), "")
        if name in process.sonames and user is not process.program:  # otherwise link.missing
            text = f"{LIBRARY_PATH} does not lead to the site's {name}, but the image has one, which it may open"
            remedy = f"keep {LIBRARY_PATH} as the plan sets it: look for `env -i`, `unset` and `export` in its scripts"
            yield Finding("mpi.escape", MISSING_FACTS, user.path, text, remedy)


def linked(process: Process) -> Iterator[Finding]:
    """mpi.escape: the program contains an MPI library, so no library is mapped, and a bound one has no effect."""
    program, mpi = process.program, process.plan.mpi
    if mpi and program and program.facts.linked:
        how = "; its symbols are stripped, but texts of the library are in it" if program.facts.linked == TEXTS else ""
        text = f"it has an MPI library linked into it, so the site's {mpi.library} is not used{how}"
        remedy = f"link it to a shared MPI library, {SONAMES.get(mpi.abi, 'as the site has')}"
        yield Finding("mpi.escape", ERROR, program.path, text, remedy)


def escaped(process: Process) -> list[Object]:
    """Return the mapped MPI libraries of the image, except those for a family other than the site's."""
    abi = process.plan.mpi.abi if process.plan.mpi else None
    named = {id(process.loader.find(name)) for name, family in FAMILIES.items() if family == abi}
    return [
        loaded
        for loaded in process.loader.objects
        if not process.host_path(loaded.path)
        and loaded is not process.program
        and FAMILIES.get(loaded.soname, abi) == abi
        and (id(loaded) in named or {"MPI_Init", "PMPI_Init"}.issubset(loaded.facts.exports))
    ]


def cxx(process: Process) -> Iterator[Finding]:
    """mpi.cxx: a file needs Open MPI's C++ library, which the site's Open MPI no longer has.

    If the image contains it, it also pulls in the rest of the image's Open MPI.
    """
    for loaded in process.loader.objects:
        for name in loaded.dynamic.needed:
            if not name.startswith(CXX) or process.host_path(loaded.path):
                continue
            used, mpi = process.loader.find(name), process.plan.mpi
            # With another Open MPI 4, the image's own library works: both have the libraries that it needs.
            fits = mpi is None or process.host_path(used.path if used else "") or mpi.version.startswith("4.")
            if used is None or not fits:
                there = "is nowhere" if used is None else "only the image has, not the site's MPI"
                text = f"it needs {name}, the C++ library of Open MPI up to release 4, which {there}"
                remedy = "build it with -DOMPI_SKIP_MPICXX and -Wl,--as-needed: C++ programs do not need it"
                yield Finding("mpi.cxx", ERROR, loaded.path, text, remedy)


def symbols(process: Process) -> Iterator[Finding]:
    """mpi.symbols: a file calls MPI functions that the site's library does not have.

    Python loads extension modules with all symbols at once (RTLD_NOW), so each symbol is needed. A program is linked
    lazily unless it was built otherwise. It fails when it first calls a missing function, which may be hours later; its
    files list the functions that it calls. A library lists every function that it could ever call, and no file shows
    whether the program gets there. One of MPI's own libraries for another language lists all of MPI. That is only a
    note, since the program calls only a few C functions through it.
    """
    for user in process.users:
        names = [name for name in user.dynamic.needed if name in FAMILIES]
        used = next(filter(None, map(process.loader.find, names)), process.library)
        if used is None or not used.facts.exports:
            continue
        # Any mapped file may have it: Open MPI's C++ library has the functions that its programs need.
        others = (other.facts.exports for other in process.loader.objects if other is not user)
        exported = {name for exports in others for name in exports}
        absent = [name for name in user.facts.imports if name not in exported]
        if absent:
            at_once = bool(process.variable(_NOW)) or user.dynamic.now or user.first is not process.program
            when = "" if at_once else ": it starts, and aborts when it calls one"
            shown = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
            lazy = NOTE if user.soname.startswith(_BINDINGS) else MISSING_FACTS
            text = f"it calls {shown}, which {used.path} does not have{when}"
            remedy = "build it against an older MPI of this family: these functions were added later"
            yield Finding("mpi.symbols", ERROR if at_once or user is process.program else lazy, user.path, text, remedy)


def tree(process: Process) -> Iterator[Finding]:
    """mpi.mixed: the site's MPI library would load parts of an MPI installation from the image."""
    mpi = process.plan.mpi
    used = process.library
    if mpi is None or used is None or not process.host_path(used.path):
        return
    for loaded in process.loader.objects:
        is_part = loaded.soname.startswith(_PARTS.get(mpi.family, ())) and not process.host_path(loaded.path)
        if is_part and loaded.parent is not None and process.host_path(loaded.parent.path):
            text = f"{loaded.parent.path} of the site's MPI would load it from the image"
            remedy = (
                "bind the whole installation: add the folder that contains it to the MPI's libraries in the profile"
            )
            severity = ERROR if mpi.family in ("openmpi", "cray") else WARNING
            yield Finding("mpi.mixed", severity, loaded.path, text, remedy)


def gtl(process: Process) -> Iterator[Finding]:
    """mpi.gtl: Cray MPICH is set to send from GPUs, but its library for that is not loaded: MPI_Init aborts."""
    if process.mpi_family != "cray" or process.variable(_GPU_SUPPORT) != "1" or not process.users:
        return
    loaded = [library.soname for library in process.loader.objects]
    preloaded = [posixpath.basename(path) for path in re.split("[ :]", process.variable("LD_PRELOAD"))]
    if not any(name.startswith(_GTL) for name in [*loaded, *preloaded]):
        text = f"{_GPU_SUPPORT} is 1, and no {_GTL}*.so is loaded: MPI_Init would abort"
        remedy = f"set {_GPU_SUPPORT} to 0 in the environment of the partition, or LD_PRELOAD to the site's library "
        remedy += "(gtl/lib beside the MPI), which must be in binds of the MPI"
        yield Finding("mpi.gtl", ERROR, process.name, text, remedy)


def doubled(process: Process) -> Iterator[Finding]:
    """mpi.mixed: libraries of two Open MPI releases are in one process.

    MPI_Init fails, or the program crashes, because objects created by one library are not in the other's data.
    """
    cores: dict[str, list[Object]] = defaultdict(list)
    for loaded in process.loader.objects:
        name = _CORES.match(loaded.soname)
        if name:
            cores[name[1]].append(loaded)
    for objects in cores.values():
        first = next((core for core in objects if process.host_path(core.path)), objects[0])
        remedy = (
            f"build the image on a base whose Open MPI has {posixpath.basename(first.found)} too, or choose a site "
            "whose Open MPI is of the image's release"
        )
        for core in objects:
            if core is not first:
                text = (
                    f"in {process.name}, it would load {core.path} beside {first.path}, of another release of Open MPI"
                )
                yield Finding("mpi.mixed", ERROR, (core.parent or core).path, text, remedy)


def serial(process: Process) -> Iterator[Finding]:
    """mpi.serial: h5py uses its serial build because its launcher sets none of the variables that it checks."""
    if process.serial:
        needed = h5py.FEATURE in process.text
        launchers = ", ".join(dict.fromkeys(option.launcher for option in process.serial))
        text = f"it takes its serial build: {launchers} sets none of {', '.join(h5py.VARIABLES)}"
        text += f"; the program asks for {h5py.FEATURE!r}, which only the build with MPI has" if needed else ""
        remedy = f"set {h5py.ALWAYS}=1 by ENV in the Dockerfile, or start the program by `env {h5py.ALWAYS}=1`"
        yield Finding("mpi.serial", ERROR if needed else NOTE, h5py.NAME, text, remedy)
    elif process.serial is not None:
        text = f"only its build with MPI is in the image; {h5py.CHOOSES[1:]}, which chooses it, is missing"
        yield Finding("mpi.serial", ERROR, h5py.NAME, text, f"install {h5py.PACKAGE} as well")


def _explained(used: Object, mpi: HostMpi | None) -> tuple[str, str]:
    """Return why the image's MPI library is used, and what to do about it."""
    name, rule = posixpath.basename(used.found), used.place.rule if used.place else BY_PATH
    owner = used.place.owner.path if used.place and used.place.owner else ""
    site = posixpath.basename(mpi.library) if mpi else ""
    if rule == RPATH:
        return f"the DT_RPATH of {owner} comes before LD_LIBRARY_PATH", (
            f"patchelf --remove-rpath {owner} in the Dockerfile, or link it with -Wl,--enable-new-dtags: a DT_RUNPATH "
            "comes after LD_LIBRARY_PATH"
        )
    if rule == BY_PATH:
        return "it is opened by its path", f"let it find {site} by its name, not by a path"
    if name == "libmpich.so.12":
        return "it is linked to libmpich.so.12, Debian's name, which the site's MPI does not have", (
            "build it against an MPICH whose library is libmpi.so.12 (PyPI's mpich), not Debian's"
        )
    leads = {RUNPATH: f", and the DT_RUNPATH of {owner} leads to it"}
    leads[LIBRARY_PATH] = ", and the image's LD_LIBRARY_PATH leads to it"
    why = f"{name} is not found where the plan binds the site's{leads.get(rule, '')}"
    if name != site:
        return why, f"link it to {site}, which the site's MPI has, in place of {name}"
    return why, "correct prefix and libraries of the MPI in the profile; capture it again"
