"""Facts from a site configuration of ReFrame: Python, YAML or JSON."""

import re

from deployer.connected.site_profile.importers.batch_options import COMPUTED, KINDS, BatchOptions
from deployer.connected.site_profile.importers.commands import Commands, is_program
from deployer.connected.site_profile.importers.cpu_names import architecture
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.values import NAME, LocatedValue
from deployer.contract.errors import UsageError
from deployer.contract.guess import guess
from deployer.contract.runtime_table import NAMED

_LAUNCHERS = ("srun", "mpirun")
#: Keys of a partition that say how ReFrame's tests run, not how the site is.
_OF_TESTS = {
    "descr", "environs", "extras", "features", "max_jobs", "name", "prefix", "sched_options", "stagedir", "time_limit",
    "outputdir", "container_platforms", "access", "scheduler", "launcher", "modules", "env_vars", "variables",
    "prepare_cmds", "processor", "devices", "resources", "container_runtime",
}  # fmt: skip


def systems(configuration: LocatedValue) -> list[str]:
    """Return the names of the systems of a configuration."""
    found = configuration.get("systems")
    names = [each.get("name") for each in found.each()] if found else []
    return [text for name in names if name is not None and (text := name.text())]


def load(draft: Draft, configuration: LocatedValue, file: str, system: str | None) -> None:
    """Write the facts of a system to a draft.

    Args:
        configuration: the value of ``site_configuration``.
        file: the name of its file.
        system: the system's name; None if the file has only one.

    Raises:
        UsageError: the system does not exist, or there are several and none is named.
    """
    found = configuration.get("systems")
    members = list(found.each()) if found else []
    for each in members:
        if each.computed():
            draft.note(COMPUTED, f"a system: {each.computed()}", FileLine(file, each.line))
    known = systems(configuration)
    if not known:
        raise UsageError(f"{file} has no system whose name is written in it", "ReFrame's `systems` are needed")
    if system is None and len(known) > 1:
        raise UsageError(f"{file} has {len(known)} systems: {', '.join(known)}", "select one: --system NAME")
    name = system or known[0]
    if name not in known:
        raise UsageError(f"{file} has no system {name!r}{guess(name, known)}", f"it has: {', '.join(known)}")
    chosen = next(each for each in members if (own := each.get("name")) and own.text() == name)
    _Reader(draft, file).system(chosen)


class _Reader:
    def __init__(self, draft: Draft, file: str) -> None:
        self._draft = draft
        self._file = file

    def _origin(self, value: LocatedValue) -> FileLine:
        return FileLine(self._file, value.line)

    def system(self, system: LocatedValue) -> None:
        """Write the facts of a system."""
        description = system.get("descr")
        if description and (text := description.text()):
            self._draft.set(("description",), " ".join(text.split()), self._origin(description))
        self._prepare(system, None)
        partitions = system.get("partitions")
        members = list(partitions.each()) if partitions else []
        kinds = [self._kind(each) for each in members]
        for each, kind in zip(members, kinds, strict=True):
            if kind and (kind != "local" or not set(kinds) - {"local", None}):
                scheduler = each.get("scheduler")
                self._draft.set(("scheduler", "kind"), kind, self._origin(scheduler or each))
                self._partition(each, kind)

    def _kind(self, partition: LocatedValue) -> str | None:
        if partition.computed():
            self._draft.note(COMPUTED, f"a partition: {partition.computed()}", self._origin(partition))
            return None
        scheduler = partition.get("scheduler")
        text = scheduler.text() if scheduler else None
        kind = KINDS.get(text or "")
        if kind is None and scheduler is not None:
            shown = text or scheduler.computed() or ""
            self._draft.note("a batch system that a profile cannot name", shown, self._origin(scheduler))
        return kind

    def _partition(self, partition: LocatedValue, kind: str) -> None:
        named = partition.get("name")
        name = named.text() if named else None
        if named is None or name is None or not NAME.fullmatch(name):
            self._draft.note("a partition without a known name", "", self._origin(partition))
            return
        place = ("partitions", name)
        self._draft.set(place, {}, self._origin(named))
        self._access(partition, kind, name)
        self._prepare(partition, name)
        launcher = partition.get("launcher")
        if launcher is not None and kind != "local":
            if launcher.text() in _LAUNCHERS:
                self._draft.set((*place, "launcher"), launcher.text(), self._origin(launcher))
            elif launcher.text() not in ("local", None):
                self._draft.note("a launcher that a profile cannot name", launcher.text(), self._origin(launcher))
        self._runtimes(partition)
        self._processor(partition, name)
        self._devices(partition, name)
        self._resources(partition, kind, name)
        for key, value in partition.items():
            if key not in _OF_TESTS:
                self._draft.note("an unknown key of a partition", key, self._origin(value))

    def _access(self, partition: LocatedValue, kind: str, name: str) -> None:
        queue = None
        access = partition.get("access")
        for each in access.each() if access else []:
            if isinstance(each.value, str):
                reader = BatchOptions(self._draft, kind, self._origin(each), name)
                reader.read(each.value)
                if reader.queue:
                    queue = (reader.queue, each)
            else:
                self._draft.note(COMPUTED, f"access: {each.computed()}", self._origin(each))
        if queue and queue[0] != name:
            self._draft.set(("partitions", name, "queue"), queue[0], self._origin(queue[1]))
        elif not queue and kind != "local" and not (access and access.computed()):
            self._draft.set(("partitions", name, "queue"), "", self._origin(access or partition))

    def _prepare(self, holder: LocatedValue, partition: str | None) -> None:
        """Write the modules, variables and commands of a system or partition."""
        modules = holder.get("modules")
        for each in modules.each() if modules else []:
            named = each.get("name")
            if text := (named or each).text():
                Commands(self._draft, self._origin(each), partition).modules([text])
            else:
                self._draft.note(COMPUTED, f"a module: {each.computed()}", self._origin(each))
        for key in ("env_vars", "variables"):
            variables = holder.get(key)
            pairs = list(variables.items()) if variables else []
            for each in variables.each() if variables else []:
                members = list(each.each())
                if len(members) == 2 and (text := members[0].text()):
                    pairs.append((text, members[1]))
            for name, value in pairs:
                known = value.text()
                if known is None or not Commands(self._draft, self._origin(value), partition).variable(name, known):
                    self._draft.note("a variable of jobs", f"{name}={value.shown()}", self._origin(value))
        commands = holder.get("prepare_cmds")
        lines = list(commands.each()) if commands else []
        certain = not is_program("\n".join(each.value for each in lines if isinstance(each.value, str)))
        for each in lines:
            if isinstance(each.value, str):
                Commands(self._draft, self._origin(each), partition).read(each.value, certain)
            else:
                self._draft.note("a command before each job", each.computed() or "", self._origin(each))

    def _runtimes(self, partition: LocatedValue) -> None:
        platforms = partition.get("container_platforms")
        for each in platforms.each() if platforms else []:
            kind = each.get("type")
            name = (kind.text() or "").lower() if kind else ""
            if name not in NAMED:
                self._draft.note("a runtime that a profile cannot name", name, self._origin(each))
                continue
            self._draft.set(("runtimes", name), {}, self._origin(each))
            self._draft.add(("policy", "runtimes"), [name], self._origin(each))
            modules = each.get("modules")
            if modules and (names := modules.texts()):
                place = ("runtimes", name, "module")
                self._draft.set(place, names if len(names) > 1 else names[0], self._origin(modules))

    def _processor(self, partition: LocatedValue, name: str) -> None:
        processor = partition.get("processor")
        if processor is None:
            return
        counts: dict[str, int] = {}
        for key in ("num_cpus", "num_cpus_per_core", "num_sockets", "num_cpus_per_socket"):
            value = processor.get(key)
            if value is not None and (number := value.number()):
                counts[key] = number
        origin, place = self._origin(processor), ("partitions", name, "node")
        if {"num_cpus", "num_cpus_per_core"} <= set(counts) and not counts["num_cpus"] % counts["num_cpus_per_core"]:
            self._draft.set((*place, "cores"), counts["num_cpus"] // counts["num_cpus_per_core"], origin)
        if "num_cpus_per_core" in counts:
            self._draft.set((*place, "threads_per_core"), counts["num_cpus_per_core"], origin)
        if "num_sockets" in counts:
            self._draft.set((*place, "sockets"), counts["num_sockets"], origin)
        elif {"num_cpus", "num_cpus_per_socket"} <= set(counts):
            self._draft.set((*place, "sockets"), counts["num_cpus"] // counts["num_cpus_per_socket"], origin)
        topology = processor.get("topology")
        numa = topology.get("numa_nodes") if topology else None
        if numa is not None and isinstance(numa.value, list) and numa.value:
            self._draft.set((*place, "numa_domains"), len(numa.value), self._origin(numa))
        arch = processor.get("arch")
        if arch is not None and (text := arch.text()):
            if found := architecture(text):
                self._draft.set(("partitions", name, "architecture"), found, self._origin(arch))
            else:
                self._draft.note("a name of processors", text, self._origin(arch))

    def _devices(self, partition: LocatedValue, name: str) -> None:
        devices = partition.get("devices")
        place = ("partitions", name, "node", "gpus")
        for each in devices.each() if devices else []:
            kind, number, arch = each.get("type"), each.get("num_devices"), each.get("arch")
            if kind is None or kind.text() != "gpu":
                shown = (kind.text() or kind.computed()) if kind else each.computed()
                self._draft.note("a device that is not known to be a GPU", shown or "", self._origin(each))
                continue
            if number is not None and number.number():
                self._draft.set((*place, "count"), number.number(), self._origin(number))
            text = (arch.text() or "") if arch else ""
            if arch is not None and (found := re.fullmatch(r"sm_(\d+)(\d)a?", text)):
                self._draft.set((*place, "kind"), "nvidia", self._origin(arch))
                self._draft.set((*place, "capability"), f"{found.group(1)}.{found.group(2)}", self._origin(arch))
            elif arch is not None and re.fullmatch(r"gfx[0-9a-f]+", text):
                self._draft.set((*place, "kind"), "amd", self._origin(arch))
                self._draft.set((*place, "target"), text, self._origin(arch))
            elif text:
                self._draft.note("a kind of GPU", text, self._origin(each))

    def _resources(self, partition: LocatedValue, kind: str, name: str) -> None:
        """Write how GPUs are requested. Other resources are those of single jobs."""
        resources = partition.get("resources")
        for each in resources.each() if resources else []:
            options = each.get("options")
            for option in options.each() if options else []:
                text = option.text() or ""
                apart = Draft()
                BatchOptions(apart, kind, self._origin(option), name).read(re.sub(r"\{\w+\}", "1", text))
                if "gpu" in text and (word := apart.get("scheduler", "gpu_request")):
                    self._draft.set(("scheduler", "gpu_request"), word, self._origin(option))
                else:
                    self._draft.note("a resource that a job can request", text, self._origin(option))
