"""The CPUs on which a node's ranks run: whole cores per rank, with each rank in one NUMA domain if possible.

The layout defines the number of CPUs per rank. The launcher's options, made from these records, select the CPUs
(``site.run.launchers``).
"""

from typing import List, NamedTuple, Optional, Sequence

from deployer.contract.base.grouping import grouped
from deployer.contract.base.text import counted
from deployer.contract.proof.evidence import parse_cpus
from deployer.contract.site.layout import Layout
from deployer.contract.site.plan import GpuPlace
from deployer.site.proof.rank_record import render_numbers


class Pinning(NamedTuple):
    """How the ranks of a node are bound to CPUs.

    Attributes:
        units: whole cores per rank, or hardware threads if ranks share a core.
        by_core: whether ``units`` are cores.
        domain: CPUs per piece. The node is cut into equal pieces, one per rank, from its first CPU on, so that no piece
            crosses NUMA domains. If no such size exists, it is the number of CPUs per rank.
        per_numa: ranks per NUMA domain if they can be distributed evenly, else None.
        straddling: why a rank must run across domains; None if no rank must.
    """

    units: int
    by_core: bool
    domain: int
    per_numa: Optional[int]
    straddling: Optional[str]


def cpu_lists(layout: Layout) -> Optional[List[str]]:
    """Return the CPUs of each rank of a node, which fill one NUMA domain after the other.

    None if the plan lacks the CPUs of the domains, or if ranks share cores or run across domains.
    """
    shape, own = layout.shape, pin(layout)
    domains, threads = [sorted(parse_cpus(text)) for text in shape.domain_cpus], shape.threads_per_core
    whole = {len(cpus) * len(domains) for cpus in domains} == {shape.cores * threads}
    if not whole or len(domains) != (shape.numa_domains or shape.sockets) or not own.by_core or own.straddling:
        return None
    lists = []
    for rank in range(layout.ranks_per_node):
        domain, place = divmod(rank, _per_domain(layout, own))
        cpus, first = domains[domain], place * own.units
        siblings = range(0, len(cpus), len(cpus) // threads)
        cores = range(first, first + own.units)
        lists.append(render_numbers({cpus[core + each] for core in cores for each in siblings}))
    return lists


def _per_domain(layout: Layout, own: Pinning) -> int:
    """Return the ranks of the first NUMA domain if they fill one after the other."""
    shape = layout.shape
    return own.per_numa or max(1, shape.cores // (shape.numa_domains or shape.sockets) // own.units)


def gpu_order(
    layout: Layout, places: Sequence[GpuPlace], per_rank: Optional[int] = None, filling: bool = False
) -> Optional[List[int]]:
    """Return the node's GPUs in the order of its ranks, so that each rank's GPUs are near its CPUs.

    Args:
        per_rank: GPUs per rank; None: one, with as many ranks as GPUs.
        filling: ranks have the CPUs of ``cpu_lists``; otherwise srun distributes the ranks of a node in turn over the
            sockets (``block:cyclic``).

    Returns:
        The order, or None if the numbers differ or no order has this effect.
    """
    shape, ranks, own = layout.shape, layout.ranks_per_node, pin(layout)
    domains = shape.numa_domains or shape.sockets
    wanted = ranks * (per_rank or 1)
    # A rank may have several sockets: Slurm counts the L3 caches of some nodes as sockets.
    sockets = shape.sockets if own.units * shape.sockets <= shape.cores else 1
    if (
        wanted > len(places)
        or (per_rank is None and wanted != len(places))
        or not own.by_core
        or own.straddling
        or (domains % sockets and sockets % domains)
        or shape.cores % domains
        or (filling and cpu_lists(layout) is None)
    ):
        return None
    near = grouped((place.domain, place.gpu) for place in sorted(places))
    numbers = []
    for rank in range(ranks):
        socket, before = rank % sockets, rank // sockets
        domain = (socket * shape.cores // sockets + before * own.units) * domains // shape.cores
        domain = rank // _per_domain(layout, own) if filling else domain
        if len(near.get(domain, ())) < (per_rank or 1):
            return None
        numbers += [near[domain].pop(0) for _ in range(per_rank or 1)]
    return numbers


def pin(layout: Layout) -> Pinning:
    """Return how the ranks of ``layout`` are bound to a node's CPUs."""
    shape, own, ranks = layout.shape, layout.cpus_per_rank, layout.ranks_per_node
    cpus = shape.cores * shape.threads_per_core
    domains = shape.numa_domains or shape.sockets
    by_core = own % shape.threads_per_core == 0
    units = own // shape.threads_per_core if by_core else own
    if domains < 2 or cpus % domains:
        return Pinning(units, by_core, own, None, None)
    size = cpus // domains
    step = shape.threads_per_core if by_core else 1
    whole = [piece for piece in range(own, size + 1, step) if size % piece == 0 and domains * (size // piece) >= ranks]
    even = ranks % domains == 0 and ranks // domains * own <= size
    straddling = None
    if ranks > domains * (size // own):
        straddling = "{} per node with {} each: a NUMA domain has {}, so {}".format(
            counted(ranks, "rank"),
            counted(own, "CPU"),
            counted(size, "CPU"),
            "each rank runs across several"
            if own > size
            else "%d fit%s into a domain, and others run across two" % (size // own, "s" if size // own == 1 else ""),
        )
    return Pinning(units, by_core, whole[0] if whole else own, ranks // domains if even else None, straddling)
