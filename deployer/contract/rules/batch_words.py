"""The batch systems that a profile may name, with the terms of each that hints and remedies use on both sides.

Everything else about a batch system is in its class: ``deployer.site.jobs.schedulers``.
"""

from typing import NamedTuple, Optional, Tuple


class BatchWords(NamedTuple):
    """The commands and terms of a batch system, for use in hints.

    Attributes:
        on_node: runs a command on a compute node; ``%s`` is the command.
        exclude: how to exclude a node.
        pmi: where to see which PMI the launcher offers, and what it passes.
        cpus: where to see which CPUs a rank has.
        memory: prints the memory of nodes.
        partitions: lists partitions or queues.
        gpus: the usual word for GPUs in a request; empty: no usual word.
        gpu_words: the only words allowed in such a request; None: any.
        gpu_source: the word for such a request, with where to find it.
        storage: whether jobs request file systems.
        programs: further commands that users call.
        libraries: a pattern for the beginning of its libraries' names.
        launchers: launchers of sites for its jobs, which start the ranks of any MPI.
    """

    on_node: str = "%s, in a job"
    exclude: str = "exclude the node"
    pmi: str = "the plan's launcher, and check that the container receives its variables (PMI_*, PMIX_*)"
    cpus: str = "what job.sh requests, and how the launcher binds ranks"
    memory: str = "free -m on a node"
    partitions: str = "of the batch system"
    gpus: str = ""
    gpu_words: Optional[Tuple[str, ...]] = None
    gpu_source: str = ""
    storage: bool = False
    programs: str = ""
    libraries: str = ""
    launchers: Tuple[str, ...] = ()


WORDS = {
    "slurm": BatchWords(
        on_node="srun %s",
        exclude="exclude the node (--directive=--exclude=NODE)",
        pmi="the plan's pmi and `srun --mpi=list`, and check that the container receives PMI_*, PMIX_* and SLURM_*",
        cpus="--cpus-per-task and --cpu-bind in job.sh and the site's task plugin",
        memory="sinfo -o %m",
        partitions="sinfo -s",
        gpus="gres",
        gpu_words=("gres", "gpus-per-node"),
        gpu_source="gres (sinfo -o %G)",
        programs="sbatch salloc scontrol squeue sinfo sacct scancel sstat",
        libraries="slurm|munge",
        launchers=("ibrun",),
    ),
    "gridengine": BatchWords(
        on_node="%s, in a job (qsub)",
        memory="qhost",
        partitions="qconf -sql",
        gpu_source="a resource's name (qconf -sc)",
        programs="qsub qstat qdel",
    ),
    "pbs": BatchWords(
        on_node="%s, in a job (qsub)",
        memory="pbsnodes -a",
        partitions="qstat -Q",
        gpus="ngpus",
        gpu_source="ngpus (PBS)",
        storage=True,
        programs="qsub qstat qdel pbsnodes pbsdsh",
        libraries="pbs|torque",
        launchers=("pals",),
    ),
    "lsf": BatchWords(
        on_node="%s, in a job (bsub)",
        memory="lshosts",
        partitions="bqueues",
        gpus="gpu",
        gpu_source="gpu (LSF)",
        programs="bsub bjobs bkill",
        libraries="lsf|bat",
    ),
    "hosts": BatchWords(
        on_node="ssh NODE %s", exclude="remove the node from `hosts` in the site's profile", gpu_words=()
    ),
    "local": BatchWords(on_node="%s", gpu_words=()),
}


def words(scheduler: Optional[str]) -> BatchWords:
    """Return the words of a batch system; for None or an unknown one, words that apply to all."""
    return WORDS.get(scheduler or "", BatchWords())
