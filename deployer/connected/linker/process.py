"""A dry run of a rank's process: the job's program and the MPI-calling files of its Python packages, under a plan."""

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deployer.connected.linker import h5py, index, plugins
from deployer.connected.linker.index import Index
from deployer.connected.linker.job_filesystem import LINK, Files, JobFilesystem
from deployer.connected.linker.loader import LIBRARY_PATH, Loader, Missing, Object
from deployer.connected.linker.package_imports import PACKAGED
from deployer.connected.linker.starts.python import python_command
from deployer.connected.linker.starts.python.python_packages import MissingModule
from deployer.connected.linker.starts.python.python_syntax import Unreadable
from deployer.connected.linker.starts.removed import Removed
from deployer.connected.linker.starts.words import known
from deployer.contract.bundle.command import variables
from deployer.contract.bundle.manifest import Image
from deployer.contract.elf.dynamic import Facts
from deployer.contract.rules import hostfiles
from deployer.contract.site.plan import MPICH_ABI, OPENMPI, Plan, StartOption

#: Libraries that MPI programs are linked to, with the family of each. libmpich.so.12 is Debian's own name for MPICH's
#: library. libmpi_abi.so.1 is the standard ABI of MPI 5; newer libraries of MPICH's family provide it in addition.
FAMILIES = {
    "libmpi.so.12": MPICH_ABI, "libmpich.so.12": MPICH_ABI, "libmpi_abi.so.1": MPICH_ABI, "libmpi.so.40": OPENMPI,
}  # fmt: skip

#: Prefix of Open MPI's C++ library, which release 5 no longer has.
CXX = "libmpi_cxx.so."

#: The folder where packages put plug-ins that TensorFlow opens when it is imported.
_TENSORFLOW_PLUGINS = "/tensorflow-plugins/"
_PACKAGES = ("/site-packages/", "/dist-packages/")
#: Libraries that only the tools of an Open MPI installation are linked to: ompi_info, mpirun.
_TOOLS = re.compile(r"^libopen-(pal|rte)\.so|^libprrte\.so")
#: Modules of NVSHMEM (in the wheels of JAX and PyTorch for GPUs) with which its ranks find each other through MPI. It
#: opens one if this variable is MPI or SHMEM; the other values (PMI, UID) work without MPI.
NVSHMEM_BY_MPI = re.compile(r"^nvshmem_bootstrap_(mpi|shmem)\.so")
_NVSHMEM_CHOICE = "NVSHMEM_BOOTSTRAP"
_X86_64, _I386 = 62, 3
#: For each OCI architecture name: the machines whose programs a Linux of that architecture runs.
_RUN_BY = {"amd64": (_X86_64, _I386), "arm64": (183,), "ppc64le": (21,), "s390x": (22,), "riscv64": (243,)}
#: The kernel's limit for scripts whose interpreter is itself a script.
_MAX_INTERPRETERS = 5


#: A file of a Python package: its path below the folder of packages, that folder's overlay ("": the image), its path
#: in the container, and its facts.
_PythonFile = tuple[str, str, str, Facts]


class Overlay(NamedTuple):
    """Python packages at ``target``, which take precedence over the image's own."""

    target: str
    files: Index


class Process(NamedTuple):
    """The files mapped when a program runs and each MPI-calling file in ``users`` is loaded.

    Attributes:
        passed_over: users for an MPI family other than the site's; their package also has one for the site's.
        plugins: plug-ins of TensorFlow.
        command: the command to start.
        via: the wrappers that start it.
        removed: variables that the wrappers removed, possibly including the launcher's.
        may_import: why it may not import all of its packages; empty if it does.
        may_load: the module of R, Ruby or another language that it may load; empty if none was added.
        serial: the start options with which h5py uses its serial build; without an option, the file that selects the
            build is missing; None: it uses its MPI build, or is not imported.
        text: the Python script; empty if it is unknown.
        missing: missing Python modules that make it fail.
        unreadable: Python files that it needs to read but cannot.
        unloadable: missing libraries of extension modules that make it fail.
        environment: the variables that the program receives; an unknown value is an UnknownWord.
        packages: the packages that it imports; None if they are unknown, or if it is not a Python program.
    """

    plan: Plan
    view: JobFilesystem
    loader: Loader
    program: Object | None
    users: list[Object]
    sonames: frozenset[str]
    plugins: Sequence[str] = ()
    command: str = ""
    via: str = ""
    removed: frozenset[Removed] = frozenset()
    may_import: str = ""
    may_load: str = ""
    serial: Sequence[StartOption] | None = None
    text: str = ""
    missing: Sequence[MissingModule] = ()
    unreadable: Sequence[Unreadable] = ()
    unloadable: Sequence[Missing] = ()
    packages: Collection[str] | None = None
    passed_over: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def variable(self, name: str) -> str:
        """Return the value of a variable in the program's environment; empty if it is unset or unknown."""
        value = self.environment.get(name, "")
        return value if known([value]) else ""

    @property
    def name(self) -> str:
        """Return the program's path, or the command if it was not found."""
        return self.program.path if self.program else self.command

    @property
    def uses_mpi(self) -> bool:
        """Return whether the program's files show that it calls MPI."""
        inside = self.program is not None and self.program.facts.linked is not None
        return bool(self.users) or self.library is not None or inside

    @property
    def mpi_family(self) -> str:
        """Return the family of the site's MPI, such as "intel"; empty if the plan has none."""
        return self.plan.mpi.family if self.plan.mpi else ""

    @property
    def is_python(self) -> bool:
        """Return whether the program is a Python, or embeds one, and so may load packages."""
        return _is_python(self.loader)

    @property
    def library(self) -> Object | None:
        """Return the mapped MPI library, if any."""
        return next(filter(None, map(self.loader.find, FAMILIES)), None)

    def host_path(self, path: str) -> bool:
        """Return whether a container path is within what the plan binds from the site."""
        folders = [hostfiles.FOLDER, *(bind.target for bind in self.plan.binds)]
        return any(_is_below(path, folder) for folder in folders)


def family_of(facts: Facts) -> str | None:
    """Return the MPI family that a file is linked to; None if it is linked to no MPI library."""
    return next((FAMILIES[name] for name in facts.dynamic.needed if name in FAMILIES), None)


def callers(layers: Sequence[Overlay]) -> list[str]:
    """Return the programs that call MPI directly or through a library, without the tools of an MPI installation.

    ``layers`` are the image, with an empty target, and the overlays.
    """
    places = list(_elf_files(layers))
    leading = set(FAMILIES)
    needs = [(_soname(path, facts), facts.dynamic.needed) for path, facts in places]
    while True:  # libraries that need a library that calls MPI
        more = {name for name, needed in needs if name not in leading and not leading.isdisjoint(needed)}
        if not more:
            break
        leading |= more
    return sorted(
        path
        for path, facts in places
        if facts.linked
        or (
            facts.dynamic.interpreter is not None
            and (_calls(facts) or not leading.isdisjoint(facts.dynamic.needed))
            and not any(map(_TOOLS.match, facts.dynamic.needed))
        )
    )


def modules(files: Index) -> list[str]:
    """Return the image's MPI-calling files that programs such as R, Ruby or Perl may load.

    They are shared objects without a soname, since nothing is linked to them. Python's files are left out, because its
    imports are followed.
    """
    return sorted(
        path
        for path, entry in files.entries.items()
        if entry.facts
        and _calls(entry.facts)
        and entry.facts.dynamic.interpreter is None
        and entry.facts.dynamic.soname is None
        and not PACKAGED.match(path)
    )


def _elf_files(layers: Sequence[Overlay]) -> Iterator[tuple[str, Facts]]:
    for target, files in layers:
        yield from ((target + path, entry.facts) for path, entry in files.entries.items() if entry.facts)


def _soname(path: str, facts: Facts) -> str:
    return facts.dynamic.soname or posixpath.basename(path)


class Start(NamedTuple):
    """The input of a dry start.

    Attributes:
        command: the program's path, or its name in PATH.
        packages: the paths of the Python packages that a Python program imports; None: every package that calls MPI.
        environment: the variables that the program receives; None: those of the plan and the image.
        script: the Python file or ``-c TEXT`` that it runs, if known.
        module: another file that it loads.
        extensions: extension modules that make it fail if they are missing.
    """

    command: str
    packages: Collection[str] | None = None
    environment: Mapping[str, str] | None = None
    script: str = ""
    module: str = ""
    extensions: Sequence[str] = ()


def start(
    plan: Plan, image: Image, files: Index, overlays: Sequence[Overlay], host: Mapping[str, Files], wanted: Start
) -> Process:
    """Start a program dry. ``host`` maps the plan's bind targets to the site's files."""
    environment, packages, script = wanted.environment, wanted.packages, wanted.script
    single = _single(plan, files, host)
    view = filesystem(files, overlays, {**host, hostfiles.FOLDER: single})
    if environment is None:
        environment = variables(image.env)
        searched = hostfiles.library_path(plan.environment, environment)
        environment = {**environment, **plan.environment, LIBRARY_PATH: searched}
    path = _interpreter(view, image, _program(view, image, wanted.command))
    facts = view.facts(path) if path else None
    own_machine = facts.dynamic.machine if facts else _X86_64
    runnable = _RUN_BY.get(image.architecture, (own_machine,))
    machine = own_machine if own_machine in runnable else runnable[0]
    loader = Loader(view, environment.get(LIBRARY_PATH, "").split(":"), machine)
    program = loader.start(path) if path else None
    text = script
    if not script.startswith("-c "):
        text = view.content(script).decode("utf-8", "replace") if script.startswith("/") else ""
    is_python = _is_python(loader)
    python_files = list(_python_files(files, overlays)) if is_python else []
    nvshmem = environment.get(_NVSHMEM_CHOICE, "").upper() in ("MPI", "SHMEM")
    users, passed_over = [], []
    serial: Sequence[StartOption] | None = None
    for group in _groups(python_files, packages, nvshmem):
        families = {path: family_of(facts) for path, facts in group.items()}
        for path in sorted(group):
            if h5py.is_parallel_build(path):
                options = [o for o in plan.containers if not h5py.is_parallel(environment, o, text)]
                selects = h5py.selects(path, view, text)
                if options or not selects:
                    serial = options if selects else []
                    continue
            if len(group) > 1 and plan.abi in families.values() and families[path] != plan.abi:
                passed_over.append(path)
            else:
                users.append(loader.dlopen(path))
    users.append(loader.dlopen(wanted.module) if wanted.module else None)
    # The program itself, and libraries of the image that call MPI on behalf of others.
    taken = set(map(id, users))
    users += [
        loaded
        for loaded in loader.objects
        if id(loaded) not in taken
        and _calls(loaded.facts)
        and not any(_is_below(loaded.path, target) for target in host)
    ]
    for item in plan.host:  # each is meant to be opened by MPI, a provider or a GPU program
        if item.kind == hostfiles.FILE and single.kind(f"/{item.name}"):
            loader.dlopen(item.target)
    if plan.mpi and plan.mpi.family == "intel":
        plugins.open_fabric(loader)
    elves = _elf_files([Overlay("", files), *overlays])
    sonames = frozenset(_soname(path, facts) for path, facts in elves if facts.dynamic.machine == machine)
    tensorflow = packages is None or any(posixpath.basename(top) == "tensorflow" for top in packages)
    opened = [path for inner, _, path, _ in python_files if tensorflow and inner.startswith(_TENSORFLOW_PLUGINS)]
    unloadable = loader.lacking(wanted.extensions) if is_python else ()
    return Process(
        plan, view, loader, program, users=list(filter(None, users)), sonames=sonames, plugins=opened,
        command=wanted.command, may_load=wanted.module, serial=serial, text=text, unloadable=unloadable,
        packages=packages, passed_over=passed_over, environment=environment,
    )  # fmt: skip


def _is_python(loader: Loader) -> bool:
    """Return whether the program is a Python, or embeds one, and so may load packages."""
    paths = [posixpath.basename(loaded.path) for loaded in loader.objects]
    return bool(paths) and (python_command.is_python(paths[0]) or any(name.startswith("libpython") for name in paths))


def is_of(path: str, packages: Collection[str]) -> bool:
    """Return whether a file belongs to one of the packages, which are given as paths of folders and modules."""
    return any(path.startswith((top + "/", top + ".")) or path == top for top in packages)


def filesystem(files: Index, overlays: Sequence[Overlay], host: Mapping[str, Files]) -> JobFilesystem:
    """Return the files that a job sees. ``host`` maps the plan's bind targets to the site's files."""
    return JobFilesystem(files, [*host.items(), *overlays])


def _single(plan: Plan, image: Index, host: Mapping[str, Files]) -> Index:
    """Return the folder of single host files as this image receives it; files that were not captured are left out."""
    site, own = JobFilesystem(host.get(hostfiles.FOLDER, index.of_site({}, {}))), JobFilesystem(image)
    paths: dict[str, str | None] = {}
    links: dict[str, str] = {}
    for item in hostfiles.for_image(plan.host, lambda path: own.resolve(path) is not None):
        real = site.resolve(item.source)
        if item.kind == hostfiles.LINK:
            links[f"/{item.name}"] = item.source
        elif item.kind == hostfiles.FILE:
            paths[f"/{item.name}"] = real
        elif real:
            paths.update({f"/{item.name}/{name}": site.resolve(f"{real}/{name}") for name in site.names(real)})
    files = {name: site.facts_or_none(path) for name, path in paths.items() if path and site.file(path)}
    return index.of_site({name: facts for name, facts in files.items() if facts}, links)


def _program(view: JobFilesystem, image: Image, command: str) -> str | None:
    """Return the path of a command in the image's PATH, found as execvp does."""
    if "/" in command:
        return view.resolve(command)
    folders = variables(image.env).get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    return next(filter(None, (view.file(f"{folder}/{command}") for folder in folders)), None)


def _interpreter(view: JobFilesystem, image: Image, path: str | None) -> str | None:
    """Return the program that the kernel starts for a path: the interpreter of a script, otherwise the path itself."""
    for _ in range(_MAX_INTERPRETERS):
        if path is None or not view.file(path):
            return None
        if view.facts_or_none(path) is not None:
            return path
        line = view.content(path).partition(b"\n")[0]
        names = [os.fsdecode(word) for word in line[2:].split()] if line.startswith(b"#!") else []
        if names and posixpath.basename(names[0]) == "env":
            names = [name for name in names[1:] if not name.startswith("-") and "=" not in name]
        path = _program(view, image, names[0]) if names else None
    return None


def _calls(facts: Facts) -> bool:
    """Return whether a file calls MPI and is not itself an MPI library.

    A program may contain MPI's data through copy relocations; Open MPI programs may export ``ompi_mpi_comm_world``.
    """
    return bool(facts.imports) and "MPI_Init" not in facts.exports


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


def _groups(
    files: Iterable[_PythonFile], packages: Collection[str] | None, nvshmem: bool
) -> Iterator[dict[str, Facts]]:
    """Yield the imported files of Python packages that call MPI, in groups of files that stand for the same module.

    For example, mpi4py has ``MPI.mpich.*.so`` and ``MPI.openmpi.*.so``, and selects one when it is imported. If a
    package is in several places, the first one counts. ``nvshmem``: whether NVSHMEM may start with MPI.
    """
    places: dict[str, str] = {}  # a module to its place
    groups: dict[str, dict[str, Facts]] = defaultdict(dict)
    for inner, target, path, facts in files:
        if not _calls(facts) or (not nvshmem and NVSHMEM_BY_MPI.match(posixpath.basename(inner))):
            continue
        module = posixpath.join(posixpath.dirname(inner), posixpath.basename(inner).partition(".")[0])
        wanted = packages is None or is_of(path, packages)
        if wanted and places.setdefault(module, target) == target:
            groups[module][path] = facts
    yield from groups.values()


def _python_files(files: Index, overlays: Sequence[Overlay]) -> Iterator[_PythonFile]:
    """Yield the ELF files of Python packages, those of the overlays first."""
    for target, own in overlays:
        yield from ((path, target, target + path, entry.facts) for path, entry in own.entries.items() if entry.facts)
    in_image = {}
    for path, entry in files.entries.items():
        for folder in _PACKAGES:
            _, inside, inner = path.partition(folder)
            if inside and entry.facts and entry.kind != LINK:
                in_image["/" + inner] = (path, entry.facts)
    yield from ((inner, "", path, facts) for inner, (path, facts) in in_image.items())
