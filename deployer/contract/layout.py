"""The hybrid layout of a job: ranks a node times threads a rank, against what a node has.

A *core* is physical; a *CPU* is what Slurm and the kernel count, so a core with hyperthreads is two. Ranks times
threads may be up to the CPUs of a node: up to the cores each thread has a core of its own, beyond that the hyperthreads
are used.
"""

from typing import Dict, NamedTuple, Optional

from deployer.contract.errors import Refused, UsageError
from deployer.contract.plan import NodeShape


class Layout(NamedTuple):
    """``cpus_per_rank`` is what the scheduler is asked for a rank; ``memory_mb`` is for one rank, None: not limited."""

    nodes: int
    ranks_per_node: int
    threads: int
    cpus_per_rank: int
    hyperthreads: bool
    memory_mb: Optional[int]

    @property
    def ranks(self) -> int:
        """The size of the world."""
        return self.nodes * self.ranks_per_node


def lay_out(nodes: int, ranks_per_node: int, threads: int, shape: NodeShape, memory_mb: Optional[int] = None) -> Layout:
    """Return the layout of ``nodes`` x ``ranks_per_node`` ranks with ``threads`` each.

    ``memory_mb`` is what one rank needs, in MiB. Raises UsageError for a count below one, and Refused, with the
    arithmetic, for more threads than a node has CPUs or more memory than a job may use there.
    """
    for what, count in (("nodes", nodes), ("ranks a node", ranks_per_node), ("threads a rank", threads)):
        if count < 1:
            raise UsageError("%s must be at least 1, not %d" % (what, count))
    cpus = shape.cores * shape.threads_per_core
    wanted = ranks_per_node * threads
    if wanted > cpus:
        raise Refused(
            "%d ranks a node x %d threads = %d, but a node has %d cores x %d hardware threads = %d CPUs"
            % (ranks_per_node, threads, wanted, shape.cores, shape.threads_per_core, cpus),
            "with %d ranks a node: --threads %d at most" % (ranks_per_node, cpus // ranks_per_node)
            if ranks_per_node <= cpus
            else "--ranks-per-node %d at most" % cpus,
        )
    if memory_mb is not None and ranks_per_node * memory_mb > shape.memory_mb:
        raise Refused(
            "%d ranks a node x %d MiB = %d MiB, but a job may use %d MiB of a node"
            % (ranks_per_node, memory_mb, ranks_per_node * memory_mb, shape.memory_mb),
            "use fewer ranks a node and more nodes",
        )
    hyperthreads = wanted > shape.cores
    return Layout(
        nodes,
        ranks_per_node,
        threads,
        threads if hyperthreads else threads * shape.threads_per_core,  # a whole core for each thread where they fit
        hyperthreads,
        memory_mb,
    )


def environment(layout: Layout, mpi_family: Optional[str]) -> Dict[str, str]:
    """Return what OpenMP, the MPI library (``intel``, ``mpich``, ... or None) and TensorFlow read of the layout."""
    threads = str(layout.threads)
    found = {
        "OMP_NUM_THREADS": threads,
        "OMP_PLACES": "threads" if layout.hyperthreads else "cores",
        "OMP_PROC_BIND": "close",
        # Intel's OpenMP runtime: spread over cores first, then over their hyperthreads; do not spin between regions.
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "0",
        "TF_NUM_INTRAOP_THREADS": threads,
        # Operations that can run side by side; more would compete with the OpenMP threads inside each.
        "TF_NUM_INTEROP_THREADS": "1" if layout.threads == 1 else "2",
    }
    if mpi_family == "intel":
        # Without it Intel MPI pins each rank to one core. "omp" is OMP_NUM_THREADS CPUs: too few where a thread has
        # a whole core of two.
        same = layout.cpus_per_rank == layout.threads
        found["I_MPI_PIN_DOMAIN"] = "omp" if same else "%d:compact" % layout.cpus_per_rank
    return found
