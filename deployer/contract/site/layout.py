"""The hybrid layout of a job: ranks per node times threads per rank, compared with a node's hardware.

A *core* is physical. A *CPU* is what the kernel counts: a core with hyperthreads has two. Ranks times threads must not
exceed the CPUs of a node. Up to the number of cores, each thread has its own core; above it, hyperthreads are used.
"""

from typing import Collection, Dict, Mapping, NamedTuple, Optional

from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.contract.rules.findings import ERROR, Finding, refused
from deployer.contract.site.plan import NodeShape

#: The codes for a layout that does not fit into a node, and for memory that a node does not have.
CODE, MEMORY = "job.layout", "job.memory"
_MOST_NODES = 1000000


class Layout(NamedTuple):
    """The layout of a job that fits its nodes.

    Attributes:
        nodes: number of nodes.
        ranks_per_node: ranks per node.
        threads: threads per rank.
        cpus_per_rank: hardware threads per rank.
        hyperthreads: whether threads share cores.
        memory_mb: MiB per rank; None: not limited.
        shape: a node's hardware.
        workers: the processes that each rank starts itself; they share its threads, CPUs and memory.
    """

    nodes: int
    ranks_per_node: int
    threads: int
    cpus_per_rank: int
    hyperthreads: bool
    memory_mb: Optional[int]
    shape: NodeShape
    workers: int = 1

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def asked_cpus(self) -> int:
        """The CPUs to request from the scheduler per rank, as the scheduler counts them."""
        there = self.shape.cores * self.shape.threads_per_core
        return -(-self.cpus_per_rank * (self.shape.cpus or there) // there)


def lay_out(nodes: int, ranks_per_node: int, threads: int, shape: NodeShape, memory_mb: Optional[int] = None) -> Layout:
    """Return the layout of ``nodes`` x ``ranks_per_node`` ranks with ``threads`` each.

    Args:
        shape: a node's hardware.
        memory_mb: MiB that one rank needs; None: not limited.

    Raises:
        UsageError: a number is less than 1, or there are too many nodes.
        Refused: the threads exceed the CPUs of a node, or the memory exceeds what a job may use; the message contains
            the calculation.
    """
    counts = [("nodes", nodes), ("ranks per node", ranks_per_node), ("threads per rank", threads)]
    if memory_mb is not None:
        counts.append(("MiB of memory per rank", memory_mb))  # for Slurm, 0 means all memory of the node
    for what, count in counts:
        if count < 1:
            raise UsageError("%s must be at least 1, not %d" % (what, count), "give 1 or more")
    if nodes > _MOST_NODES:
        raise UsageError("%d nodes are too many; the limit is %d" % (nodes, _MOST_NODES))
    against = objection(ranks_per_node, threads, shape, memory_mb)
    if against:
        raise refused(against)
    return _laid(nodes, ranks_per_node, threads, shape, memory_mb)


def _laid(nodes: int, ranks_per_node: int, threads: int, shape: NodeShape, memory_mb: Optional[int]) -> Layout:
    hyperthreads = ranks_per_node * threads > shape.cores
    cpus = threads if hyperthreads else threads * shape.threads_per_core  # if possible, a whole core per thread
    return Layout(nodes, ranks_per_node, threads, cpus, hyperthreads, memory_mb, shape)


def objection(ranks_per_node: int, threads: int, shape: NodeShape, memory_mb: Optional[int]) -> Optional[Finding]:
    """Return why ranks do not fit into a node, with the calculation, or None. The numbers must be at least 1."""
    cpus, ranks = shape.cores * shape.threads_per_core, counted(ranks_per_node, "rank")
    if ranks_per_node * threads > cpus:
        there = (counted(shape.cores, "core"), counted(shape.threads_per_core, "hardware thread"), counted(cpus, "CPU"))
        return _against(
            "%s per node x %s = %d, but a node has %s x %s = %s"
            % (ranks, counted(threads, "thread"), ranks_per_node * threads, *there),
            "with %s per node: --threads %d at most" % (ranks, cpus // ranks_per_node)
            if ranks_per_node <= cpus
            else "--ranks-per-node %d at most" % cpus,
        )
    asked = _laid(1, ranks_per_node, threads, shape, memory_mb).asked_cpus
    if shape.cpus is not None and ranks_per_node * asked > shape.cpus:
        has = (counted(shape.cpus, "CPU"), counted(shape.cores, "core"))
        return _against(
            "%s per node x %s = %d, but the scheduler counts %s on a node with %s"
            % (ranks, counted(asked, "CPU"), ranks_per_node * asked, *has),
            "ranks cannot share a core: --ranks-per-node %d at most" % shape.cpus,
        )
    if memory_mb is not None and ranks_per_node * memory_mb > shape.memory_mb:
        fitting = shape.memory_mb // memory_mb
        return _against(
            "%s per node x %d MiB = %d MiB, but a job may use %d MiB per node"
            % (ranks, memory_mb, ranks_per_node * memory_mb, shape.memory_mb),
            "use fewer ranks per node and more nodes: --ranks-per-node %d at most" % fitting
            if fitting
            else "correct `memory` of the job, which is MiB per rank, or use a partition with larger nodes",
            MEMORY,
        )
    return None


def _against(reason: str, remedy: str, code: str = CODE) -> Finding:
    return Finding(code, ERROR, "", reason, remedy)


def gathered(layout: Layout) -> Layout:
    """Return the layout with one process per node, which has all resources of the node's ranks."""
    ranks = layout.ranks_per_node
    return layout._replace(
        ranks_per_node=1,
        threads=ranks * layout.threads,
        cpus_per_rank=ranks * layout.cpus_per_rank,
        memory_mb=None if layout.memory_mb is None else ranks * layout.memory_mb,
        workers=ranks,
    )


def environment(layout: Layout) -> Dict[str, str]:
    """Return the environment variables that tell OpenMP and TensorFlow the layout."""
    # Processes that share CPUs would all bind their threads to the first CPUs.
    places = _of_places(layout.hyperthreads) if layout.workers == 1 else {}
    return {**of_threads(layout.threads // layout.workers), **places}


def of_threads(threads: int) -> Dict[str, str]:
    """Return the environment variables for the number of threads per rank."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        # Operations that can run at the same time; more would compete with each one's OpenMP threads.
        "TF_NUM_INTEROP_THREADS": "1" if threads == 1 else "2",
    }


def _of_places(hyperthreads: bool) -> Dict[str, str]:
    """Return the environment variables that control where threads run."""
    return {
        "OMP_PLACES": "threads" if hyperthreads else "cores",
        "OMP_PROC_BIND": "close",
        # Only Intel's OpenMP reads this: do not spin between regions.
        "KMP_BLOCKTIME": "0",
    }


#: Variables that both GNU's and Intel's OpenMP read, then those of each. Intel's warns in every rank if both are set.
_PLACES = ("OMP_PLACES", "OMP_PROC_BIND")
_OWN_PLACES = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY")


def one_way_to_bind(environment: Dict[str, str], asked: Collection[str]) -> None:
    """Keep only one set of variables in ``environment`` that controls where threads run.

    The layout's variables are kept, or a library's own if the user or the site's plan sets them. ``asked`` contains the
    names of all variables that do not come from the image.
    """
    own = [name for name in _OWN_PLACES if name in asked]
    if own or "OMP_PLACES" in asked:
        for name in (*_PLACES, *_OWN_PLACES):
            if name not in (own or _PLACES):
                environment.pop(name, None)


def own(host: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables for threads and their places from the user's environment, for tasks without a layout.

    Without OMP_NUM_THREADS, the number of threads is the one that Slurm set for the task (``srun -c``). If
    OMP_NUM_THREADS is a list, its first level counts.
    """
    threads = (host.get("OMP_NUM_THREADS") or host.get("SLURM_CPUS_PER_TASK", "")).partition(",")[0].strip()
    users = {name: host[name] for name in (*of_threads(1), *_of_places(False), *_OWN_PLACES) if name in host}
    return {**(of_threads(int(threads)) if threads.isdigit() and int(threads) else {}), **users}
