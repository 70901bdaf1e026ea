"""The model of a site profile: facts about one site, by partition, each with its source.

``site_profiles/schema.json`` is generated from this model, for completion in editors. Unknown facts are left out of a
profile, and are None or empty here. They are never guessed.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from deployer.connected.ground.yaml_model import KeyPath, Model, Problems, Sha256, form
from deployer.connected.site_profile.forms import Absolute, Allowed, Count, FileFacts, HostName, SiteMount, SiteName
from deployer.connected.site_profile.machine import FactSource, Machine, NodeHardware
from deployer.contract.dynamic import Facts
from deployer.contract.errors import Unknown, UsageError
from deployer.contract.plan import ABIS, MPICH_ABI, OPENMPI
from deployer.contract.runtime_table import CARRIED, RUNTIMES, supported

#: The library below an MPI's prefix that programs are linked to, if the profile names none.
_LIBRARY = {MPICH_ABI: "lib/libmpi.so.12", OPENMPI: "lib/libmpi.so.40"}


class Lacking(Unknown):
    """A profile lacks the fact at ``place``, which a plan needs."""

    def __init__(self, message: str, hint: str, place: KeyPath) -> None:
        super().__init__(message, hint)
        self.place = place


class Login(Machine):
    """How to reach the site, and facts about its login nodes.

    Attributes:
        host: the login host for ssh.
        transfer: a host only for files.
        python: Python interpreters in order of preference.
        mksquashfs: it is in PATH. If this is false or unknown, bundles include their own.
        source: where these facts come from.
    """

    host: HostName | None = None
    transfer: HostName | None = None
    python: list[str] = Field(default=["python3"], min_length=1)
    mksquashfs: bool | None = None
    source: FactSource | None = None


class SiteScheduler(Model):
    """The batch system.

    Attributes:
        kind: slurm, or local: there is no batch system, and jobs run immediately on the login host.
        version: its version.
        pmi: PMI types of its launcher (``srun --mpi=list``).
        default_pmi: the PMI type that the launcher uses by default.
        account: the account for jobs whose user names none.
        source: where these facts come from.
    """

    kind: Literal["slurm", "local"]
    version: str | None = None
    pmi: list[str] = []
    default_pmi: str | None = None
    account: str | None = None
    source: FactSource | None = None


class RuntimePolicy(Model):
    """What the site allows.

    Attributes:
        runtimes: the allowed runtimes. ``native`` means no container, for comparison: only if a user requests it.
        account: jobs must name an account (``--account``).
        source: where these facts come from.
    """

    runtimes: list[Allowed] = Field(min_length=1)
    account: bool | None = None
    source: FactSource | None = None


class Mpi(Model):
    """An MPI installation. Paths are relative to the prefix, except ``prefix`` and ``binds``.

    Attributes:
        family: the family of MPI.
        version: its version.
        prefix: its folder.
        library: the library with the ABI's soname. Default: that name in ``lib``.
        libraries: folders that the loader must search, in order.
        providers: the folder of libfabric's providers.
        binds: further folders that it needs on their own path.
        module: the module that loads it.
        launcher: its launcher (``bin/mpirun``). Default: in PATH after its module is loaded.
        environment: variables that the site sets for it.
        says: the beginning of MPI_Get_library_version.
        soname: the soname of the library.
        identity: the build-id or SHA-256 of the library, captured.
        files: facts of its ELF files and of those that they may open, captured.
        links: targets of symbolic links, captured.
        source: where these facts come from.
    """

    variables = frozenset({"environment"})

    family: Literal["intel", "mpich", "openmpi", "cray", "mvapich"]
    version: str | None = None
    prefix: Absolute
    library: str | None = None
    libraries: list[str] = ["lib"]
    providers: str | None = None
    binds: list[Absolute] = []
    module: str | None = None
    launcher: str | None = None
    environment: dict[str, str] = {}
    says: str | None = None
    soname: str | None = None
    identity: (
        Annotated[str, form(r"^(build-id|sha256):[0-9a-f]+$", "build-id:HEX or sha256:HEX, as capture writes it")]
        | None
    ) = None
    files: dict[str, FileFacts] = {}
    links: dict[str, str] = {}
    source: FactSource | None = None

    @property
    def library_path(self) -> str:
        """Return the path of the library that programs are linked to."""
        return f"{self.prefix}/{self.library or _LIBRARY[ABIS.get(self.family, MPICH_ABI)]}"


class Partition(Machine):
    """A group of equal nodes. Facts that it lacks are taken from the top of the profile.

    Attributes:
        nodes: the number of nodes.
        max_nodes: the largest number of nodes per job.
        max_time: the time limit of jobs.
        node: the shape of a node.
        mpi: an entry of the profile's ``mpi``; null: the image's own MPI is used.
        launcher: the program that starts ranks. Default: srun if ``pmi`` is given or srun offers a PMI that the MPI
            supports, otherwise the MPI's own launcher.
        pmi: the PMI type for srun.
        modules: modules to load before the MPI's.
        environment: variables that the site sets for jobs.
        mounts: folders of the site that jobs see on the same path, besides those of the whole profile.
        directives: additional options for the batch system.
        source: where these facts come from.
    """

    variables = frozenset({"environment"})

    nodes: Count | None = None
    max_nodes: Count | None = None
    max_time: (
        Annotated[str, form(r"^((\d+-)?\d+(:[0-5]\d){0,2}|infinite)$", "[D-]HH:MM:SS, or infinite: 2-00:00:00")] | None
    ) = None
    node: NodeHardware | None = None
    mpi: str | None = None
    launcher: Literal["srun", "mpiexec.hydra", "mpirun"] | None = None
    pmi: str | None = None
    modules: list[str] = []
    environment: dict[str, str] = {}
    mounts: list[SiteMount] = []
    directives: list[str] = []
    source: FactSource | None = None


class FactsFile(Model):
    """The file of facts beside the profile, with its ``files`` and ``links``.

    Attributes:
        file: its name.
        sha256: its digest in hexadecimal.
    """

    file: str
    sha256: Sha256


class Profile(Machine):
    """A site profile. The facts at its top apply to the nodes of all partitions that do not have their own.

    Attributes:
        format: the version of this format.
        name: the site's name.
        extends: another profile, a curated one or a file, with the facts that this one lacks.
        description: one line of text.
        source: where these facts come from.
        facts: the file of facts.
        notes: facts that capture could not find, with the reasons.
        login: the login nodes.
        workspace: the root folder on the site.
        scheduler: the batch system.
        policy: what the site allows.
        modules: modules that all jobs load.
        mounts: folders of the site that all jobs see on the same path.
        mpi: MPI installations by name.
        partitions: partitions by name. The first one is the default.
    """

    many_lines = frozenset({"description", "notes"})

    # The order of the fields matters: a validator sees those before its own.
    format: Literal[1]
    name: SiteName
    extends: str | None = None
    description: str = ""
    source: FactSource
    facts: FactsFile | None = None
    notes: list[str] = []
    login: Login = Login()
    workspace: str | None = None
    scheduler: SiteScheduler | None = None
    policy: RuntimePolicy | None = None
    modules: list[str] = []
    mounts: list[SiteMount] = []
    mpi: dict[str, Mpi] = {}
    partitions: dict[str, Partition] = {}

    @field_validator("partitions")
    @classmethod
    def _names_are_known(cls, partitions: dict[str, Partition], info: ValidationInfo) -> dict[str, Partition]:
        found: list[tuple[KeyPath, str]] = []
        mpi, scheduler = info.data.get("mpi"), info.data.get("scheduler")
        policy, runtimes = info.data.get("policy"), info.data.get("runtimes")
        for name, partition in partitions.items():
            if mpi is not None and partition.mpi is not None and partition.mpi not in mpi:
                known = ", ".join(mpi) or "none"
                found.append(((name, "mpi"), f"{partition.mpi!r} is not in mpi of the profile; known: {known}"))
            if scheduler is not None and scheduler.pmi and partition.pmi and partition.pmi not in scheduler.pmi:
                offered = ", ".join(scheduler.pmi)
                found.append(((name, "pmi"), f"{partition.pmi!r} is not offered by the scheduler: {offered}"))
            there = partition.runtimes or runtimes
            if policy is not None and runtimes is not None and not _usable(policy.runtimes, there or ()):
                allowed = ", ".join(policy.runtimes)
                found.append(((name,), f"no runtime that the policy allows is on the site: {allowed}"))
        if found:
            raise Problems(found)
        return partitions

    def site_files(self, partition: str | None = None) -> "SiteFiles":
        """Return captured facts of the files that jobs of a partition can load: those of its MPI, and system libraries.

        Args:
            partition: None: the first.
        """
        _, chosen = self.partition(partition)
        found = SiteFiles(dict(chosen.files), dict(chosen.links))
        if chosen.mpi:
            mpi = self.mpi[chosen.mpi]
            found.files.update({f"{mpi.prefix}/{path}": facts for path, facts in mpi.files.items()})
            found.links.update({f"{mpi.prefix}/{path}": target for path, target in mpi.links.items()})
        return found

    def partition(self, name: str | None = None) -> tuple[str, Partition]:
        """Return a partition with the facts from the top of the profile, and its name.

        Args:
            name: None: the first.

        Raises:
            Lacking: the profile has no partitions.
            UsageError: there is no partition of this name.
        """
        if not self.partitions:
            hint = "list them: `python3 deployer.pyz capture` does"
            raise Lacking(f"the profile of {self.name} lists no partitions", hint, ("partitions",))
        chosen = name or next(iter(self.partitions))
        if chosen not in self.partitions:
            raise UsageError(f"site {self.name} has no partition {chosen!r}", f"it has: {', '.join(self.partitions)}")
        own = self.partitions[chosen]
        shared = {key: getattr(self, key) for key in Machine.model_fields if not _says(getattr(own, key))}
        return chosen, own.model_copy(update=shared)


def _usable(policy: Sequence[str], there: Iterable[str]) -> bool:
    """Return whether nodes have a runtime that a policy allows, or a bundle can carry one.

    A policy that allows only what deployer cannot use is `check`'s to refuse: it names the reason and an alternative.
    """
    carried = {RUNTIMES[name].policy_name for name in CARRIED}
    return bool(set(policy) & {*there, *carried}) or not any(map(supported, policy))


def _says(value: object) -> bool:
    return value is not None and value not in ({}, [])


class SiteFiles(NamedTuple):
    """Captured facts of a site's files.

    Attributes:
        files: facts by absolute path.
        links: targets of symbolic links by absolute path, as the links have them.
    """

    files: dict[str, Facts]
    links: dict[str, str]


class Age(NamedTuple):
    """The age of a group of facts.

    Attributes:
        group: its place in the profile.
        source: where the facts come from.
        days: the age in days, None if the source has no date.
    """

    group: str
    source: FactSource
    days: int | None


def age(profile: Profile, today: dt.date) -> list[Age]:
    """Return the age of each group of facts that has a source: first those without a date, then the oldest."""
    found = [
        Age(group, source, (today - source.date).days if source.date else None)
        for group, source in _sources(profile, "")
    ]
    return sorted(found, key=lambda each: (each.days is not None, -(each.days or 0)))


def _sources(model: BaseModel, group: str) -> Iterator[tuple[str, FactSource]]:
    source = getattr(model, "source", None)
    if isinstance(source, FactSource):
        yield group or "profile", source
    for name in type(model).model_fields:
        value = getattr(model, name)
        inner = value if isinstance(value, Mapping) else {None: value}
        for key, each in inner.items():
            if isinstance(each, BaseModel) and not isinstance(each, FactSource):
                yield from _sources(each, ".".join(word for word in (group, name, key) if word))
