"""MPI installations, found through modules, environment, PATH and common folders, and the facts of their files."""

import glob
import mmap
import os
import re
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Record
from deployer.contract.elf.dynamic import Facts
from deployer.site.capture.software.libraries import Libraries, LibraryTree
from deployer.site.capture.software.module_command import Module
from deployer.site.capture.software.modules import MPI_VARIABLES
from deployer.site.capture.tools import Tools, determined
from deployer.system import elf

_PROGRAMS = ("mpicc", "mpirun", "mpiexec.hydra", "mpiexec")
#: Folders below a prefix that contain libmpi, and the sonames of the C library by ABI.
_FOLDERS = ("lib-abi-mpich", "lib", "lib64", "lib/release", "intel64/lib/release", "intel64/lib",
            "lib/x86_64-linux-gnu", "lib64/openmpi/lib", "lib/aarch64-linux-gnu")  # fmt: skip
_SONAMES = ("libmpi.so.12", "libmpi.so.40", "libmpi.so.20", "libmpich.so.12", "libmpi_cray.so.12", "libmpi_gnu_*.so.12")
#: Cray MPICH's folder with its library under MPICH's ABI name.
_CRAY_ABI = "lib-abi-mpich"
#: The folder of links to the current libraries of Cray's programming environment (PMI, PALS), and below a prefix, Cray
#: MPICH's libraries for sending from GPUs.
_CRAY_LINKS, _CRAY_GTL = "/opt/cray/pe/lib64", "../../../gtl/lib/libmpi_gtl_*.so.0"
#: Common installation folders, as shell patterns.
_USUAL = ("/opt/*", "/opt/*/*", "/opt/*/*/*", "/usr/lib64/openmpi", "/usr/lib64/mpich*", "/usr/lib64/mvapich*",
          "/usr/mpi/*/*", "/opt/cray/pe/mpich/*/ofi/*/*", "/usr")  # fmt: skip
#: Folders below a prefix that contain nothing a job loads.
_SKIPPED = ("debug", "debug_mt", "release_mt", "mic", "doc", "man", "share", "include", "benchmarks", "pkgconfig",
            "python", "test")  # fmt: skip
_SYSTEM = ("/", "/usr", "/usr/local")
#: ompi_info's names for folders of Open MPI, and the variables through which the library finds them.
_OPENMPI_FOLDERS = (
    ("pkglibdir", "OPAL_PKGLIBDIR"),
    ("pkgdatadir", "OPAL_PKGDATADIR"),
    ("sysconfdir", "OPAL_SYSCONFDIR"),
)
#: The same for PMIx, relative to the folder of its library.
_PMIX_FOLDERS = (("pmix", "PMIX_PKGLIBDIR"), ("../share/pmix", "PMIX_PKGDATADIR"))

_MAX_ENTRIES = 20000
_MAX_LIBRARIES = 600
_LIBRARY = re.compile(r"\.so(\.[\w.]+)?$")

#: The variables of a module that tune MPI and the fabric, without those for compiler wrappers.
_TUNING = re.compile(r"^(I_MPI|FI|UCX|OMPI_MCA|PSM2|PSM3|HFI|MPICH|MV2|MVP)_\w+$")
_NO_TUNING = re.compile(r"^(I_MPI_(CC|CXX|FC|F77|F90|ROOT|.*_PATH)|MPICH_(HOME|DIR|CC|CXX|FC))$")

#: The start of MPI_Get_library_version by family; the group is the version.
_SAYS = (
    ("intel", re.compile(r"Intel\(R\) MPI Library (\d[\w.]*)")),
    ("openmpi", re.compile(r"Open MPI v(\d[\w.]*)")),
    ("cray", re.compile(r"CRAY MPICH version (\d[\w.]*)")),
    ("mvapich", re.compile(r"MVAPICH2?\S* [Vv]ersion\s*: *(\d[\w.]*)")),
    ("mpich", re.compile(r"MPICH [Vv]ersion: *(\d[\w.]*)")),
)
#: Words that occur in the files of each family, the most specific first.
_WORDS = (("intel", b"Intel(R) MPI Library"), ("cray", b"CRAY MPICH"), ("mvapich", b"MVAPICH"), ("mpich", b"MPICH"))
#: Queries the library in a separate process; this function may be called before MPI_Init.
_ASK = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
text, length = ctypes.create_string_buffer(8193), ctypes.c_int()
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL).MPI_Get_library_version(text, ctypes.byref(length))
sys.stdout.buffer.write(text.value)
"""


class MpiFacts(NamedTuple):
    """The MPI installations of a machine.

    Attributes:
        mpi: a profile's ``mpi``.
        trees: the facts of each installation's files.
        system: the facts of the system libraries that they need.
    """

    mpi: Record
    trees: Dict[str, LibraryTree]
    system: LibraryTree


class _Place(NamedTuple):
    prefix: str
    folder: str
    library: str
    module: Optional[Module]

    @property
    def path(self) -> str:
        return self.below(self.folder, self.library)

    @property
    def in_system(self) -> bool:
        """Whether the installation shares the system's folders."""
        return self.prefix in _SYSTEM

    @property
    def added(self) -> List[str]:
        """The folders that the installation's modules add to the loader's search path."""
        return self.module.added("LD_LIBRARY_PATH") if self.module else []

    def below(self, *parts: str) -> str:
        return os.path.join(self.prefix, *parts)


def find(
    tools: Tools, libraries: Libraries, modules: Sequence[Module], named: Sequence[str], source: Record
) -> MpiFacts:
    """Return the MPI installations on this machine; ``named`` are prefixes from the user."""
    found = MpiFacts({}, {}, LibraryTree({}, {}))
    known = set()
    for place in _places(tools, modules, named):
        real = os.path.realpath(place.path)
        if real in known:
            continue
        known.add(real)
        described = _describe(tools, libraries, place)
        if described is None:
            continue
        name = _free_name(described, found.mpi)
        tree = _tree(tools, libraries, place, described)
        search = [*map(place.below, described["libraries"]), *place.added]
        pmi = _pmi(place)
        if described["family"] == "cray":
            search.append(_CRAY_LINKS)
            pmi += sorted(map(os.path.normpath, glob.glob(os.path.join(glob.escape(place.prefix), _CRAY_GTL))))
        roots = [real, *map(place.below, tree.files), *pmi]
        system = libraries.closure(roots, search, "" if place.in_system else place.prefix)
        for path in pmi:
            libraries.add(system, path)
        folders = dict(_folders(tools, place, described["family"]), **_pmix_folders(system))
        opened = (path for folder in folders.values() for path in sorted(glob.glob(glob.escape(folder) + "/*.so")))
        system.update(libraries.closure([libraries.add(system, path) for path in opened], search))
        # Libraries with a prefix of their own, as from a site's package manager, instead of the system's.
        elsewhere = ("/usr/", "/lib/", "/lib64/", _CRAY_LINKS + "/")
        own = (path for path in [*system.files, *system.links] if not path.startswith(elsewhere))
        binds = sorted({_above(os.path.dirname(path)) for path in own})
        found.mpi[name] = {**described, **determined({"folders": folders, "binds": binds}), "source": source}
        found.trees[name] = tree
        found.system.update(system)
    return found


def _folders(tools: Tools, place: _Place, family: str) -> Dict[str, str]:
    """Return the folders of an Open MPI outside its prefix, by variable; all of them if it has the system's prefix.

    Folders named ``etc``, such as /etc and /usr/local/etc, are omitted because they contain settings of all kinds.
    """
    program = place.below("bin", "ompi_info")
    if family != "openmpi" or not os.access(program, os.X_OK):
        return {}
    search = {"OPAL_PREFIX": place.prefix, "LD_LIBRARY_PATH": place.below(place.folder)}
    answer = tools.ask([program, "--path", "all", "--parsable"], environment={} if place.in_system else search)
    told = dict(line.split(":")[1:3] for line in answer.out.splitlines() if line.count(":") == 2) if answer else {}
    found = {variable: os.path.normpath(told[name]) for name, variable in _OPENMPI_FOLDERS if told.get(name)}
    return {
        variable: path
        for variable, path in found.items()
        if path.startswith("/") and os.path.basename(path) != "etc" and os.path.isdir(path)
        and (place.in_system or not path.startswith(place.prefix + "/"))
    }  # fmt: skip


def _pmix_folders(system: LibraryTree) -> Dict[str, str]:
    """Return the folders of the system's PMIx, if an MPI needs it."""
    library = next((path for path in system.files if os.path.basename(path).startswith("libpmix.so")), None)
    if library is None:
        return {}
    paths = {variable: os.path.join(os.path.dirname(library), inner) for inner, variable in _PMIX_FOLDERS}
    return {variable: os.path.normpath(path) for variable, path in paths.items() if os.path.isdir(path)}


def _pmi(place: _Place) -> List[str]:
    """Return the scheduler's PMI library that Intel MPI is configured to open, if it is elsewhere."""
    path = (place.module.sets if place.module else os.environ).get("I_MPI_PMI_LIBRARY", "")
    return [path] if os.path.isfile(path) and not path.startswith(place.prefix + "/") else []


def _places(tools: Tools, modules: Sequence[Module], named: Sequence[str]) -> Iterator[_Place]:
    """Yield the places of MPI libraries: first the user's, then from modules, environment, PATH, and folders."""
    candidates: List[Tuple[str, Optional[Module]]] = []
    for each in modules:
        roots = [each.sets[name] for name in MPI_VARIABLES if name in each.sets]
        roots += [_above(value) for name, value in each.adds if name in ("PATH", "LD_LIBRARY_PATH")]
        candidates += [(root, each) for root in roots if root.startswith("/")]
    owners = {os.path.normpath(prefix): module for prefix, module in reversed(candidates)}
    candidates = [*((prefix, owners.get(os.path.normpath(prefix))) for prefix in named), *candidates]
    candidates += [(os.environ[name], None) for name in MPI_VARIABLES if name in os.environ]
    for program in _PROGRAMS:
        for folder in os.environ.get("PATH", "").split(":"):
            path = os.path.join(folder, program)
            if os.path.isfile(path):
                candidates += [(_above(folder), None), (_above(os.path.dirname(os.path.realpath(path))), None)]
    for pattern in _USUAL:
        if tools.answers("/" + pattern.split("/")[1]):
            candidates += [(path, None) for path in sorted(glob.glob(pattern))]
    distinct: Dict[str, Optional[Module]] = {}
    for prefix, module in candidates:
        distinct.setdefault(os.path.normpath(prefix), module)
    for prefix, module in distinct.items():
        if not prefix.startswith(("/opt/", "/usr")) and not (prefix.startswith("/") and tools.answers(prefix)):
            continue
        places = list(_libraries_below(prefix, module))
        yield from places if prefix in _SYSTEM else places[:1]  # packages put several among the system's libraries
        if not places and prefix in named:
            tools.note(f"{prefix}: no MPI library below it")


def _above(folder: str) -> str:
    """Return the prefix for a folder of programs or libraries: the parent of ``bin`` or ``lib``."""
    path = os.path.normpath(folder)
    for tail in (*_FOLDERS, "intel64/bin", "bin"):
        if path.endswith("/" + tail):
            return path[: -len(tail) - 1]
    return os.path.dirname(path)


def _libraries_below(prefix: str, module: Optional[Module]) -> Iterator[_Place]:
    """Yield the MPI libraries below a prefix, the best one first."""
    for folder in _FOLDERS:
        for soname in _SONAMES:
            for path in sorted(glob.glob(os.path.join(glob.escape(os.path.join(prefix, folder)), soname))):
                if os.path.isfile(path):
                    yield _Place(prefix, folder, os.path.basename(path), module)


def _describe(tools: Tools, libraries: Libraries, place: _Place) -> Optional[Record]:
    """Return the profile entry for an installation; None if the file is not an MPI library."""
    path = place.path
    facts = libraries.facts(os.path.realpath(path))
    if facts is None or "MPI_Init" not in facts.exports:
        tools.note(f"{path} is not an MPI library")
        return None
    searched = [place.folder, *_beside(place)]
    if place.folder == _CRAY_ABI and os.path.isdir(place.below("lib")):
        searched.append("lib")  # the Fortran libraries, and the targets of the links
    says = _says(tools, path, [*map(place.below, searched), *place.added])
    family, version, beginning = _identified(says)
    family = family or _family_of_file(path, facts)
    if family is None:
        tools.note(
            "{}: the family of this MPI is unknown: {}".format(path, says[:80] or "it did not report its version")
        )
        return None
    modules = (*place.module.before, place.module) if place.module else ()
    sets = {name: value for each in modules for name, value in each.sets.items()}
    chain = place.module.chain if place.module else []
    providers = _providers(place)
    try:
        identity = elf.identity(path)
    except DeployerError as error:
        identity = None
        tools.note(error.message)
    return determined(
        {
            "family": family,
            "version": version,
            "prefix": place.prefix,
            "library": f"{place.folder}/{place.library}",
            "libraries": searched,
            "says": beginning,
            "providers": None if providers in searched else providers,
            "launcher": _launcher(place, family),
            "module": chain if len(chain) > 1 else "".join(chain),
            "environment": {
                name: sets[name] for name in sorted(sets) if _TUNING.match(name) and not _NO_TUNING.match(name)
            },
            "soname": facts.dynamic.soname,
            "identity": identity,
        }
    )


def _launcher(place: _Place, family: str) -> Optional[str]:
    """Return the path of the installation's own launcher below its prefix; it is unknown who owns /usr/bin/mpirun."""
    if place.in_system:
        return None
    program = "mpirun" if family == "openmpi" else "mpiexec.hydra"
    launchers = [f"{folder}/{program}" for folder in ("bin", "intel64/bin")]
    return next((launcher for launcher in launchers if os.access(place.below(launcher), os.X_OK)), None)


def _beside(place: _Place) -> List[str]:
    """Return the folder of the installation's own libfabric, if libmpi is in a different one."""
    folders = (place.folder, "libfabric/lib", "lib/libfabric", "opt/mpi/libfabric/lib", "intel64/libfabric/lib")
    having = [folder for folder in folders if os.path.exists(place.below(folder, "libfabric.so.1"))]
    return [folder for folder in having[:1] if folder != place.folder]


def _providers(place: _Place) -> Optional[str]:
    folders = [place.folder, *_beside(place)]
    inner = [os.path.join(folder, name) for folder in folders for name in ("prov", "libfabric", ".")]
    having = (each for each in inner if glob.glob(os.path.join(glob.escape(place.below(each)), "lib*-fi.so")))
    return next(map(os.path.normpath, having), None)


def _says(tools: Tools, path: str, folders: Sequence[str]) -> str:
    """Return the first line of MPI_Get_library_version; empty if it cannot be called."""
    if not sys.executable:
        return ""
    search = ":".join([*folders, *filter(None, [tools.environment.get("LD_LIBRARY_PATH")])])
    argv = [sys.executable, "-I", "-S", "-c", _ASK, path]
    answer = tools.ask(argv, environment={"LD_LIBRARY_PATH": search}, name="MPI_Get_library_version of " + path)
    return next((" ".join(line.split()) for line in answer.out.splitlines() if line.strip()), "") if answer else ""


def _identified(says: str) -> Tuple[Optional[str], Optional[str], Optional[str]]:
    """Return family and version from the text, and its start, which contains both; the rest differs between builds."""
    matches = ((family, pattern.search(says)) for family, pattern in _SAYS)
    known = ((family, match.group(1), says[: match.end()]) for family, match in matches if match)
    return next(known, (None, None, None))


def _family_of_file(path: str, facts: Facts) -> Optional[str]:
    """Return the family of a library that could not be called, from its symbols or from words in the file."""
    if any(name.startswith("ompi_mpi_") for name in facts.exports):
        return "openmpi"
    try:
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return next((family for family, words in _WORDS if data.find(words) >= 0), None)
    except (OSError, ValueError):
        return None


def _free_name(described: Record, taken: Record) -> str:
    words = [described["family"], described.get("version")]
    name = re.sub(r"[^a-z0-9._-]", "-", "-".join(word for word in words if word))
    names = (name, *("%s-%d" % (name, number) for number in range(2, len(taken) + 2)))
    return next(free for free in names if free not in taken)


def _tree(tools: Tools, libraries: Libraries, place: _Place, described: Record) -> LibraryTree:
    """Return the facts of all libraries below the prefix that a job could load, including plug-ins.

    If the installation shares the system's folders, only its own libraries for C and other languages are included. The
    other libraries belong to the system.
    """
    tree = LibraryTree({}, {})
    if place.in_system:
        for path in [place.path, *_bindings(libraries, place.path, described.get("soname"))]:
            _add(tree, libraries, place.prefix, path)
            _add(tree, libraries, place.prefix, os.path.realpath(path))
        return tree
    entries = 0
    for folder, folders, names in os.walk(place.prefix):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        entries += len(names)
        for name in [*links, *sorted(filter(_LIBRARY.search, names))]:
            if len(tree.files) < _MAX_LIBRARIES:
                _add(tree, libraries, place.prefix, os.path.join(folder, name))
        if entries > _MAX_ENTRIES or len(tree.files) >= _MAX_LIBRARIES or not tools.left:
            tools.note(f"{place.prefix}: has more files than were examined")
            break
    return tree


def _bindings(libraries: Libraries, path: str, soname: Optional[str]) -> List[str]:
    """Return the libraries next to an MPI library that serve other languages, by the names that programs need."""
    paths = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "libmpi*.so.*")))
    known = ((each, libraries.facts(os.path.realpath(each))) for each in paths)
    dynamic = ((each, facts.dynamic) for each, facts in known if facts)
    return [each for each, its in dynamic if its.soname == os.path.basename(each) and soname in its.needed]


def _add(tree: LibraryTree, libraries: Libraries, prefix: str, path: str) -> None:
    inner = os.path.relpath(path, prefix)
    if os.path.islink(path):
        tree.links[inner] = os.readlink(path)
        return
    facts = libraries.facts(path)
    if facts is not None:
        tree.files[inner] = facts
