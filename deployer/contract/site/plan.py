"""The plan: a site profile and a bundle resolved on the connected side, so that the site has nothing to guess.

It lists the exact binds, the environment, and the start options. ``choose.choose`` selects a start option from the
number of nodes and facts about the site. These facts can rule out a start option but never add one.
"""

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.rules import hostfiles
from deployer.contract.rules.verdict import Checked
from deployer.contract.site.speed import ExpectedNetwork

SCHEMA = "plan"

#: Container paths of the bundle's content beside the image.
APP = "/deployer/app"
WHEELS = "/deployer/wheels"
VARIANT = "/deployer/variant"
DATA = "/deployer/data"
TOOL = "/deployer/deployer.pyz"
JOB = "/deployer/job"
#: The container path of the home that the user chose (``--home``).
HOME = "/deployer/home"
#: The node's own folder if the image is staged. It is created in the staged image; other images do not have it.
NODE = "/deployer/node"

#: A file in every image, and its content. A process that cannot read it does not have the image as its root.
CANARY = "/deployer/canary"
CANARY_TEXT = "This is the root of an image that deployer packed.\n"

#: Mount points that flatten makes in every image. Files and folders are separate, because a bind needs a target of the
#: same kind. /data and /scratch are for users' ``--bind``: in a read-only image the target must already exist.
MOUNT_FOLDERS = (APP, WHEELS, VARIANT, DATA, JOB, HOME, hostfiles.FOLDER, "/data", "/scratch", "/mnt")
MOUNT_FILES = (TOOL,)


#: The reason for binding a folder of the site: users' data, not a program.
FOLDER_OF_SITE = "the site's folder, on the same path"


class Bind(NamedTuple):
    """A bind mount.

    Attributes:
        source: the path on the host.
        target: the path in the container.
        why: the reason, for people.
    """

    source: str
    target: str
    why: str


class NodeShape(NamedTuple):
    """The resources of a node in the partition.

    Attributes:
        sockets: number of sockets.
        cores: physical cores of the node.
        threads_per_core: hardware threads per core.
        memory_mb: MiB that a job may use.
        numa_domains: at least as many as sockets; None if unknown.
        cpus: CPUs as the scheduler counts them, at some sites only cores; None: all hardware threads.
        gpus: GPUs; None if unknown.
        domain_cpus: the CPUs of each NUMA domain that jobs may use, by the kernel's numbers; empty: unknown.
    """

    sockets: int
    cores: int
    threads_per_core: int
    memory_mb: int
    numa_domains: Optional[int] = None
    cpus: Optional[int] = None
    gpus: Optional[int] = None
    domain_cpus: Tuple[str, ...] = ()


#: The ch-run in a bundle's kit. No policy lists it: a policy that allows charliecloud allows it.
CHARLIECLOUD_KIT = "charliecloud-kit"
#: Its folder in the kit and in an image's engine, and the file there that starts it.
CHARLIECLOUD_FOLDER, CHARLIECLOUD_START = "charliecloud", "run"
#: No container: the host's own programs, for comparison. It is used only if the user asks for it.
NATIVE = "native"

#: MPI families, by the library that a program uses: libmpi.so.12 (MPICH, Intel MPI, Cray MPICH, MVAPICH), libmpi.so.40.
MPICH_ABI = "mpich-abi"
OPENMPI = "openmpi"
ABIS = {"intel": MPICH_ABI, "mpich": MPICH_ABI, "cray": MPICH_ABI, "mvapich": MPICH_ABI, "openmpi": OPENMPI}
SONAMES = {MPICH_ABI: "libmpi.so.12", OPENMPI: "libmpi.so.40"}
#: In place of families: the ranks find each other without MPI, even if a library in the image is linked with MPI.
NO_MPI = "none"


class HostMpi(NamedTuple):
    """The site's MPI that replaces the image's.

    Attributes:
        family: its implementation, for instance mpich.
        version: its version.
        prefix: its folder on the host.
        library: the absolute path of the file with the ABI's soname, the same on the host and in the container.
        says: the beginning of MPI_Get_library_version's result; empty if unknown.
        identity: the file's identity (``deployer.system.elf``) when the site was captured.
        libraries: the same for the other libraries that jobs get with it, by path, including system libraries.
    """

    family: str
    version: str
    prefix: str
    library: str
    says: str
    identity: Optional[str] = None
    libraries: Mapping[str, str] = {}

    @property
    def abi(self) -> str:
        """Return the ABI of the programs that it can run."""
        return ABIS.get(self.family, self.family)


#: Where the image is while ranks run. NOT_STAGED: where it was installed. The others are created once per node before
#: ranks start and removed afterwards: in the node's memory, on its disk, or as a compressed file mounted from memory.
#: MOUNTED: the compressed file is mounted on each node too, but stays where it was installed, and needs no memory.
NOT_STAGED = "folder"
MEMORY = "memory"
DISK = "disk"
SQUASHFS = "squashfs"
MOUNTED = "mounted"
PACKED = (SQUASHFS, MOUNTED)
STAGINGS = (NOT_STAGED, MEMORY, DISK, *PACKED)
#: Another form of the image: a SIF file that contains its SquashFS file. It can be started with or without staging.
SIF = "sif"


#: How the site starts the ranks. OUTSIDE: its launcher starts a container for each rank. INSIDE: the image's launcher
#: and daemons start them in one container per node.
OUTSIDE, INSIDE = "outside", "inside"
LAUNCHES = (OUTSIDE, INSIDE)


class StartOption(NamedTuple):
    """One way to start a job.

    Attributes:
        name: its name in the plan.
        runtime: the program that starts the container, or NATIVE.
        staging: one of STAGINGS.
        launcher: the program that starts the ranks.
        pmi: the PMI, in the launcher's terms.
        max_nodes: the largest number of nodes that it is intended for; None: no limit.
        join: whether a node's ranks share one container's namespaces, as MPICH's own shared memory requires.
        program: the launcher's path; None: it is in PATH once the plan's modules are loaded.
        place: the node's own folder in which the image is staged.
        room_mb: size in MiB of that folder's file system; None if unknown.
        broadcast: from this number of nodes on, they send the staged file on to each other.
        modules: the runtime's modules, loaded after the plan's.
        arguments: further arguments for the runtime, before the image.
        sif: whether the runtime gets the image as a SIF file, because the site forbids folders.
    """

    name: str
    runtime: str
    staging: str
    launcher: str
    pmi: str
    max_nodes: Optional[int]
    join: bool = False
    program: Optional[str] = None
    place: Optional[str] = None
    room_mb: Optional[int] = None
    broadcast: Optional[int] = None
    modules: Tuple[str, ...] = ()
    arguments: Tuple[str, ...] = ()
    sif: bool = False

    @property
    def form(self) -> str:
        """Return in which form the runtime gets the image: SIF, or one of STAGINGS."""
        return SIF if self.sif else self.staging


class Limits(NamedTuple):
    """What a job in the plan's partition may request; None: unknown, or no limit.

    Attributes:
        max_nodes: the most nodes.
        max_time: the longest time, as Slurm prints it.
        account: whether a job must name an account.
    """

    max_nodes: Optional[int] = None
    max_time: Optional[str] = None
    account: bool = False


#: Directives that request GPUs, so that no other request is needed.
_REQUESTS_GPUS = re.compile(r"--gres=(.*,)?gpu|--gpus|-G|-gpu\b|-l .*gpus?=|-R .*\bngpus")
#: In place of a word: jobs can use the GPUs of their nodes without a request.
NO_REQUEST = "none"


def requests_gpus(directive: str) -> bool:
    """Return whether a directive requests GPUs, in the usual terms of a batch system."""
    return _REQUESTS_GPUS.match(directive) is not None


class GpuRequest(NamedTuple):
    """How a job requests the GPUs of its nodes.

    Attributes:
        word: the batch system's word for it, for instance gres.
        per_node: GPUs per node; 0: the number varies, and a job requests as many as its ranks need.
        type: the batch system's word for the model; None: not needed.
    """

    word: str
    per_node: int
    type: Optional[str] = None


class GpuPlace(NamedTuple):
    """The place of a GPU in its node.

    Attributes:
        gpu: its number in the driver's order.
        domain: the nearest NUMA domain.
    """

    gpu: int
    domain: int


class Batch(NamedTuple):
    """What a job requests from the batch system besides its layout. None or empty: nothing.

    Attributes:
        queue: the partition or queue; None: named like the plan's partition; empty: the batch system's default.
        qos: the quality of service.
        cluster: the cluster, if the batch system has several.
        constraint: features of nodes.
        account_suffix: appended to the account.
        storage: file systems to request; they may have placeholders.
        gpus: the GPUs.
        parallel_environment: Grid Engine's name for the way slots are distributed over nodes.
        hosts: the nodes, for a site without a batch system.
        exclusive: whether to request whole nodes.
        request_memory: whether to request memory even if the job does not specify it: its share of the nodes' memory.
    """

    queue: Optional[str] = None
    qos: Optional[str] = None
    cluster: Optional[str] = None
    constraint: Optional[str] = None
    account_suffix: Optional[str] = None
    storage: Tuple[str, ...] = ()
    gpus: Optional[GpuRequest] = None
    parallel_environment: Optional[str] = None
    hosts: Tuple[str, ...] = ()
    exclusive: bool = False
    request_memory: bool = False


class InsideWay(NamedTuple):
    """The replacements in a plan if the image's own MPI and launcher are used, in one container per node.

    Attributes:
        launcher: the launcher of the image's MPI.
        abi: the image's MPI family.
        modules, binds, environment, pass_environment, host: as in ``Plan``.
    """

    launcher: str
    abi: str
    modules: List[str]
    binds: List[Bind]
    environment: Dict[str, str]
    pass_environment: List[str]
    host: Tuple[hostfiles.HostFile, ...]

    @staticmethod
    def read(fields: json_records.Fields) -> "InsideWay":
        return records.read(InsideWay, fields, environment=fields.environment("environment"))


class Plan(NamedTuple):
    """Everything that the site needs to run a bundle.

    Attributes:
        site: the site profile's name.
        partition: the partition.
        bundle: NAME:VERSION.
        workspace: the root folder; may begin with ``~``, which the site expands.
        python: the site's Pythons, in order of preference.
        node: a node's resources.
        scheduler: the scheduler's name.
        directives: more directives for the batch system, one line each.
        modules: environment modules to load.
        mpi: the site's MPI; None if the image's own MPI is to be used.
        binds: bind mounts.
        environment: variables that are set in the container after the image's own.
        pass_environment: the only variables (globs) that enter the container from the host.
        start_options: the start options, in order of preference.
        abi: the MPI family whose Horovod variant is used if the bundle has variants: that of ``mpi``, else the image's
            own; None if the image's family is unknown.
        checked: the verdict of `check` when the plan was made; None: not checked.
        host: single files of the host, which the container has in a separate folder.
        account: the account to charge if the user specifies none; it may have placeholders.
        limits: what a job may request.
        against: why runtimes of start options cannot be used on the nodes, according to the profile.
        namespaces: whether users can create user namespaces on the nodes; None if unknown.
        batch: further requests to the batch system.
        scripts: scripts that the job's shell reads before it loads modules.
        module_paths: folders of modules to use.
        mounts: folders of the site whose paths have placeholders; they are bound to the resolved path.
        devices: devices that a runtime does not provide by default: paths, or CDI names.
        without: the site's partitions that have no plan, each with the reason.
        gpu_order: the variable that sets the order of a node's GPUs; empty if their places are unknown, or if the
            vendor has no such variable (Intel).
        gpu_places: the places of a node's GPUs.
        launch: OUTSIDE or INSIDE.
        inside: the changes if the user chooses INSIDE; None if ``launch`` is INSIDE, or if the image's MPI family is
            unknown.
        network: the expected speed of the network between nodes; None: unknown.
    """

    site: str
    partition: str
    bundle: str
    workspace: str
    python: List[str]
    node: NodeShape
    scheduler: str
    directives: List[str]
    modules: List[str]
    mpi: Optional[HostMpi]
    binds: List[Bind]
    environment: Dict[str, str]
    pass_environment: List[str]
    start_options: List[StartOption]
    abi: Optional[str] = None
    checked: Optional[Checked] = None
    host: Tuple[hostfiles.HostFile, ...] = ()
    account: Optional[str] = None
    limits: Limits = Limits()
    against: Mapping[str, str] = {}
    namespaces: Optional[bool] = None
    batch: Batch = Batch()
    scripts: Tuple[str, ...] = ()
    module_paths: Tuple[str, ...] = ()
    mounts: Tuple[str, ...] = ()
    devices: Tuple[str, ...] = ()
    without: Mapping[str, str] = {}
    gpu_order: str = ""
    gpu_places: Tuple[GpuPlace, ...] = ()
    launch: str = OUTSIDE
    inside: Optional[InsideWay] = None
    network: Optional[ExpectedNetwork] = None

    def started_inside(self) -> "Optional[Plan]":
        """Return the plan with the image's own MPI and launcher, in one container per node; None if there is none.

        `check` has not evaluated it.
        """
        if self.launch == INSIDE or self.inside is None:
            return self if self.launch == INSIDE else None
        replaced = self.inside._asdict()
        options = inside_options(self.start_options, replaced.pop("launcher"))
        return self._replace(launch=INSIDE, inside=None, mpi=None, start_options=options, checked=None, **replaced)

    def modules_of(self, runtime: str) -> List[str]:
        """Return the modules that a job with this runtime loads, in order."""
        own = [name for option in self.start_options if option.runtime == runtime for name in option.modules]
        return list(dict.fromkeys([*self.modules, *own]))

    @property
    def queue(self) -> str:
        """Return the batch system's name for the partition; empty for its default partition."""
        return self.partition if self.batch.queue is None else self.batch.queue

    @property
    def containers(self) -> List[StartOption]:
        """Return the start options with a container, from which the site chooses and which `check` evaluates."""
        return [option for option in self.start_options if option.runtime != NATIVE]

    @property
    def way(self) -> str:
        """Describe what ranks use: MPI, launchers and runtimes."""
        image = "no MPI" if self.abi == NO_MPI else "the image's own MPI"
        own = self.mpi.says or f"{self.mpi.family} {self.mpi.version}" if self.mpi else image
        launchers = [each.launcher + (f" ({each.pmi})" if each.pmi else "") for each in self.containers]
        runtimes = [each.runtime for each in self.containers]
        listed = [" or ".join(dict.fromkeys(names)) or "nothing to start it" for names in (launchers, runtimes)]
        return f"with {own}, {listed[0]}, {listed[1]}"

    @property
    def order(self) -> List[Tuple[str, Optional[str]]]:
        """Return the runtimes in the order in which a job tries them, each with the reason against it, if any.

        Runtimes that the policy allows but that have no start option come last.
        """
        names = [*(option.runtime for option in self.containers), *self.against]
        return [(name, self.against.get(name)) for name in dict.fromkeys(names) if name != NATIVE]

    @property
    def tries(self) -> str:
        """Return ``order`` in one line."""
        names = [name for name, against in self.order if against is None]
        over = [f"{name} ({against})" for name, against in self.order if against is not None]
        return "runtimes that a job tries, in this order: {}{}".format(
            ", ".join(names) or "none",
            "; passed over: " + ", ".join(over) if over else "",
        )

    def record(self) -> json_records.Record:
        """Return the plan as a JSON record."""
        return json_records.stamped(SCHEMA, records.plain(self))


def read(data: bytes, what: str) -> Plan:
    """Parse a plan; ``what`` names it in errors. Raises UsageError."""
    fields = json_records.loads(data, SCHEMA, what)
    return records.read(Plan, fields, environment=fields.environment("environment"))


def inside_options(options: Sequence[StartOption], launcher: str) -> List[StartOption]:
    """Return start options for ``launcher`` in one container per node whose ranks share all its namespaces."""
    return [
        option._replace(launcher=launcher, pmi="", program=None, join=False)
        for option in options
        if option.runtime != NATIVE
    ]
