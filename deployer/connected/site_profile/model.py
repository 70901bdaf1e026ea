"""The model of a site profile: facts about one site, by partition, each with its source.

``site_profiles/schema.json`` is generated from this model, for completion in editors. Unknown facts are left out of a
profile, and are None or empty here. They are never guessed.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field, PrivateAttr, ValidationInfo, field_validator

from deployer.connected.ground.yaml_model import KeyPath, Model, Problems, Sha256, form
from deployer.connected.site_profile import forms
from deployer.connected.site_profile.machine import FactSource, Machine, NodeGpus, NodeHardware, SiteRuntime
from deployer.contract.base.errors import Unknown, UsageError
from deployer.contract.elf.dynamic import Facts
from deployer.contract.rules.batch_words import WORDS, words
from deployer.contract.site.plan import ABIS, INSIDE, MPICH_ABI, NO_REQUEST, OPENMPI, Plan
from deployer.contract.site.runtime_table import CARRIED, RUNTIMES, supported

#: The default library below an MPI's prefix that programs are linked to.
_LIBRARY = {MPICH_ABI: "lib/libmpi.so.12", OPENMPI: "lib/libmpi.so.40"}
#: System prefixes. Bound on their own path, they would hide the image's files.
_SYSTEM = ("/", "/usr", "/usr/local", "/usr/lib", "/usr/lib64", "/lib", "/lib64")


class Lacking(Unknown):
    """A profile lacks the fact at ``place``, which a plan needs."""

    def __init__(self, message: str, hint: str, place: KeyPath) -> None:
        super().__init__(message, hint)
        self.place = place


class Login(Machine):
    """How to reach the site, and facts about its login nodes.

    Attributes:
        host: the login host for ssh: ``login.example.org``.
        transfer: a host only for files: ``transfer.example.org``.
        inbox: the folder for arriving files, ``/proj/$PROJECT/inbox``, if it is not in the workspace: ``push`` sends
            them through ``transfer``.
        python: Python interpreters in order of preference, 3.6 or newer: ``[python3.9, python3]``.
        mksquashfs: it is in PATH. If this is false or unknown, bundles include their own.
        reaches_nodes: it can connect to ports of compute nodes, which ``notebook`` needs.
        source: where these facts come from.
    """

    host: forms.HostName | None = None
    transfer: forms.HostName | None = None
    inbox: forms.SiteFolder | None = None
    python: list[str] = Field(default=["python3"], min_length=1)
    mksquashfs: bool | None = None
    reaches_nodes: bool | None = None
    source: FactSource | None = None


class SiteScheduler(Model):
    """The batch system.

    Attributes:
        kind: the batch system. Without one: ``hosts``, if ssh starts jobs on a list of hosts, or ``local``, if jobs run
            immediately on the login host.
        version: its version: ``22.05.8``.
        pmi: PMI types of its launcher, as ``srun --mpi=list`` prints them: ``[pmi2, pmix]``.
        account: the account for jobs whose user names none: ``pn12ab``, or a variable: ``$PROJECT``.
        gpu_request: the word with which jobs request GPUs. Slurm: ``gres`` (``--gres=gpu:TYPE:N``) or
            ``gpus-per-node``; PBS: ``ngpus``; LSF: ``gpu``; Grid Engine: the name of the resource. ``none``: jobs see
            the GPUs of their nodes without a request.
        storage: file systems that each job must request (PBS: ``-l storage=``): ``[scratch/$PROJECT]``.
        source: where these facts come from.
    """

    kind: forms.BatchKind
    version: str | None = None
    pmi: list[str] = []
    account: forms.Account | None = None
    gpu_request: forms.BatchName | None = None
    storage: list[forms.Storage] = []
    source: FactSource | None = None

    @field_validator("gpu_request")
    @classmethod
    def _is_known(cls, word: str | None, info: ValidationInfo) -> str | None:
        problem = _unknown_request(info.data.get("kind"), word)
        if problem:
            raise ValueError(problem)
        return word

    @field_validator("storage")
    @classmethod
    def _has_a_request(cls, storage: list[str], info: ValidationInfo) -> list[str]:
        kind = info.data.get("kind")
        if storage and kind is not None and not words(kind).storage:
            having = ", ".join(name for name, each in WORDS.items() if each.storage)
            raise ValueError(f"only {having} has such a request: remove it, or list it in directives")
        return storage


def _unknown_request(kind: str | None, word: str | None) -> str | None:
    """Return an error for a word that requests GPUs, or None if it is valid."""
    known = words(kind).gpu_words
    if word in (None, NO_REQUEST) or known is None or word in known:
        return None
    return f"{kind} knows {' and '.join(known)}, not {word!r}" if known else f"{kind} has no requests: remove it"


class RuntimePolicy(Model):
    """What the site allows.

    Attributes:
        runtimes: the allowed runtimes. ``native`` means no container, for comparison: only if a user requests it.
        account: jobs must name an account (``--account``).
        source: where these facts come from.
    """

    runtimes: list[forms.Allowed] = Field(min_length=1)
    account: bool | None = None
    source: FactSource | None = None


class Mpi(Model):
    """An MPI installation. Paths are relative to the prefix, except ``prefix`` and ``binds``.

    Attributes:
        family: the family of MPI.
        version: its version: ``2021.9``.
        prefix: its folder: ``/opt/intel/mpi/2021.9.0``.
        library: the library with the ABI's soname; default: ``lib/libmpi.so.12``, for Open MPI ``lib/libmpi.so.40``.
        libraries: folders that the loader must search, in order: ``[lib/release, lib]``.
        providers: the folder of libfabric's providers: ``libfabric/lib/prov``.
        binds: further folders that it needs on their own path: ``[/opt/ucx]``.
        folders: folders outside of the prefix that Open MPI and PMIx find by a variable, by that variable's name:
            ``OPAL_PKGDATADIR: /usr/share/openmpi``.
        module: the module that loads it, ``intel-mpi/2021.9``, or several, in order.
        launcher: its launcher, ``bin/mpirun``; default: in PATH after its module is loaded.
        environment: variables that the site sets for it: ``I_MPI_HYDRA_BOOTSTRAP: slurm``.
        says: the beginning of what MPI_Get_library_version returns: ``Intel(R) MPI Library 2021.9``.
        soname: the soname of the library: ``libmpi.so.12``.
        identity: the build id or SHA-256 of the library, ``build-id:4f2a...``; capture writes it.
        files: facts of its ELF files and of those that they may open; capture writes them.
        links: targets of symbolic links; capture writes them.
        source: where these facts come from.
    """

    variables = frozenset({"environment"})

    family: Literal["intel", "mpich", "openmpi", "cray", "mvapich"]
    version: str | None = None
    prefix: forms.Absolute
    library: str | None = None
    libraries: list[str] = ["lib"]
    providers: str | None = None
    binds: list[forms.Absolute] = []
    folders: dict[forms.FolderVariable, forms.Absolute] = {}
    module: forms.Names = []
    launcher: str | None = None
    environment: dict[str, str] = {}
    says: str | None = None
    soname: str | None = None
    identity: (
        Annotated[str, form(r"^(build-id|sha256):[0-9a-f]+$", "build-id:HEX or sha256:HEX, as capture writes it")]
        | None
    ) = None
    files: dict[str, forms.FileFacts] = {}
    links: dict[str, str] = {}
    source: FactSource | None = None

    @property
    def abi(self) -> str:
        """Return the ABI that its programs are compiled for."""
        return ABIS.get(self.family, self.family)

    @property
    def library_path(self) -> str:
        """Return the path of the library that programs are linked to."""
        return f"{self.prefix}/{self.library or _LIBRARY[ABIS.get(self.family, MPICH_ABI)]}"

    @property
    def in_system(self) -> bool:
        """Return whether it is one of the system's own libraries, as packaged by distributions."""
        return self.prefix in _SYSTEM


#: How the site starts the ranks; see ``plan.LAUNCHES``.
LaunchWay = Literal["outside", "inside"]


class Partition(Machine):
    """A group of equal nodes. Facts that it lacks are taken from the top of the profile.

    Attributes:
        nodes: the number of nodes: ``6336``.
        max_nodes: the largest number of nodes per job: ``768``.
        max_time: the time limit of jobs, [D-]HH:MM:SS or ``infinite``: ``2-00:00:00``.
        node: the shape of a node.
        queue: the batch system's name of the partition, ``normal``, if it differs from this entry's; empty: its default
            one. Two kinds of nodes in one partition are two entries with the same queue.
        qos: the quality of service that jobs request: ``large``.
        cluster: the cluster of the batch system, if there are several (Slurm: ``--clusters``): ``gpu-cluster``.
        constraint: features that jobs request, which only these nodes have: ``zen3&nvme``.
        account: the account for jobs whose user names none, over that of ``scheduler``: ``pn12ab``.
        account_suffix: appended to accounts for these nodes: ``-gpu``.
        gpu_request: the word with which jobs request GPUs, over that of ``scheduler``: ``gres``.
        storage: file systems that each job must request, besides those of ``scheduler``: ``[gdata/ab12]``.
        exclusive: jobs request whole nodes.
        request_memory: a job that requests no memory gets too little, so each requests its part of the nodes' memory,
            and all of it for all CPUs.
        mpi: an entry of the profile's ``mpi``, or several, best first: the first one that the bundle can use is chosen.
            null: the image's own MPI is used.
        launch: how the site starts the ranks of these nodes, over ``launch`` of the whole profile.
        launcher: the program that starts ranks; ``pals`` is HPE's mpiexec. Default: that of the site if ``launchers``
            has it (pals, ibrun), srun if ``pmi`` is given or srun offers a PMI that the MPI supports, otherwise
            the MPI's own launcher.
        pmi: the PMI type for srun, ``pmi2``, or for PALS: ``cray`` or ``pmix``.
        scripts: scripts that the job's shell reads first, besides those of the whole profile: ``[/etc/gpu.sh]``.
        module_paths: folders of modules to use, besides those of the whole profile: ``[/opt/modules/gpu]``.
        modules: modules to load before the MPI's: ``[slurm_setup]``.
        environment: variables that the site sets for jobs: ``FI_PROVIDER: psm2``.
        mounts: folders of the site that jobs see on the same path, besides those of the whole profile: ``[/lustre]``.
        directives: additional options for the batch system, one line each: ``[--ear=off]``. They may have variables,
            as accounts: ``--wckey=$PROJECT``.
        parallel_environment: Grid Engine's name for how the slots of a job are dealt to nodes (``qconf -spl``).
        hosts: the nodes, without a batch system: ``[n1, n2]``; ssh reaches them from the login host without a password.
        source: where these facts come from.
    """

    variables = frozenset({"environment"})

    nodes: forms.Count | None = None
    max_nodes: forms.Count | None = None
    max_time: (
        Annotated[str, form(r"^((\d+-)?\d+(:[0-5]\d){0,2}|infinite)$", "[D-]HH:MM:SS, or infinite: 2-00:00:00")] | None
    ) = None
    node: NodeHardware | None = None
    queue: forms.QueueName | None = None
    qos: forms.BatchName | None = None
    cluster: forms.BatchName | None = None
    constraint: forms.Constraint | None = None
    account: forms.Account | None = None
    account_suffix: Annotated[str, form(r"^[A-Za-z0-9_.+-]+$", "letters, digits and _ . + -: -gpu")] | None = None
    gpu_request: forms.BatchName | None = None
    storage: list[forms.Storage] = []
    exclusive: bool | None = None
    request_memory: bool | None = None
    mpi: forms.Names = []
    launch: LaunchWay | None = None
    launcher: Literal["srun", "mpiexec.hydra", "mpirun", "pals", "ibrun"] | None = None
    pmi: str | None = None
    scripts: list[forms.Absolute] = []
    module_paths: list[forms.Absolute] = []
    modules: list[str] = []
    environment: dict[str, str] = {}
    mounts: list[forms.SiteMount] = []
    directives: list[forms.Directive] = []
    parallel_environment: str | None = None
    hosts: list[forms.HostName] = []
    source: FactSource | None = None

    @property
    def gpus(self) -> NodeGpus | None:
        """Return what is known about the GPUs of a node."""
        return self.node.gpus if self.node else None

    def runtime(self, name: str) -> SiteRuntime:
        """Return what is known about a runtime of the nodes."""
        return self.runtimes.get(name, SiteRuntime())


class FactsFile(Model):
    """The file of facts beside the profile, with its ``files`` and ``links``.

    Attributes:
        file: its name: ``lab.facts.json``.
        sha256: its SHA-256, 64 hexadecimal digits; capture writes it.
    """

    file: str
    sha256: Sha256


class Profile(Machine):
    """A site profile. The facts at its top apply to the nodes of all partitions that do not have their own.

    Attributes:
        format: the version of this format.
        name: the site's name: ``my-site``.
        extends: another profile with the facts that this one lacks, a curated one (``lab``) or a file (``./x.json``).
        description: one line of text: ``GPU cluster of the physics department``.
        source: where these facts come from.
        facts: the file of facts.
        notes: facts that capture could not find, with the reasons; capture writes them.
        login: the login nodes.
        workspace: the root folder on the site, with room for images: ``$SCRATCH/deployer``.
        scheduler: the batch system.
        policy: what the site allows.
        scripts: scripts that the shell of all jobs reads first: ``[/etc/profile.d/site.sh]``.
        module_paths: folders of modules to use (``module use``): ``[/opt/modules/mpi]``.
        modules: modules that all jobs load: ``[slurm_setup]``.
        mounts: folders of the site that all jobs see on the same path. They may have variables of the user's login
            shell (``/scratch/$PROJECT``), as may ``workspace`` and accounts: the site replaces them.
        launch: how the site starts the ranks. ``outside`` (the default): its launcher starts a container for each.
            ``inside``: the image's own launcher and MPI, in one container per node.
        mpi: MPI installations by name: ``intel-2021``.
        partitions: partitions by name; the first one is the default: ``micro``.
    """

    many_lines = frozenset({"description", "notes"})

    # The order of the fields matters: a validator receives the fields before its own.
    format: Literal[1]
    name: forms.SiteName
    extends: str | None = None
    description: str = ""
    source: FactSource
    facts: FactsFile | None = None
    notes: list[str] = []
    login: Login = Login()
    workspace: forms.UsersFolder | None = None
    scheduler: SiteScheduler | None = None
    policy: RuntimePolicy | None = None
    scripts: list[forms.Absolute] = []
    module_paths: list[forms.Absolute] = []
    modules: list[str] = []
    mounts: list[forms.SiteMount] = []
    launch: LaunchWay | None = None
    mpi: dict[str, Mpi] = {}
    partitions: dict[forms.PartitionName, Partition] = {}
    _left_out: dict[str, tuple[str | None, str]] = PrivateAttr(default={})

    @field_validator("partitions")
    @classmethod
    def _names_are_known(cls, partitions: dict[str, Partition], info: ValidationInfo) -> dict[str, Partition]:
        problems: list[tuple[KeyPath, str]] = []
        mpi, scheduler = info.data.get("mpi"), info.data.get("scheduler")
        policy, runtimes = info.data.get("policy"), info.data.get("runtimes")
        for name, partition in partitions.items():
            known = ", ".join(mpi or ()) or "none"
            missing = [each for each in partition.mpi if mpi is not None and each not in mpi]
            problems += [((name, "mpi"), f"{each!r} is not in mpi of the profile; known: {known}") for each in missing]
            request = _unknown_request(scheduler.kind, partition.gpu_request) if scheduler else None
            if request:
                problems.append(((name, "gpu_request"), request))
            if scheduler is not None and scheduler.pmi and partition.pmi and partition.pmi not in scheduler.pmi:
                offered = ", ".join(scheduler.pmi)
                problems.append(((name, "pmi"), f"{partition.pmi!r} is not offered by the scheduler: {offered}"))
            there = partition.runtimes or runtimes
            if policy is not None and runtimes is not None and not _usable(policy.runtimes, there or ()):
                allowed = ", ".join(policy.runtimes)
                problems.append(((name,), f"no runtime that the policy allows is on the site: {allowed}"))
        if problems:
            raise Problems(problems)
        return partitions

    def site_files(self, partition: str | None = None, mpi_name: str | None = None) -> "SiteFiles":
        """Return captured facts of files that jobs of a partition can load: files of its MPI and system libraries.

        Args:
            partition: None: the first.
            mpi_name: one of the partition's MPIs; None: the first.
        """
        _, chosen = self.partition(partition, mpi_name)
        first = [self.mpi[each] for each in chosen.mpi[:1]]
        files = {f"{mpi.prefix}/{path}": facts for mpi in first for path, facts in mpi.files.items()}
        links = {f"{mpi.prefix}/{path}": target for mpi in first for path, target in mpi.links.items()}
        return SiteFiles({**chosen.files, **files}, {**chosen.links, **links})

    def selected(
        self, partitions: Sequence[str], mpi: str | None, launch: str | None = None, why: str | None = None
    ) -> "Profile":
        """Return the profile with only some partitions, and with one MPI in the partitions that have it.

        Args:
            partitions: their names, the default one first; empty: all.
            mpi: the name of an MPI; None: all.
            launch: how ranks start, overriding the profile; None: as in the profile.
            why: the reason to leave the others out; None: the user did.

        Raises:
            UsageError: the partition does not exist, or no partition has this MPI.
        """
        names = list(partitions or self.partitions)
        own = {name: self.partition(name)[1].mpi for name in names}
        if mpi is not None and not any(mpi in each for each in own.values()):
            known = ", ".join(dict.fromkeys(each for group in own.values() for each in group)) or "none"
            hint = f"in partitions of the profile: {known}"
            raise UsageError(f"no partition of {self.name} has the MPI {mpi!r}", hint)
        of_all = {} if launch is None else {"launch": launch}
        changes = {name: {**of_all, **({"mpi": [mpi]} if mpi in own[name] else {})} for name in names}
        narrowed = {name: self.partitions[name].model_copy(update=changes[name]) for name in names}
        chosen = self.model_copy(update={"partitions": narrowed})
        reason = why or f"it was left out by --site {self.name}:{','.join(names)}"
        others = {name: (each.queue, reason) for name, each in self.partitions.items() if name not in names}
        chosen._left_out = {**self._left_out, **others}
        return chosen

    @property
    def left_out(self) -> Mapping[str, tuple[str | None, str]]:
        """The partitions that ``selected`` left out: their name in the batch system if different, and the reason."""
        return self._left_out

    @property
    def starts_inside(self) -> bool:
        """Whether the image's own launcher starts the ranks of a partition."""
        return any(self.partition(name)[1].launch == INSIDE for name in self.partitions)

    def files_of(self, plan: Plan) -> "SiteFiles":
        """Return captured facts of the files that jobs with a plan can load."""
        own = self.partition(plan.partition)[1].mpi
        name = next((each for each in own if plan.mpi and self.mpi[each].library_path == plan.mpi.library), None)
        return self.site_files(plan.partition, name)

    def partition(self, name: str | None = None, mpi: str | None = None) -> tuple[str, Partition]:
        """Return a partition with the facts from the top of the profile, and its name.

        Args:
            name: None: the first.
            mpi: the only one of its MPIs to keep; None: all.

        Raises:
            Lacking: the profile has no partitions.
            UsageError: there is no partition of this name, or it has no such MPI.
        """
        if not self.partitions:
            hint = "list them: `python3 deployer.pyz capture` does"
            raise Lacking(f"the profile of {self.name} lists no partitions", hint, ("partitions",))
        chosen = name or next(iter(self.partitions))
        if chosen not in self.partitions:
            raise UsageError(f"site {self.name} has no partition {chosen!r}", f"it has: {', '.join(self.partitions)}")
        own = self.partitions[chosen]
        keys = [*Machine.model_fields, "launch"]
        shared = {key: getattr(self, key) for key in keys if getattr(own, key) in (None, {}, [])}
        if mpi is not None:
            if mpi not in own.mpi:
                known = ", ".join(own.mpi) or "none: jobs use the image's own"
                raise UsageError(f"partition {chosen} of {self.name} has no MPI {mpi!r}", f"it has: {known}")
            shared["mpi"] = [mpi]
        return chosen, own.model_copy(update=shared)


def _usable(policy: Sequence[str], there: Iterable[str]) -> bool:
    """Return whether nodes have a runtime that a policy allows, or a bundle can carry one.

    A policy that allows only what deployer cannot use is `check`'s to refuse: it names the reason and an alternative.
    """
    carried = {RUNTIMES[name].policy_name for name in CARRIED}
    return bool(set(policy) & {*there, *carried}) or not any(map(supported, policy))


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
    ages = (Age(group, each, (today - each.date).days if each.date else None) for group, each in _sources(profile, ""))
    return sorted(ages, key=lambda each: (each.days is not None, -(each.days or 0)))


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
