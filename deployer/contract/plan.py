"""The plan: a site profile and a bundle resolved on the connected side, so that the site has nothing to guess.

It names the exact binds and environment, and a closed list of start options (runtime, staging, launcher) from which
``choose.choose`` takes one by nodes and by what the site shows. Site facts may veto a start option, never invent one.
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from deployer.contract import hostfiles, json_records
from deployer.contract.hostfiles import HostFile
from deployer.contract.json_records import Fields, Record
from deployer.contract.verdict import Checked

SCHEMA = "plan"
#: Since 2 a plan has ``host``, without which a job would run on the image's own libraries.
_FORMAT, _WITHOUT_HOST = 2, 1
#: The key is older than the term "start option", and deployers of other versions read it.
_START_OPTIONS_KEY = "variants"

#: Where the container sees what the bundle carries beside the image.
APP = "/deployer/app"
WHEELS = "/deployer/wheels"
VARIANT = "/deployer/variant"
DATA = "/deployer/data"
TOOL = "/deployer/deployer.pyz"
JOB = "/deployer/job"
#: Where the container sees the home that the user chose (``--home``).
HOME = "/deployer/home"
#: What is the node's own, where the image is staged; it is made in the staged image, so no other has it.
NODE = "/deployer/node"

#: A file of every image, and what is in it: a process that cannot read it sees another root than the image's.
CANARY = "/deployer/canary"
CANARY_TEXT = "This is the root of an image that deployer packed.\n"

#: Mount points that every image gets when it is flattened; files and folders apart, since a bind needs its like.
#: /data and /scratch are for ``--bind`` by users: the image is read-only, so a bind's target must exist in it.
MOUNT_FOLDERS = (APP, WHEELS, VARIANT, DATA, JOB, HOME, hostfiles.FOLDER, "/data", "/scratch", "/mnt")
MOUNT_FILES = (TOOL,)


class Bind(NamedTuple):
    """A bind mount SRC:DST, and why it is there."""

    source: str
    target: str
    why: str

    @staticmethod
    def read(fields: Fields) -> "Bind":
        return Bind(fields.text("source"), fields.text("target"), fields.text("why"))


class NodeShape(NamedTuple):
    """What one node of the partition offers: cores are physical, memory is what a job may use, in MiB.

    ``numa_domains`` is None where nobody knows; there are at least as many as sockets. ``cpus`` is what the scheduler
    counts, None: all hardware threads; some sites let it count cores alone.
    """

    sockets: int
    cores: int
    threads_per_core: int
    memory_mb: int
    numa_domains: Optional[int] = None
    cpus: Optional[int] = None

    @staticmethod
    def read(fields: Fields) -> "NodeShape":
        sockets, cores, threads, memory = (fields.number(name) for name in NodeShape._fields[:4])
        more = (fields.maybe_number(name) for name in NodeShape._fields[4:])
        return NodeShape(sockets, cores, threads, memory, *more)


#: Runtimes that a bundle's kit brings to a site that lacks them.
CARRIED = ("udocker",)
#: No container at all: the host's own programs, to compare with. Never taken unless the user asks for it.
NATIVE = "native"
RUNTIMES = ("charliecloud", *CARRIED, NATIVE)

#: MPI families by what a program is linked to: libmpi.so.12 (MPICH, Intel MPI, Cray MPICH, MVAPICH), libmpi.so.40.
MPICH_ABI = "mpich-abi"
OPENMPI = "openmpi"
ABIS = {"intel": MPICH_ABI, "mpich": MPICH_ABI, "openmpi": OPENMPI}
SONAMES = {MPICH_ABI: "libmpi.so.12", OPENMPI: "libmpi.so.40"}


class HostMpi(NamedTuple):
    """The site's MPI that takes the place of the image's.

    ``library`` is the absolute path of the file with the ABI's soname on the host, and in the container too: binds
    are on the same path. ``says`` is what MPI_Get_library_version must begin with, empty where nobody knows.
    ``identity`` is the file's, as ``deployer.system.elf`` tells it, when the site was captured.
    """

    family: str
    version: str
    prefix: str
    library: str
    says: str
    identity: Optional[str] = None

    @property
    def abi(self) -> str:
        """Return which ABI the programs that it can run are compiled for."""
        return ABIS.get(self.family, self.family)

    @staticmethod
    def read(fields: Fields) -> "HostMpi":
        family, version, prefix, library, says = (fields.text(name) for name in HostMpi._fields[:5])
        return HostMpi(family, version, prefix, library, says, fields.maybe_text("identity"))


#: Where the image is while ranks run: as it was installed, or put once a node before they start and removed after, in
#: the node's memory or on a disk of its own; for squashfs as one compressed file in memory, mounted once.
FOLDER = "folder"
MEMORY = "memory"
DISK = "disk"
SQUASHFS = "squashfs"
STAGINGS = (FOLDER, MEMORY, DISK, SQUASHFS)


class StartOption(NamedTuple):
    """One way to start the job: runtime, staging (of ``STAGINGS``), launcher and PMI, and the most nodes it is meant
    for.

    With ``join`` the ranks of a node share one container's namespaces: MPICH's own shared memory needs it.
    ``program`` is where the launcher stands, None: in PATH, once the plan's modules are loaded. ``pmi`` is srun's word.
    ``place`` is the node's own folder that the image is staged in, and ``room_mb`` the size of its file system, where
    it is known. From ``broadcast`` nodes on, the scheduler sends them the file that is staged.
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

    @staticmethod
    def read(fields: Fields) -> "StartOption":
        texts = [fields.text(name) for name in StartOption._fields[:5]]
        return StartOption(
            texts[0],
            texts[1],
            texts[2],
            texts[3],
            texts[4],
            fields.maybe_number("max_nodes"),
            fields.record.get("join") is True,
            fields.maybe_text("program"),
            fields.maybe_text("place"),
            fields.maybe_number("room_mb"),
            fields.maybe_number("broadcast"),
        )


class Limits(NamedTuple):
    """What a job in the plan's partition may ask for; None: nobody knows, or no limit. ``max_time`` is as Slurm says
    it. ``account``: it must name one."""

    max_nodes: Optional[int] = None
    max_time: Optional[str] = None
    account: bool = False

    @staticmethod
    def read(fields: Fields) -> "Limits":
        return Limits(
            fields.maybe_number("max_nodes"), fields.maybe_text("max_time"), fields.record.get("account") is True
        )


class Plan(NamedTuple):
    """All that the site needs to know to run a bundle there; see the module's text for the idea.

    ``environment`` is set in the container after the image's own; ``pass_environment`` are the only names (globs)
    that come in from the host. ``directives`` are extra ``#SBATCH`` words. ``mpi`` is None where the image's own MPI
    is meant to be used. ``workspace`` may hold ``~``, which the site expands. ``python`` are the site's Pythons in
    order of preference. ``abi`` is the MPI family whose variant of Horovod is taken, where the bundle has variants:
    that of ``mpi``, else of the image's own; None where nobody said what the image's is. ``checked`` is what ``check``
    said when the plan was made; None in plans of an older deployer. ``host`` are single files of the host, which the
    container sees in a folder of their own. ``account`` is charged where the user names none. ``against`` says why
    runtimes of start options cannot be used on the nodes, as the profile knows it; ``namespaces`` whether users can
    make user namespaces there, None: nobody knows.
    """

    site: str
    partition: str
    profile_digest: str
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
    host: Tuple[HostFile, ...] = ()
    account: Optional[str] = None
    limits: Limits = Limits()
    against: Mapping[str, str] = {}
    namespaces: Optional[bool] = None

    @property
    def containers(self) -> List[StartOption]:
        """Return the start options with a container: the site chooses among them, and ``check`` judges them."""
        return [option for option in self.start_options if option.runtime != NATIVE]

    @property
    def way(self) -> str:
        """Return what ranks run with, for people: MPI, launchers and runtimes."""
        own = self.mpi.says or "%s %s" % (self.mpi.family, self.mpi.version) if self.mpi else "the image's own MPI"
        launchers = [each.launcher + (" (%s)" % each.pmi if each.pmi else "") for each in self.containers]
        runtimes = [each.runtime for each in self.containers]
        listed = [" or ".join(dict.fromkeys(names)) or "nothing to start it" for names in (launchers, runtimes)]
        return "with %s, %s, %s" % (own, listed[0], listed[1])

    def record(self) -> Record:
        """Return the plan as a JSON record."""
        keys = {"start_options": _START_OPTIONS_KEY}
        fields = {keys.get(name, name): value for name, value in self._asdict().items()}
        fields["node"] = dict(self.node._asdict())
        fields["mpi"] = dict(self.mpi._asdict()) if self.mpi else None
        fields["binds"] = [dict(bind._asdict()) for bind in self.binds]
        fields["against"] = dict(self.against)
        fields[_START_OPTIONS_KEY] = [dict(option._asdict()) for option in self.start_options]
        if self.checked is None:
            del fields["checked"]
        else:
            fields["checked"] = self.checked.record()
        fields["host"] = [dict(item._asdict()) for item in self.host]
        fields["limits"] = dict(self.limits._asdict())
        return json_records.stamped(SCHEMA, fields, _FORMAT, _FORMAT if self.host else _WITHOUT_HOST)


def read(data: bytes, what: str) -> Plan:
    """Parse a plan; ``what`` names it in errors. Raises UsageError."""
    fields = json_records.loads(data, SCHEMA, what, known=_FORMAT)
    mpi, limits, checked = (fields.maybe_child(name) for name in ("mpi", "limits", "checked"))
    return Plan(
        site=fields.text("site"),
        partition=fields.text("partition"),
        profile_digest=fields.text("profile_digest"),
        bundle=fields.text("bundle"),
        workspace=fields.text("workspace"),
        python=fields.texts("python"),
        node=NodeShape.read(fields.child("node")),
        scheduler=fields.text("scheduler"),
        directives=fields.texts("directives"),
        modules=fields.texts("modules"),
        mpi=HostMpi.read(mpi) if mpi else None,
        binds=[Bind.read(item) for item in fields.items("binds")],
        environment=fields.environment("environment"),
        pass_environment=fields.texts("pass_environment"),
        start_options=[StartOption.read(item) for item in fields.items(_START_OPTIONS_KEY)],
        abi=fields.maybe_text("abi"),
        checked=Checked.read(checked) if checked else None,
        host=tuple(map(HostFile.read, fields.items("host"))) if "host" in fields.record else (),
        account=fields.maybe_text("account"),
        limits=Limits.read(limits) if limits else Limits(),
        against=fields.mapping("against") if "against" in fields.record else {},
        namespaces=fields.maybe_flag("namespaces"),
    )
