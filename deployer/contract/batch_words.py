"""The words of each batch system in hints and remedies: a hint about Slurm's programs helps nobody on a PBS site."""

from typing import NamedTuple, Optional


class BatchWords(NamedTuple):
    """How people do with a batch system what a hint tells them to do.

    Attributes:
        on_node: runs a command on a compute node; ``%s`` is the command.
        exclude: how to exclude a node.
        pmi: where to see which PMI the launcher offers, and what it passes.
        cpus: where to see which CPUs a rank has.
        memory: prints the memory of nodes.
        partitions: lists partitions or queues.
    """

    on_node: str = "%s, in a job"
    exclude: str = "exclude the node"
    pmi: str = "the plan's launcher, and check that the container receives its variables (PMI_*, PMIX_*)"
    cpus: str = "what job.sh requests, and how the launcher binds ranks"
    memory: str = "free -m on a node"
    partitions: str = "of the batch system"


_WORDS = {
    "slurm": BatchWords(
        "srun %s",
        "exclude the node (--directive=--exclude=NODE)",
        "the plan's pmi and `srun --mpi=list`, and check that the container receives PMI_*, PMIX_* and SLURM_*",
        "--cpus-per-task and --cpu-bind in job.sh and the site's task plugin",
        "sinfo -o %m",
        "sinfo -s",
    ),
    "pbs": BatchWords("%s, in a job (qsub)", memory="pbsnodes -a", partitions="qstat -Q"),
    "gridengine": BatchWords("%s, in a job (qsub)", memory="qhost", partitions="qconf -sql"),
    "lsf": BatchWords("%s, in a job (bsub)", memory="lshosts", partitions="bqueues"),
    "hosts": BatchWords("ssh NODE %s", "remove the node from `hosts` in the site's profile"),
    "local": BatchWords("%s"),
}


def words(scheduler: Optional[str]) -> BatchWords:
    """Return the words of a batch system; None, or one that is not known: words that hold for all."""
    return _WORDS.get(scheduler or "", BatchWords())
