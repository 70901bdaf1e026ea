"""The CPUs on which a node's ranks run: whole cores per rank, with each rank in one NUMA domain if possible.

The layout defines the number of CPUs per rank. The launcher's options, made from these records, select the CPUs
(``site.run.launchers``).
"""

from typing import Dict, List, NamedTuple, Optional, Sequence

from deployer.contract.base.text import counted
from deployer.contract.site.layout import Layout
from deployer.contract.site.plan import GpuPlace


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


def gpu_order(layout: Layout, places: Sequence[GpuPlace], per_rank: Optional[int] = None) -> Optional[List[int]]:
    """Return the node's GPUs in the order of its ranks, so that each rank's GPUs are near its CPUs.

    It is for srun, which distributes the ranks of a node in turn over the sockets (``block:cyclic``).

    Args:
        per_rank: GPUs per rank; None: one, with as many ranks as GPUs.

    Returns:
        The order, or None if the numbers differ or no order has this effect.
    """
    shape, ranks, own = layout.shape, layout.ranks_per_node, pin(layout)
    domains = shape.numa_domains or shape.sockets
    wanted = ranks * (per_rank or 1)
    if (
        wanted > len(places)
        or (per_rank is None and wanted != len(places))
        or not own.by_core
        or own.straddling
        or domains % shape.sockets
        or shape.cores % domains
    ):
        return None
    near: Dict[int, List[int]] = {}
    for place in sorted(places):
        near.setdefault(place.domain, []).append(place.gpu)
    numbers = []
    for rank in range(ranks):
        socket, before = rank % shape.sockets, rank // shape.sockets
        domain = socket * (domains // shape.sockets) + before * own.units // (shape.cores // domains)
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
