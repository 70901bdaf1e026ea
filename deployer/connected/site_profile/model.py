"""The site profile as a model: facts about one site, by partition, each with its source.

The model is the schema: ``site_profiles/schema.json`` is generated from it, and editors complete from that. What nobody
has found out is left out, and is None or empty here: unknown, never guessed.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from deployer.connected.ground.yaml_model import KeyPath, Model, Problems, Sha256, form
from deployer.contract.dynamic import Facts
from deployer.contract.errors import Unknown, UsageError
from deployer.contract.json_records import Fields
from deployer.contract.plan import ABIS, CARRIED, MPICH_ABI, OPENMPI

#: The file below an MPI's prefix that programs are linked to, where the profile names none.
_LIBRARY = {MPICH_ABI: "lib/libmpi.so.12", OPENMPI: "lib/libmpi.so.40"}


def _read_facts(value: Any) -> Facts:
    try:
        return Facts.read(Fields(value, "it"))
    except UsageError as error:
        raise ValueError(error.message) from error


class Lacking(Unknown):
    """A profile lacks what a plan needs at ``place``."""

    def __init__(self, message: str, hint: str, place: KeyPath) -> None:
        super().__init__(message, hint)
        self.place = place


SiteName = Annotated[
    str,
    form(
        r"^[a-z0-9][a-z0-9._-]*$",
        "lower-case letters, digits, dots, dashes and underscores, and begin with a letter or digit: my-site",
    ),
]
#: ssh takes a word with a dash first for an option, and gives the name to the shell of a ProxyCommand.
HostName = Annotated[
    str,
    form(
        r"^[A-Za-z0-9_\[][A-Za-z0-9._:@%/\[\]-]*$",
        "a host as ssh takes it, without spaces: alice@login.example.org",
        255,
    ),
]
Absolute = Annotated[str, form(r"^/[^\n:]*$", "an absolute path, without colon or line break: /opt/mpi")]
Count = Annotated[int, Field(ge=1)]
#: What the dynamic loader reads of one file: the record of ``deployer.contract.dynamic.Facts``.
FileFacts = Annotated[
    Facts,
    PlainValidator(_read_facts),
    PlainSerializer(Facts.record, return_type=dict[str, Any]),
    WithJsonSchema({"type": "object", "description": "What the dynamic loader reads of a file; capture writes it."}),
]
RuntimeName = Literal["charliecloud", "udocker", "apptainer"]
#: What users may be allowed: these, and to run without any.
Allowed = Literal[RuntimeName, "native"]


class FactSource(Model):
    """Where facts come from: captured on the site, a document, or nobody's word yet.

    ``date`` is when they held, None where the document does not say.
    """

    kind: Literal["captured", "document", "unverified"]
    where: str
    date: dt.date | None = None


class SiteRuntime(Model):
    """A container runtime on the site's nodes; ``module`` makes it available, where it is not in PATH."""

    version: str | None = None
    module: str | None = None


class Fabric(Model):
    """The network that MPI is meant to use, and libfabric's provider for it.

    ``providers`` are those that libfabric has there; ``devices`` as the kernel names them (``hfi1_0``, ``mlx5_0``,
    ``eth0``); ``libraries`` the paths of the user-space libraries (psm2, verbs, UCX), by soname.
    """

    kind: Literal["ethernet", "omni-path", "infiniband"] | None = None
    provider: str | None = None
    providers: list[str] = []
    devices: list[str] = []
    libraries: dict[str, Absolute] = {}
    source: FactSource | None = None


class Driver(Model):
    """The GPUs' driver: its version, the paths of its libraries by soname, and of its program ``nvidia-smi``."""

    kind: Literal["nvidia"]
    version: str | None = None
    libraries: dict[str, Absolute] = {}
    smi: Absolute | None = None
    source: FactSource | None = None


class Filesystem(Model):
    """A file system, by the path of its folder. ``shared``: all nodes see the same.

    ``size_mb`` and ``inodes`` are its own, ``quota_mb`` and ``quota_inodes`` what one user may have; MiB.
    ``purge_days``: files that nobody touched for so long are removed.
    """

    type: str | None = None
    shared: bool | None = None
    size_mb: int | None = None
    inodes: int | None = None
    quota_mb: int | None = None
    quota_inodes: int | None = None
    purge_days: int | None = None
    source: FactSource | None = None


class Machine(Model):
    """What like machines have in common.

    ``user_namespaces`` and ``fuse`` say whether an unprivileged user can make and use them: tried, not read.
    ``pythons`` are versions by path; ``libzstd`` is its version; ``launchers`` the programs that start ranks.
    ``files`` are the facts of system libraries that MPI, fabric or driver need, by path, and ``links`` where symbolic
    links to them lead.
    """

    architecture: str | None = None
    os: str | None = None
    kernel: str | None = None
    glibc: str | None = None
    libzstd: str | None = None
    pythons: dict[str, str] = {}
    user_namespaces: bool | None = None
    fuse: bool | None = None
    runtimes: dict[RuntimeName, SiteRuntime] = {}
    launchers: list[str] = []
    fabric: Fabric | None = None
    driver: Driver | None = None
    filesystems: dict[Absolute, Filesystem] = {}
    files: dict[Absolute, FileFacts] = {}
    links: dict[Absolute, str] = {}


class Login(Machine):
    """How to reach the site, and what its login nodes are.

    ``host`` is what ssh is given, ``transfer`` a host for files alone; ``python`` are its Pythons in order of
    preference. ``mksquashfs``: it is there, in PATH; where it may not be, bundles bring theirs.
    """

    host: HostName | None = None
    transfer: HostName | None = None
    python: list[str] = Field(default=["python3"], min_length=1)
    mksquashfs: bool | None = None
    source: FactSource | None = None


class SiteScheduler(Model):
    """The batch system, and the PMI types that its launcher offers (``srun --mpi=list``).

    ``local``: there is none, and jobs run on the login host at once. ``account`` is charged for jobs whose users name
    none.
    """

    kind: Literal["slurm", "local"]
    version: str | None = None
    pmi: list[str] = []
    default_pmi: str | None = None
    account: str | None = None
    source: FactSource | None = None


class RuntimePolicy(Model):
    """What the site allows: a closed list of runtimes; ``account``: jobs must name one (``--account``).

    ``native`` is no container, for comparison: only a user who asks for it gets it.
    """

    runtimes: list[Allowed] = Field(min_length=1)
    account: bool | None = None
    source: FactSource | None = None


class Mpi(Model):
    """An MPI installation. Paths but ``prefix`` and ``binds`` are relative to the prefix.

    ``library`` is the file that carries the ABI's soname (default: that name in ``lib``); ``libraries`` are the folders
    that the loader must search, in order; ``providers`` is the folder of libfabric's; ``binds`` are more folders that
    it needs on their own path. ``launcher`` is its own (``bin/mpirun``), None: in PATH when its module is loaded.
    ``says`` is how MPI_Get_library_version begins. ``environment`` is what the site sets for it.

    Captured: ``identity`` of the library, ``files``: facts of each ELF file of the closure and of what it may dlopen,
    and ``links``: symbolic links.
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


class NodeGpus(Model):
    """The GPUs of a node. ``capability`` is NVIDIA's compute capability (``7.0``)."""

    kind: Literal["nvidia"] | None = None
    model: str | None = None
    count: Count | None = None
    memory_mb: Count | None = None
    capability: str | None = None


class Cpu(Model):
    """The processors. ``flags`` are the kernel's names of instruction sets: all there are of ``contract.cpu.FLAGS``."""

    model: str | None = None
    flags: list[str] | None = None


class NodeHardware(Model):
    """The shape of a node: physical cores; ``memory_mb`` is what a job may use, in MiB, of ``memory_total_mb``.

    ``cpus`` are what the scheduler counts, where that is not each hardware thread.
    """

    sockets: Count | None = None
    cores: Count | None = None
    threads_per_core: Count | None = None
    numa_domains: Count | None = None
    cpus: Count | None = None
    memory_mb: Count | None = None
    memory_total_mb: Count | None = None
    cpu: Cpu | None = None
    gpus: NodeGpus | None = None


class Partition(Machine):
    """A group of like nodes. What it does not say holds as the profile says at its top.

    ``mpi`` names an entry of the profile's ``mpi``, or is null: the image's own is used. ``modules`` are loaded before
    the MPI's. Without ``launcher``: srun, where ``pmi`` says how or it offers a PMI that the MPI speaks, else the MPI's
    own.
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
    directives: list[str] = []
    source: FactSource | None = None


class FactsFile(Model):
    """The file beside the profile that holds its ``files`` and ``links``, and its SHA-256 in hexadecimal."""

    file: str
    sha256: Sha256


class Profile(Machine):
    """A site profile. The first partition is the default one. What stands at the top holds for all partitions' nodes,
    where they do not say otherwise; login nodes are described under ``login``.

    ``extends`` names another profile, a curated one or a file, whose facts hold where this one says nothing.
    ``notes`` are what capture could not find out, and why.
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
            if policy is not None and runtimes is not None and not set(policy.runtimes) & {*(there or ()), *CARRIED}:
                allowed = ", ".join(policy.runtimes)
                found.append(((name,), f"no runtime that the policy allows is on the site: {allowed}"))
        if found:
            raise Problems(found)
        return partitions

    def site_files(self, partition: str | None = None) -> "SiteFiles":
        """Return what was captured of the files that jobs of a partition could load: its MPI's and system libraries."""
        _, chosen = self.partition(partition)
        found = SiteFiles(dict(chosen.files), dict(chosen.links))
        if chosen.mpi:
            mpi = self.mpi[chosen.mpi]
            found.files.update({f"{mpi.prefix}/{path}": facts for path, facts in mpi.files.items()})
            found.links.update({f"{mpi.prefix}/{path}": target for path, target in mpi.links.items()})
        return found

    def partition(self, name: str | None = None) -> tuple[str, Partition]:
        """Return a partition, the first where none is named, with what holds for all in it; and its name."""
        if not self.partitions:
            hint = "list them: `python3 deployer.pyz capture` does"
            raise Lacking(f"the profile of {self.name} lists no partitions", hint, ("partitions",))
        chosen = name or next(iter(self.partitions))
        if chosen not in self.partitions:
            raise UsageError(f"site {self.name} has no partition {chosen!r}", f"it has: {', '.join(self.partitions)}")
        own = self.partitions[chosen]
        shared = {key: getattr(self, key) for key in Machine.model_fields if not _says(getattr(own, key))}
        return chosen, own.model_copy(update=shared)


def _says(value: object) -> bool:
    return value is not None and value not in ({}, [])


class SiteFiles(NamedTuple):
    """Facts of files of a site by absolute path, and the targets of symbolic links, as written."""

    files: dict[str, Facts]
    links: dict[str, str]


class Age(NamedTuple):
    """How old the facts of a group are: where it stands in the profile, its source, and the days since.

    ``days`` is None where the source has no date.
    """

    group: str
    source: FactSource
    days: int | None


def age(profile: Profile, today: dt.date) -> list[Age]:
    """Return the age of each group of facts that names its source, those without a date first, then the oldest."""
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
