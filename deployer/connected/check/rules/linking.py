"""Rules for loader errors, such as "cannot open shared object file" or "version ... not found"."""

import posixpath
from collections.abc import Iterator

from deployer.connected.check.rules import mpi as mpi_rules
from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS
from deployer.connected.linker.loader import WrongVersion
from deployer.connected.linker.process import CXX, FAMILIES, Process
from deployer.contract.elf.machines import BY_NUMBER
from deployer.contract.rules import hostfiles
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.site.plan import NO_MPI

#: Prefixes of the names of GPU driver libraries.
_OF_DRIVER = ("libcuda.", "libcudadebugger.", "libnvidia")
#: Prefixes of symbol versions in libraries of a base: glibc, and gcc's runtime.
_OF_BASE = ("GLIBC_", "GLIBCXX_", "CXXABI_", "GCC_", "GFORTRAN_", "GOMP_", "OMP_")
#: Base images and the C library of each, oldest first. Sources: packages.debian.org/src:glibc; for the others,
#: gist.github.com/richardlau/6a01d7829cc33ddab35269dacc127680 (2025).
_GLIBC = (
    ("RHEL 8 and compatible", (2, 28)),
    ("Debian 11 (bullseye)", (2, 31)),
    ("Ubuntu 20.04", (2, 31)),
    ("RHEL 9 and compatible", (2, 34)),
    ("Ubuntu 22.04", (2, 35)),
    ("Debian 12 (bookworm)", (2, 36)),
    ("Ubuntu 24.04", (2, 39)),
    ("RHEL 10 and compatible", (2, 39)),
    ("Debian 13 (trixie)", (2, 41)),
)


def machine(process: Process) -> Iterator[Finding]:
    """link.machine: the program, or a library that it loads, is for another kind of processor.

    The loader may skip such a library and find another one with the same name.
    """
    mapped = [loaded.soname or posixpath.basename(loaded.path) for loaded in process.loader.objects]
    for path, number in process.loader.foreign.items():
        if not process.host_path(path) and not any(map(posixpath.basename(path).startswith, mapped)):
            known = BY_NUMBER.get(number)
            text = f"it is for {known.kernel if known else f'machine {number}'}, and the nodes are not"
            remedy = (
                "build it for the nodes' architecture, or install the package for it: a wheel of another platform, or "
                "a program that was copied from another machine, does not run"
            )
            yield Finding("link.machine", ERROR, path, text, remedy)


def program(process: Process) -> Iterator[Finding]:
    """link.program: the job's program is not in the image, or is not a program."""
    if process.program is None and not process.loader.foreign:
        text = f"{process.name}, which the job starts, is not in the image, or is not a program for this machine"
        remedy = "name a program of the image in the job's command; build it for the site's architecture"
        yield Finding("link.program", ERROR, process.plan.bundle, text, remedy)


def missing(process: Process) -> Iterator[Finding]:
    """link.missing: a library is neither in the image nor in a bind.

    A library is not missing if its name is the soname of another file in the image. The reason is that Python packages
    load each other's libraries before their own (Horovod's needs TensorFlow's). This exception does not apply to
    libraries that the program needs at startup, or that a library of the site needs. ``mpi.family`` reports an MPI
    library of another family. ``gpu.driver`` reports the libraries of a GPU driver, which come from the site.
    """
    mpi, program = process.plan.mpi, process.program
    imported = [lost for lost in process.unloadable if not lost.name.startswith(_OF_DRIVER)]
    for lost in dict.fromkeys([*process.loader.missing, *imported]):
        at_start = program is not None and lost.opened == program.path
        known = lost.name in process.sonames and not at_start and not process.host_path(lost.needed_by)
        other = mpi is not None and FAMILIES.get(lost.name, mpi.abi) != mpi.abi
        foreign = any(posixpath.basename(path).startswith(lost.name) for path in process.loader.foreign)
        if not known and not other and not foreign and not lost.name.startswith(CXX):
            text = f"it needs {lost.name}, which neither the image nor the site's binds have"
            family = FAMILIES.get(lost.name)
            remedy = f"add the package that has {lost.name} to the image"
            if process.host_path(lost.needed_by):
                remedy = f"bind the site's {lost.name} as well: add its folder to the MPI's libraries in the profile"
            elif lost.name.startswith(_OF_DRIVER):
                remedy = CAPTURE
            elif family and process.plan.abi == NO_MPI:  # then no site MPI is bound
                remedy = "`mpi: []` in bundle.yaml says that nothing calls MPI: "
                remedy += f"write `mpi: [{family}]`, or remove what calls it"
            severity = _severity(process, lost.opened)
            if lost.name.startswith(_OF_DRIVER) and process.plan.batch.gpus:  # the nodes have one; where is unknown
                severity = MISSING_FACTS
            yield Finding("link.missing", severity, lost.needed_by, text, remedy)


def plugins(process: Process) -> Iterator[Finding]:
    """link.plugin: a plug-in that TensorFlow opens when it is imported needs a missing library."""
    for path in process.plugins:
        lacking = [name for name in process.loader.attempt(path) if name not in process.sonames]
        if lacking:
            text = f"TensorFlow loads it on import, but it needs {', '.join(lacking)}, which is not there"
            remedy = "install the plug-in's own libraries beside it (intel-extension-for-tensorflow-lib), or remove it"
            yield Finding("link.plugin", ERROR, path, text, remedy)


def versions(process: Process) -> Iterator[Finding]:
    """link.version: a file needs a library version, usually of glibc, that the mapped library lacks."""
    escaped = {loaded.path for loaded in mpi_rules.escaped(process)}
    for wrong in process.loader.wrong_versions():
        text = f"it needs {wrong.version}, which {wrong.path} does not have"
        remedy = (
            "this is the image's own MPI library: with the site's, it is not loaded (see mpi.escape)"
            if wrong.needed_by in escaped
            else _fitting(process, wrong)
        )
        yield Finding("link.version", _severity(process, wrong.opened), wrong.needed_by, text, remedy)


def _fitting(process: Process, wrong: WrongVersion) -> str:
    """Return the remedy for two incompatible libraries, which depends on which of them is the site's."""
    needs_host, has_host = process.host_path(wrong.needed_by), process.host_path(wrong.path)
    name = posixpath.basename(wrong.path)
    of_base = wrong.version.startswith(_OF_BASE)
    if needs_host and has_host:
        return "both are the site's: capture the site again, and correct the MPI's libraries in the profile"
    if needs_host:
        newer = f"{newer_base(wrong.version)}: the site's library needs a newer one than the image has"
        return newer if of_base else f"bind the site's own {name}, or install a newer release of it in the image"
    if has_host:
        return f"the site's {name} takes the place of the image's: use a package that was built with an older one"
    if of_base:
        return f"install the package for this image's base, or {newer_base(wrong.version)}"
    return f"install the release of {name} that it was built with"


def newer_base(version: str) -> str:
    """Return the remedy for a symbol version (``GLIBC_2.38``) that an image's library lacks."""
    kind, _, number = version.partition("_")
    parts = number.split(".")
    if kind != "GLIBC" or len(parts) < 2 or not all(part.isdigit() for part in parts):
        return "build the image on a newer base"
    names = ", ".join(name for name, has in _GLIBC if has >= (int(parts[0]), int(parts[1])))
    remedy = f"build the image on a base with glibc {number} or newer"
    return f"{remedy}: {names}" if names else f"{remedy}, which no common base has yet"


def reported(process: Process) -> set[str]:
    """Return the missing names and versions that these rules report as errors, so other rules can skip them."""
    loader = process.loader
    names = {lost.name for lost in loader.missing if _severity(process, lost.opened) == ERROR}
    return names | {wrong.version for wrong in loader.wrong_versions() if _severity(process, wrong.opened) == ERROR}


def _severity(process: Process, opened: str) -> str:
    """Return NOTE for a library that only a single host file needs, otherwise ERROR.

    Most host files are bound for programs that may open them: libfabric skips a provider that it cannot load, and
    ``fabric.library`` checks the provider that the plan requests. If the image has CUDA, the GPU driver's are opened.
    """
    if not opened.startswith(hostfiles.FOLDER + "/"):
        return ERROR
    of_driver = posixpath.basename(opened).startswith(_OF_DRIVER)
    has_cuda = any(name.startswith("libcudart.so") for name in process.sonames)
    return ERROR if of_driver and has_cuda else NOTE


def broken(process: Process) -> Iterator[Finding]:
    """link.broken: a required library is truncated or damaged."""
    for file in process.loader.broken:
        remedy = "build the image again"
        yield Finding("link.broken", ERROR, file.path, f"it is not a complete ELF file: {file.reason}", remedy)
