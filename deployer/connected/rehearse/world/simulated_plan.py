"""The plan of a rehearsal: the site's plan, adapted to the simulated site. This module is pure."""

import re
from collections.abc import Callable
from typing import NamedTuple

from deployer.connected.rehearse.world import machine
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.base.text import counted
from deployer.contract.bundle.image_launcher import HYDRA, OF_ABI
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.site import plan as plans
from deployer.system.observe.observations import HOOK, HOOK_VARIABLE, SEEN, VARIABLE

#: The site's name in the private root folder.
SITE = "rehearsal"
#: Settings for networks and MPIs that only the site has.
_OF_A_FABRIC = re.compile(
    r"(FI|UCX|NCCL|RCCL|I_MPI|MPICH|MPIR|MV2|OMPI|PRTE|PMIX|PMI|PSM2?|PSM3|HFI|GLOO|ITEX|CRAY)_|LD_LIBRARY_PATH$"
)
_CONTAINER = "charliecloud"
#: Variables with which the simulated site's launcher and the image's launcher number the ranks; then Slurm's.
_PASSED = ("PMI_*", "PMIX_*", "OMPI_*", "MPI_LOCAL*")
_SRUN, _PASSED_BY_SLURM = "srun", ("SLURM_*", "SLURMD_*")
#: The variables that start the audit hook in each Python process of the job.
OBSERVED = {VARIABLE: f"{plans.JOB}/{SEEN}", HOOK_VARIABLE: f"{plans.JOB}/{HOOK}"}

#: Needed for Open MPI's mpirun as root. A rehearsal runs as the user, in a user namespace without other users.
_AS_ROOT = {f"{launcher}_ALLOW_RUN_AS_ROOT{end}": "1" for launcher in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}


class RehearsedLayout(NamedTuple):
    """The number and placement of ranks.

    Attributes:
        nodes: the number of nodes.
        ranks_per_node: ranks per node.
        threads: threads per rank.
        cores: the number of this machine's cores that each node has.
    """

    nodes: int
    ranks_per_node: int
    threads: int
    cores: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node


def layout(job: Job, ranks: int | None, cores: int) -> RehearsedLayout:
    """Return the layout of a rehearsal: the job's layout with fewer ranks, and as many threads as this machine can run.

    Args:
        ranks: the number of ranks; None: two, or one if the job has only one.
        cores: the number of this machine's cores.

    Raises:
        UsageError: the number of ranks is impossible.
    """
    whole = job.nodes * job.ranks_per_node
    wanted = min(2, whole) if ranks is None else ranks
    if wanted < 1:
        raise UsageError(f"--ranks {wanted}: not a number of ranks", "1 or more")
    nodes = min(wanted, job.nodes, 2)
    if wanted % nodes:
        raise UsageError(f"--ranks {wanted}: two nodes cannot have the same number of ranks", "give an even number")
    each = wanted // nodes
    if wanted > max(cores, 2):
        hint = f"--ranks {max(cores, 2)} at most"
        raise Refused(f"--ranks {wanted}: this machine has {counted(cores, 'core')}", hint)
    own = max(1, cores // nodes, each)
    return RehearsedLayout(nodes, each, max(1, min(job.threads, own // each)), own)


def make(
    manifest: Manifest,
    wanted: RehearsedLayout,
    site: plans.Plan | None,
    python: str,
    memory_mb: int,
    empty: Callable[[str], str],
) -> plans.Plan:
    """Return the plan of a rehearsal.

    Args:
        site: the site's plan; None: no particular site.
        python: the Python that runs the site's program.
        memory_mb: the memory of a node in MiB.
        empty: makes an empty folder in place of a folder of the site, and returns its path.
    """
    way = (site.started_inside() or site) if site else None
    own = next(iter(manifest.mpi), None)
    inside = own in OF_ABI and wanted.ranks > 1
    launcher = OF_ABI[own or ""] if inside else HYDRA
    return plans.Plan(
        site=SITE,
        partition=SITE,
        bundle=f"{manifest.name}:{manifest.version}",
        workspace="",
        python=[python],
        node=plans.NodeShape(1, wanted.cores, 1, memory_mb),
        scheduler="hosts",
        directives=[],
        modules=[],
        mpi=None,
        binds=[plans.Bind(empty(bind.target), bind.target, "a folder of the site, empty") for bind in folders(way)],
        environment={
            **environment(way),
            **OBSERVED,
            **(_AS_ROOT if inside else {}),
            "HWLOC_SYNTHETIC": f"core:{wanted.cores} pu:1",
        },
        pass_environment=[] if inside else _passed(manifest, site),
        start_options=[
            plans.StartOption(f"{_CONTAINER}-{plans.NOT_STAGED}", _CONTAINER, plans.NOT_STAGED, launcher, "", None)
        ],
        abi=own,
        namespaces=True,
        batch=plans.Batch(hosts=tuple(machine.names(wanted.nodes))),
        launch=plans.INSIDE if inside else plans.OUTSIDE,
    )


def slurm(manifest: Manifest, site: plans.Plan | None) -> dict[str, str]:
    """Return the variables that Slurm sets for every job like this one; empty if the ranks have no variables of Slurm.

    Ranks without MPI have the variables of the site's Slurm. With these, an MPI would search for Slurm's own programs.
    It has its own launcher here, to which the site passes none of these variables either.
    """
    if site is None or site.scheduler != "slurm" or plans.NO_MPI not in manifest.mpi:
        return {}
    return {"SLURM_JOB_NAME": manifest.name, "SLURM_JOB_PARTITION": site.queue or site.partition}


def _passed(manifest: Manifest, site: plans.Plan | None) -> list[str]:
    """Return the launcher's variables (globs) that ranks without MPI have. With srun, these are only Slurm's."""
    if site is None or not slurm(manifest, site):
        return list(_PASSED)
    by_srun = all(option.launcher == _SRUN for option in site.containers)
    return [*(() if by_srun else _PASSED), *_PASSED_BY_SLURM]


def folders(site: plans.Plan | None) -> list[plans.Bind]:
    """Return the binds of the site's own data folders on the same path, without those of its programs."""
    return [bind for bind in (site.binds if site else []) if bind.why == plans.FOLDER_OF_SITE]


def environment(site: plans.Plan | None) -> dict[str, str]:
    """Return the site's variables except those for its networks, MPI and drivers."""
    return {name: value for name, value in (site.environment if site else {}).items() if not _OF_A_FABRIC.match(name)}
