"""The site profile: facts about one site, with their source, as a YAML file that a person curates.

The model is the schema: ``site_profiles/schema.json`` is generated from it, and editors complete from that.
"""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from deployer.connected.yaml_model import Model, Place, Problems, load_model
from deployer.contract.errors import UsageError

#: Where the profiles that come with deployer are: beside the package in a checkout.
CURATED = Path(__file__).resolve().parents[2] / "site_profiles"

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Absolute = Annotated[str, Field(pattern=r"^/[^\n:]*$")]


class Source(Model):
    """Where a fact comes from: captured on the site, a document, or nobody's word yet."""

    kind: Literal["captured", "document", "unverified"]
    where: str
    date: date


class Login(Model):
    """How to reach the site: ``host`` is what ssh is given; ``python`` are its Pythons in order of preference."""

    host: str
    python: list[str] = Field(default=["python3"], min_length=1)


class Scheduler(Model):
    """The batch system and the PMI types that its launcher offers (``srun --mpi=list``)."""

    kind: Literal["slurm"]
    version: str | None = None
    pmi: list[str] = []


class Runtime(Model):
    """A container runtime that is on the site's compute nodes."""

    version: str | None = None


class Policy(Model):
    """What the site allows: a closed list of runtimes."""

    runtimes: list[Literal["charliecloud"]] = Field(min_length=1)


class Mpi(Model):
    """An MPI installation. Paths but ``prefix`` are relative to it.

    ``library`` is the file that carries the ABI's soname (default: that name in ``lib``); ``libraries`` are the folders
    that the loader must search, in order; ``says`` is how MPI_Get_library_version begins.
    """

    family: Literal["intel", "mpich", "openmpi"]
    version: str
    prefix: Absolute
    library: str | None = None
    libraries: list[str] = ["lib"]
    providers: str | None = None
    module: str | None = None
    says: str
    source: Source | None = None


class Fabric(Model):
    """The network that MPI is meant to use, and libfabric's provider for it."""

    kind: Literal["ethernet", "omni-path", "infiniband"]
    provider: str
    source: Source | None = None


class Node(Model):
    """The shape of a node: physical cores; ``memory_mb`` is what a job may use, in MiB."""

    sockets: int = Field(ge=1)
    cores: int = Field(ge=1)
    threads_per_core: int = Field(default=1, ge=1)
    memory_mb: int = Field(ge=1)


class Partition(Model):
    """A group of like nodes. ``mpi`` names an entry of the profile's ``mpi``, or is null: the image's own is used."""

    nodes: int = Field(ge=1)
    node: Node
    mpi: str | None = None
    launcher: Literal["srun"] = "srun"
    pmi: str
    directives: list[str] = []
    source: Source | None = None


class Profile(Model):
    """A site profile. The first partition is the default one."""

    # The order of the fields matters: a validator sees those before its own.
    format: Literal[1]
    name: Name
    description: str
    source: Source
    login: Login
    workspace: str
    glibc: str | None = None
    scheduler: Scheduler
    policy: Policy
    runtimes: dict[Literal["charliecloud"], Runtime]
    fabric: Fabric
    mpi: dict[str, Mpi] = {}
    partitions: dict[str, Partition] = Field(min_length=1)

    @field_validator("runtimes")
    @classmethod
    def _one_is_allowed(cls, runtimes: dict[str, Runtime], info: ValidationInfo) -> dict[str, Runtime]:
        policy = info.data.get("policy")
        if policy is not None and not set(policy.runtimes) & set(runtimes):
            raise ValueError(f"no runtime that the policy allows is on the site: {', '.join(policy.runtimes)}")
        return runtimes

    @field_validator("partitions")
    @classmethod
    def _names_are_known(cls, partitions: dict[str, Partition], info: ValidationInfo) -> dict[str, Partition]:
        found: list[tuple[Place, str]] = []
        mpi, scheduler = info.data.get("mpi"), info.data.get("scheduler")
        for name, partition in partitions.items():
            if mpi is not None and partition.mpi is not None and partition.mpi not in mpi:
                known = ", ".join(mpi) or "none"
                found.append(((name, "mpi"), f"{partition.mpi!r} is not in mpi of the profile; known: {known}"))
            if scheduler is not None and scheduler.pmi and partition.pmi not in scheduler.pmi:
                offered = ", ".join(scheduler.pmi)
                found.append(((name, "pmi"), f"{partition.pmi!r} is not offered by the scheduler: {offered}"))
        if found:
            raise Problems(found)
        return partitions


def load(site: str) -> Profile:
    """Return the profile that ``site`` names: a curated one, or a path of a YAML file. Raises UsageError."""
    path = Path(site)
    if "/" not in site and not site.endswith((".yaml", ".yml")):
        path = CURATED / f"{site}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(found.stem for found in CURATED.glob("*.yaml"))) or "none"
            raise UsageError(f"no site profile is called {site!r}", f"curated profiles: {known}; or give a file's path")
    return load_model(Profile, path, "a site profile")
