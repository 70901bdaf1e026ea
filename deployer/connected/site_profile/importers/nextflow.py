"""Facts from an nf-core institutional configuration: Nextflow's settings of one cluster."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deployer.connected.site_profile.importers import container_options
from deployer.connected.site_profile.importers.batch_options import COMPUTED, KINDS, BatchOptions
from deployer.connected.site_profile.importers.commands import Commands
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.nextflow_syntax import Quantity, Setting, Token, Values, choices, read
from deployer.connected.site_profile.importers.values import QUEUE, Computed, LocatedValue
from deployer.contract.errors import UsageError
from deployer.contract.guess import guess
from deployer.contract.plan import NATIVE
from deployer.contract.runtime_table import NAMED

_MEMORY = {"KB": 2**-10, "MB": 1, "GB": 2**10, "TB": 2**20, "K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)[\s.]*([A-Za-z]+)")
_NAMES_A_PARTITION = re.compile(r"--partition|(^|\s)-[pq]")
#: The name of the partition that stands for the batch system's default one.
_DEFAULT = "default"
_EXECUTORS: tuple[tuple[str, ...], ...] = (("process", "executor"), ("executor", "name"))
_ACCOUNTS: tuple[tuple[str, ...], ...] = (("executor", "account"), ("executor", "$slurm", "account"))
_OPTIONS: tuple[tuple[str, ...], ...] = (("process", "clusterOptions"), ("executor", "clusterOptions"))


class _Scope(NamedTuple):
    """The settings with the same selectors.

    Attributes:
        selectors: those of the settings.
        found: the values by the names of blocks and setting.
        raw: the tokens of the values.
    """

    selectors: tuple[str, ...]
    found: dict[tuple[str, ...], LocatedValue]
    raw: dict[tuple[str, ...], Sequence[Token]]

    @property
    def whole(self) -> bool:
        """Return whether the settings apply to all jobs."""
        return not self.selectors


def systems(text: str, name: str) -> list[str]:
    """Return the names of a file's profiles."""
    return _profiles(read(text, name))


def load(draft: Draft, text: str, file: str, system: str | None) -> FileLine | None:
    """Write the facts of a configuration to a draft.

    Returns:
        If the jobs of the file name no partition: the line of the batch system, 0 if it has none. Else None.

    Args:
        text: the file's content.
        file: its name.
        system: the profile of the file whose settings count for all jobs. None: only those outside of profiles.

    Raises:
        UsageError: the file is not Nextflow's, or has no such profile.
    """
    settings = read(text, file)
    if system is not None:
        known = _profiles(settings)
        if system not in known:
            raise UsageError(
                f"{file} has no profile {system!r}{guess(system, known)}", f"it has: {', '.join(known) or 'none'}"
            )
        settings = [_chosen(each, system) for each in settings if each.profile in (None, system)]
    if not any(each.path[:1] in (("process",), ("executor",), ("params",)) for each in settings):
        raise UsageError(f"{file} has no settings of Nextflow: process, executor, params")
    reader = _Reader(draft, settings, file)
    reader.facts()
    return reader.default_partition()


def add_default_partition(draft: Draft, lines: Sequence[FileLine | None]) -> None:
    """Add the batch system's default partition if no file names one; ``lines`` is what ``load`` returned for each."""
    line = max(filter(None, lines), key=lambda each: each.line, default=None)
    if None not in lines and line is not None and line.line:
        draft.set(("partitions", _DEFAULT, "queue"), "", line)


def _profiles(settings: Sequence[Setting]) -> list[str]:
    return list(dict.fromkeys(each.profile for each in settings if each.profile))


def _chosen(setting: Setting, system: str) -> Setting:
    return setting._replace(selectors=tuple(each for each in setting.selectors if each != f"profile {system}"))


class _Reader:
    def __init__(self, draft: Draft, settings: Sequence[Setting], file: str) -> None:
        self._draft = draft
        self._settings = settings
        self._values = Values(settings)
        self._file = file
        self._scopes: dict[tuple[str, ...], _Scope] = {}
        self._kind: str | None = None
        self._own_options: set[str] = set()

    def facts(self) -> None:
        """Write all facts to the draft."""
        for setting in self._settings:
            if not setting.path:
                text = " ".join(token.text for token in setting.tokens[:30] if token.kind != "line")
                kind = "another file" if text.startswith("includeConfig") else "a statement of a program"
                self._draft.note(kind, text, FileLine(self._file, setting.line))
                continue
            scope = self._scopes.setdefault(setting.selectors, _Scope(setting.selectors, {}, {}))
            scope.found[setting.path] = self._values.of(setting)
            scope.raw[setting.path] = setting.tokens
        self._batch_system()
        self._runtimes()
        scopes = sorted(self._scopes.values(), key=lambda each: len(each.selectors))
        partitions = [(scope, self._partition(scope)) for scope in scopes]
        # Options of a profile or label replace those of all jobs.
        self._own_options = {name for scope, name in partitions if name and not scope.whole and _has_options(scope)}
        for scope, partition in partitions:
            if partition or scope.whole:
                self._jobs(scope, partition)
            else:
                self._some_jobs(scope)
            self._limits(scope, partition)
        self._describe()

    def _origin(self, value: LocatedValue) -> FileLine:
        return FileLine(self._file, value.line)

    def _describe(self) -> None:
        found = self._values.parameter("config_profile_description")
        if found and (text := found.text()):
            self._draft.set(("description",), " ".join(text.split()), self._origin(found))

    def _batch_system(self) -> None:
        """Write the batch system: the executor of all jobs, or of the first profile that has one."""
        found: list[tuple[str, LocatedValue]] = []
        for scope in sorted(self._scopes.values(), key=lambda each: len(each.selectors)):
            for path in _EXECUTORS:
                value = scope.found.get(path)
                if value is None or any(each.startswith("with") for each in scope.selectors):
                    continue
                known = value.text()
                found += [(text, value) for text in ([known] if known else choices(scope.raw[path]))]
        # A file that has a batch system uses the login host only for small tasks.
        for name, value in sorted(found, key=lambda each: each[0] == "local"):
            kind = KINDS.get(name.lower())
            if kind is None:
                self._draft.note("a batch system that a profile cannot name", name, self._origin(value))
            elif kind != "local" or self._kind is None:
                self._draft.set(("scheduler", "kind"), kind, self._origin(value))
                self._kind = self._kind or kind
        self._kind = self._kind or self._draft.get("scheduler", "kind")  # of the file that includes this one
        for scope in self._scopes.values():
            for path in _ACCOUNTS:
                value = scope.found.get(path)
                if value is not None and value.value is not None:
                    BatchOptions(self._draft, "slurm", self._origin(value)).read(
                        f"--account={value.text() or '${account}'}"
                    )

    def _runtimes(self) -> None:
        scopes = list(self._scopes.values())
        for name in NAMED:
            for scope in scopes:
                enabled = scope.found.get((name, "enabled"))
                if enabled is None and scope.whole and not any((name, "enabled") in each.found for each in scopes):
                    self._container(scope, (name, "runOptions"), None)  # the workflow's user enables it
                if enabled is None or name == NATIVE or enabled.value is False:
                    continue
                if enabled.value is not True:
                    self._draft.note("a runtime that a program chooses", f"{name}.enabled", self._origin(enabled))
                    continue
                if any(each.startswith("with") for each in scope.selectors):
                    continue
                self._draft.set(("runtimes", name), {}, self._origin(enabled))
                self._draft.add(("policy", "runtimes"), [name], self._origin(enabled))
                for option in ("runOptions", "engineOptions"):
                    self._container(scope, (name, option), None, name)

    def _container(
        self, scope: _Scope, path: tuple[str, ...], partition: str | None, runtime: str | None = None
    ) -> None:
        value = scope.found.get(path)
        if value is None or value.value is None:
            return
        if isinstance(value.value, str):
            container_options.read(self._draft, value.value, self._origin(value), partition, runtime)
        else:
            self._draft.note(COMPUTED, f"{'.'.join(path)} = {value.computed()}", self._origin(value))

    def _partition(self, scope: _Scope) -> str | None:
        """Add the partitions of a scope to the draft; return its partition if it has just one."""
        path = ("process", "queue")
        value = scope.found.get(path)
        names: list[str] = []
        if value is not None and value.value is not None:
            if text := value.text():
                names = [name.strip() for name in text.split(",")]
                if len(names) > 1:
                    self._draft.note("several partitions in one request", text, self._origin(value))
            else:
                chosen = choices(scope.raw[path])
                names = [name.strip() for each in chosen for name in each.split(",")]
                for each in [each for each in chosen if "," in each]:
                    self._draft.note("several partitions in one request", each, self._origin(value))
                self._draft.note("a partition that a program chooses", value.computed() or "", self._origin(value))
        options = scope.found.get(("process", "clusterOptions"))
        if options is not None and isinstance(options.value, str) and not names:
            reader = BatchOptions(Draft(), self._kind or "slurm", self._origin(options))
            reader.read(options.value)
            names, value = [reader.queue] if reader.queue else [], options
        for name in names:
            if value is not None and QUEUE.fullmatch(name):
                self._draft.set(("partitions", name), {}, self._origin(value))
            elif value is not None:
                self._draft.note("an invalid name of a partition", name, self._origin(value))
        return names[0] if len(names) == 1 and QUEUE.fullmatch(names[0]) else None

    def default_partition(self) -> FileLine | None:
        """Return the line of the batch system if jobs name no partition: 0 if the file has neither. Else None."""
        if self._kind == "local" or self._draft.partitions():
            return None
        if any(_may_name_a_partition(scope) for scope in self._scopes.values()):
            return None
        found = [scope.found[path] for scope in self._scopes.values() for path in _EXECUTORS if path in scope.found]
        return self._origin(found[0]) if found and self._kind else FileLine(self._file)

    def _jobs(self, scope: _Scope, partition: str | None) -> None:
        """Write what applies to the jobs of a scope: to all, or to those of one partition."""
        target = None if scope.whole else partition
        for path in _OPTIONS:
            value = scope.found.get(path)
            if value is None or value.value is None:
                continue
            if isinstance(value.value, str):
                but = () if target else self._own_options
                BatchOptions(self._draft, self._kind or "slurm", self._origin(value), target, but).read(value.value)
            else:
                text = "; ".join(choices(scope.raw[path])) or value.computed() or ""
                self._draft.note("options that a program chooses", text, self._origin(value))
        storage = scope.found.get(("process", "storage"))
        if storage is not None:
            BatchOptions(self._draft, self._kind or "pbs", self._origin(storage), target).storage(storage)
        self._parallel_environment(scope, target)
        self._container(scope, ("process", "containerOptions"), target)
        module = scope.found.get(("process", "module"))
        if module is not None:
            names = [name for text in module.texts() for name in text.split(":")]
            Commands(self._draft, self._origin(module), target).modules(names)
        script = scope.found.get(("process", "beforeScript"))
        if script is not None and script.value is not None:
            if isinstance(script.value, str):
                Commands(self._draft, self._origin(script), target).read(script.value)
            else:
                self._draft.note("a command before each job", script.computed() or "", self._origin(script))
        for path, value in scope.found.items():
            if path[0] == "env" and len(path) == 2:
                number = isinstance(value.value, int | float) and not isinstance(value.value, bool)
                known = str(value.value) if number else value.text()
                if known is None or not Commands(self._draft, self._origin(value), target).variable(path[1], known):
                    self._draft.note("a variable of jobs", f"{path[1]}={_text(value)}", self._origin(value))
        self._others(scope)

    def _parallel_environment(self, scope: _Scope, target: str | None) -> None:
        """Write Grid Engine's parallel environment: that of jobs with several cores, if a program chooses."""
        path = ("process", "penv")
        value = scope.found.get(path)
        names = [] if value is None else value.texts() or choices(scope.raw[path])
        if value is not None and len(names) == 1:
            if target:
                self._draft.set(("partitions", target, "parallel_environment"), names[0], self._origin(value))
            else:
                self._draft.for_all(("parallel_environment",), names[0], self._origin(value))
        elif names and value is not None:
            self._draft.note("a parallel environment that a program chooses", ", ".join(names), self._origin(value))

    def _others(self, scope: _Scope) -> None:
        for path, kind in _NOT_EXPRESSED.items():
            value = scope.found.get(path)
            if value is not None and value.value not in (None, False):
                self._draft.note(kind, f"{path[-1]} = {_text(value)}", self._origin(value))

    def _some_jobs(self, scope: _Scope) -> None:
        """Note what applies only to some jobs of no certain partition; how GPUs are requested is a fact anyway."""
        for path, value in scope.found.items():
            if path not in _OF_JOBS or value.value is None:
                continue
            text = value.value if isinstance(value.value, str) else value.computed() or ""
            if path[1] == "clusterOptions" and isinstance(value.value, str):
                self._gpu_request(value)
            where = ", ".join(scope.selectors)
            self._draft.note("a setting of some jobs only", f"{where}: {path[1]} = {text}", self._origin(value))

    def _gpu_request(self, value: LocatedValue) -> None:
        apart = Draft()
        BatchOptions(apart, self._kind or "slurm", self._origin(value)).read(value.value)
        word = apart.get("scheduler", "gpu_request")
        if word:
            self._draft.set(("scheduler", "gpu_request"), word, self._origin(value))

    def _limits(self, scope: _Scope, partition: str | None) -> None:
        """Write the memory that jobs may use if it is meant for just one partition.

        The workflow keeps to these limits. The partition's own can be larger, so time and cores are no facts about it.
        """
        single = scope.whole and len(self._draft.partitions()) == 1
        if scope.whole and not single:
            partition = None
        for name, value in self._limited(scope):
            if name == "memory" and partition and (size := _mebibytes(value)):
                self._draft.set(("partitions", partition, "node", "memory_mb"), size, self._origin(value))
            elif partition or not scope.selectors:
                kind = "a limit over several partitions" if name == "memory" else _LIMITS[name]
                self._draft.note(kind, f"{name}: {_text(value)}", self._origin(value))

    def _limited(self, scope: _Scope) -> Iterator[tuple[str, LocatedValue]]:
        limits = scope.found.get(("process", "resourceLimits"))
        for name in ("memory", "time", "cpus"):
            value = limits.get(name) if limits is not None else None
            value = value or scope.found.get(("params", f"max_{name}"))
            if value is not None and value.value is not None:
                yield name, value


_LIMITS = {"time": "a limit of time per job", "cpus": "a limit of cores per job"}
#: Settings of jobs.
_OF_JOBS = {
    ("process", name) for name in ("clusterOptions", "containerOptions", "module", "beforeScript", "penv", "scratch")
}
#: Settings that no key of a profile expresses, with the words of their note.
_NOT_EXPRESSED = {
    ("process", "scratch"): "a folder on the nodes' disks",
    ("workDir",): "a work folder",
    ("executor", "perCpuMemAllocation"): "how memory is requested",
    ("executor", "perJobMemLimit"): "how memory is requested",
    ("executor", "perTaskReserve"): "how memory is requested",
}


def _may_name_a_partition(scope: _Scope) -> bool:
    queue = scope.found.get(("process", "queue"))
    options = [scope.found[path] for path in _OPTIONS if path in scope.found]
    texts = [str(each.value) for each in options]
    computed = any(isinstance(each.value, Computed) for each in options)
    return bool(queue and queue.computed()) or computed or any(_NAMES_A_PARTITION.search(text) for text in texts)


def _has_options(scope: _Scope) -> bool:
    return any(path in scope.found for path in _OPTIONS)


def _text(value: LocatedValue) -> str:
    if isinstance(value.value, Quantity):
        return f"{value.value.number:g}.{value.value.unit}"
    return value.shown()


def _quantity(value: LocatedValue) -> Quantity | None:
    if isinstance(value.value, Quantity):
        return value.value
    text = value.text()
    found = _WITH_UNIT.fullmatch(text.strip()) if text else None
    return Quantity(float(found.group(1)), found.group(2)) if found else None


def _mebibytes(value: LocatedValue) -> int | None:
    found = _quantity(value)
    factor = _MEMORY.get(found.unit.upper()) if found else None
    size = found.number * factor if found and factor else 0
    return int(size) if 1 <= size < 2**40 else None
