"""The programs that a bundle's jobs start, each linked in its own process."""

import functools
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deployer.connected.linker import commands, process
from deployer.connected.linker.extensions import Extensions
from deployer.connected.linker.index import Index
from deployer.connected.linker.job_filesystem import Files
from deployer.connected.linker.loader import LIBRARY_PATH
from deployer.connected.linker.package_imports import PACKAGED, PackageImports
from deployer.connected.linker.process import Overlay, Process, Start
from deployer.connected.linker.starts import started
from deployer.connected.linker.starts.python.python_packages import ARCHIVES, Around, Packages
from deployer.connected.linker.starts.started import StartedProgram, Surroundings
from deployer.connected.linker.starts.words import UnknownWord, known
from deployer.contract.bundle import command
from deployer.contract.bundle.command import CommandSearch
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.rules import hostfiles
from deployer.contract.site.plan import APP, Plan


class LinkedJob(NamedTuple):
    """A dry-linked job.

    Attributes:
        job: None if the bundle has no job.
        processes: the processes of programs that certainly start; without a job, of every program that users can start.
        conditional: the processes of programs that start, or import packages, only under a condition; and, for
            a program that makes no MPI calls itself, one for each module of the image that it may load.
        unclear: reasons why it is uncertain what else starts.
        candidates: if something is unclear, the processes of all programs in the bundle that call MPI.
        decides: returns whether the job certainly fails if the given one of ``processes`` does.
        has_windows_lines: whether one of its scripts has carriage returns at its line ends, and so probably fails.
    """

    job: Job | None
    processes: Sequence[Process]
    conditional: Sequence[Process] = ()
    unclear: Sequence[str] = ()
    candidates: Sequence[Process] = ()
    decides: Callable[[Process], bool] = lambda _: True
    has_windows_lines: bool = False

    @property
    def possible(self) -> list[Process]:
        """Return the processes that may start, ``processes`` first."""
        return [*self.processes, *self.conditional]

    def starts(self, process: Process) -> bool:
        """Return whether a process from ``possible`` certainly starts."""
        return any(process is certain for certain in self.processes)

    def needs(self, process: Process) -> bool:
        """Return whether a process certainly starts, and its failure certainly fails the job."""
        return self.starts(process) and self.decides(process)


class _Linker:
    """Links the programs of one bundle under one plan, each only once."""

    def __init__(
        self, manifest: Manifest, plan: Plan, files: Index, overlays: Sequence[Overlay], host: Mapping[str, Files]
    ) -> None:
        self.manifest = manifest
        self.plan = plan
        self.files = files
        self.overlays = overlays
        self.layers = [Overlay("", files), *overlays]
        self.host = host
        self.view = process.filesystem(files, overlays, host)
        self.modules = process.modules(files)
        self._processes: dict[tuple[object, ...], Process] = {}

    def start(self, wanted: Start) -> Process:
        """Return the process of a program."""
        variables = None if wanted.environment is None else frozenset(wanted.environment.items())
        key = wanted._replace(environment=None), variables
        if key not in self._processes:
            self._processes[key] = process.start(
                self.plan, self.manifest.image, self.files, self.overlays, self.host, wanted
            )
        return self._processes[key]

    def program(self, program: StartedProgram) -> Process:
        """Return the process of a program that a job starts, with the packages that it certainly imports."""
        return self._with(program, program.packages.imported if program.packages else None)

    def possible(self, program: StartedProgram) -> Iterator[Process]:
        """Yield a program's process with the packages or modules that it may load, if any of these calls MPI."""
        packages = program.packages
        if packages is None:
            alone = self.program(program)
            if alone.program is not None and not alone.uses_mpi:
                yield from (self._with(program, None, module) for module in self.modules)
        elif packages.possible or packages.unclear:
            loaded = self._with(program, None if packages.unclear else packages.imported | packages.possible)
            if len(loaded.users) > len(self.program(program).users):
                yield loaded._replace(may_import=packages.unclear or "some imports are under a condition")

    def _with(self, program: StartedProgram, packages: frozenset[str] | None, module: str = "") -> Process:
        environment = program.environment
        if not known([environment.get(LIBRARY_PATH, "")]):
            environment = {**environment, LIBRARY_PATH: self.plan.environment.get(LIBRARY_PATH, "")}
        path = program.path or program.argv[0]
        imports = program.packages or Packages(frozenset(), frozenset())
        extensions = imports.extensions if _unsure(program) is None else ()
        started = self.start(Start(path, packages, environment, program.script or "", module, extensions))
        started = started._replace(missing=imports.missing, unreadable=imports.unreadable)
        return started._replace(via=program.via, removed=program.removed)

    def candidates(self, besides: Sequence[Process]) -> list[Process]:
        """Return the processes of all other programs in the bundle that call MPI; Python with all such packages."""
        python = self.manifest.image.python
        starts = [Start(python)] if python and self.start(Start(python)).users else []
        starts += [Start(path) for path in process.callers(self.layers)]
        names = {process.name for process in besides}
        return [process for process in map(self.start, starts) if process.name not in names]

    def of_job(self, job: Job) -> LinkedJob:
        surroundings = self._surroundings(job)
        followed = started.follow(job.command, surroundings, job.stdin)

        def decides(program: Process) -> bool:
            """Return whether the job fails if a program does, by following its command again with that failure."""
            key = program.command, program.via
            return not program.via or bool(started.follow(job.command, surroundings, job.stdin, key).status)

        unclear = [*followed.unclear, *filter(None, map(_unsure, followed.programs))]
        programs = followed.programs
        certain = [self.program(program) for program in programs if program.certain]
        certain = certain or [self.start(Start(job.command[0]))]
        imports = [(process.name, process.packages) for process in certain]
        conditional = [self.program(program) for program in programs if not program.certain]
        conditional = [process for process in conditional if (process.name, process.packages) not in imports]
        conditional += [process for program in programs for process in self.possible(program)]
        candidates = self.candidates(certain) if unclear else []
        return LinkedJob(job, certain, conditional, unclear, candidates, decides, followed.has_windows_lines)

    def _surroundings(self, job: Job) -> Surroundings:
        """Return the surroundings in which a job's command is followed."""
        image = self.manifest.image
        place = search_of(self.manifest, self.plan, self.files, self.overlays)
        place = place._replace(workdir=command.workdir(job.workdir, image.workdir))
        environment = {"PATH": place.path, **command.variables(image.env), **job.environment, **self.plan.environment}
        searched = hostfiles.library_path(self.plan.environment, environment)
        unknown = {name: UnknownWord(f"${name}") for name in ("HOME", "TMPDIR", "USER")}
        environment = {**environment, "PATH": place.path, LIBRARY_PATH: searched, **unknown}
        targets = [overlay.target for overlay in self.overlays if overlay.target != APP]
        environment["PYTHONPATH"] = ":".join(filter(None, [*targets, environment.get("PYTHONPATH", "")]))
        wheels = _programs(self.overlays)
        return Surroundings(self.view, place, image.python, wheels, environment, self._around)

    @functools.cached_property
    def _around(self) -> Around:
        packages = {
            target + path: imports for target, files in self.layers for path, imports in files.packages.items() if path
        }
        plugins = [files.packages[""].possible for _, files in self.layers if "" in files.packages]
        packages[""] = PackageImports(frozenset(), frozenset[str]().union(*plugins))
        calling = [
            target + path
            for target, files in self.layers
            for path, entry in files.entries.items()
            if entry.facts and entry.facts.imports
        ]
        return Around(packages, calling, self._elsewhere, Extensions(self.layers))

    def _elsewhere(self, module: str) -> str:
        """Return the path, anywhere in the job, of a possible Python module with this name; empty if none exists.

        Archives of packages match by their own names, because their content is unknown.
        """
        archives = (path for name, path in self._archives if name.lower().startswith(module.lower()))
        return self._stems.get(module, "") or next(archives, "")

    @functools.cached_property
    def _stems(self) -> dict[str, str]:
        stems: dict[str, str] = {}
        for path in self._paths():
            stem, dot, suffix = path.rpartition("/")[2].partition(".")
            packaged = PACKAGED.match(path)
            if packaged and not packaged[3] and (not dot or suffix.endswith(("py", "so"))):
                stems[stem] = path
            else:
                stems.setdefault(stem, path)
        return stems

    @functools.cached_property
    def _archives(self) -> list[tuple[str, str]]:
        return [(posixpath.basename(path), path) for path in self._paths() if path.endswith(ARCHIVES)]

    def _paths(self) -> Iterator[str]:
        return (target + path for target, files in self.layers for path in files.entries)


def _programs(overlays: Sequence[Overlay]) -> frozenset[str]:
    return frozenset(name for overlay in overlays for name in overlay.files.programs)


def search_of(manifest: Manifest, plan: Plan, files: Index, overlays: Sequence[Overlay]) -> CommandSearch:
    """Return where the commands of a bundle's jobs are searched for, in the image's working folder."""
    app = {overlay.target: overlay.files for overlay in overlays if overlay.target == APP}
    look = commands.in_bundle(files, app)
    return commands.place(look, manifest.image.env, manifest.image.workdir, [plan], _programs(overlays))


def _unsure(program: StartedProgram) -> str | None:
    """Return why it is uncertain what a program loads; None if it is certain."""
    where = f"{program.via}: " if program.via else ""
    if not known([program.environment.get(LIBRARY_PATH, "")]):
        return f"{where}{LIBRARY_PATH} is only known when it runs"
    return f"{where}LD_PRELOAD makes it load another library first" if program.environment.get("LD_PRELOAD") else None


def unlinked(manifest: Manifest) -> list[LinkedJob]:
    """Return a bundle's jobs without the programs that they start."""
    return [LinkedJob(job, []) for job in manifest.jobs] or [LinkedJob(None, [])]


def link(
    manifest: Manifest, plan: Plan, files: Index, overlays: Sequence[Overlay], host: Mapping[str, Files]
) -> list[LinkedJob]:
    """Return a bundle's jobs, linked dry; ``host`` maps the plan's bind targets to the site's files.

    If the bundle has no job, the result has one for the image's Python and each program that calls MPI.
    """
    linker = _Linker(manifest, plan, files, overlays, host)
    if manifest.jobs:
        return [linker.of_job(job) for job in manifest.jobs]
    python = [linker.start(Start(manifest.image.python))] if manifest.image.python else []
    return [LinkedJob(None, [*python, *linker.candidates(python)])]
