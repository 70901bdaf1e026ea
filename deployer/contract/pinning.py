"""Where on a node its ranks run: whole cores for each, and none across two NUMA domains if they can be told so.

The layout says how many CPUs a rank gets. The launcher's own options choose which CPUs (``site.run.launchers``);
they are built from the records here.
"""

from typing import NamedTuple, Optional

from deployer.contract.layout import Layout


class Pinning(NamedTuple):
    """``units`` whole cores for each rank, or hardware threads where ranks share a core (``by_core`` is False).

    ``domain`` is the size in CPUs of the equal pieces, one a rank, that a node is cut into from its first CPU on so
    that none lies across two NUMA domains; just a rank's CPUs where there is no such size. ``per_numa`` is how many
    ranks each NUMA domain gets where they can be dealt out evenly, else None. ``straddling`` says why a rank must run
    across domains, None: no rank needs to.
    """

    units: int
    by_core: bool
    domain: int
    per_numa: Optional[int]
    straddling: Optional[str]


def pin(layout: Layout) -> Pinning:
    """Return how the ranks of ``layout`` are bound on a node of its shape."""
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
        straddling = "%d rank%s per node with %d CPUs each: a NUMA domain has %d CPUs, so %s" % (
            ranks,
            "" if ranks == 1 else "s",
            own,
            size,
            "each rank runs across several"
            if own > size
            else "%d fit%s into a domain, and others run across two" % (size // own, "s" if size // own == 1 else ""),
        )
    return Pinning(units, by_core, whole[0] if whole else own, ranks // domains if even else None, straddling)
