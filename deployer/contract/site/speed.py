"""The speed of the network between the nodes of a job: measured, expected, and what is too slow. Pure."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import records
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import counted

#: The part of the expected speed below which a job stops, unless the profile has another limit.
LIMIT = 0.5
#: libfabric's providers over the kernel's TCP, which no fast network needs.
_ORDINARY = ("tcp", "sockets", "net", "udp")


class Speed(NamedTuple):
    """The speed of a connection between two nodes.

    Attributes:
        latency_us: microseconds for 8 bytes in one direction (half of the round trip).
        bandwidth_mb_s: 10^6 bytes per second for a message of 4 MiB.
    """

    latency_us: float
    bandwidth_mb_s: float


class ExpectedNetwork(NamedTuple):
    """The speed to expect, according to a profile or to a measurement without a container on this site.

    Attributes:
        mpi: through the site's MPI; None: unknown.
        tcp: through TCP, for jobs without MPI; None: unknown.
        limit: the part of it below which a job stops.
        source: where the figures come from, in words.
        fast: the nodes' fast network, in words; None: unknown.
    """

    mpi: Optional[Speed] = None
    tcp: Optional[Speed] = None
    limit: float = LIMIT
    source: str = ""
    fast: Optional[str] = None

    def good(self) -> Optional[str]:
        """Return the limit as the probe's ``--good`` has it, in nanoseconds and bytes per second."""
        if self.mpi is None:
            return None
        speed = self.mpi
        return "%d:%d" % (speed.latency_us * 1e3 / self.limit, speed.bandwidth_mb_s * 1e6 * self.limit)


class Connection(NamedTuple):
    """A measured connection in one direction.

    Attributes:
        start: the node that sends.
        end: the node that receives.
        speed: its speed.
    """

    start: str
    end: str
    speed: Speed

    def times_slower(self, expected: Speed) -> float:
        """Return how many times worse than expected the worse one of latency and bandwidth is."""
        own = self.speed
        return max(own.latency_us / expected.latency_us, expected.bandwidth_mb_s / max(own.bandwidth_mb_s, 1e-3))


def shown(connections: Sequence[Connection], expected: Optional[ExpectedNetwork]) -> Optional[Record]:
    """Return the ``network`` of result.json: the worst figures, and those of each connection; None without any."""
    if not connections:
        return None
    slowest = min(connections, key=lambda each: each.speed.bandwidth_mb_s)
    return {
        "nodes": len({node for each in connections for node in each[:2]}),
        "latency_us": max(each.speed.latency_us for each in connections),
        "bandwidth_mb_s": slowest.speed.bandwidth_mb_s,
        "slowest": f"{slowest.start} to {slowest.end}",
        "expected": expected and records.short(expected),
        "connections": [{"from": each.start, "to": each.end, **dict(each.speed._asdict())} for each in connections],
    }


def judge(
    connections: Sequence[Connection], expected: Speed, limit: float, way: str, fast: Optional[str]
) -> Optional[Record]:
    """Return the values of the finding ``network.slow``; None if no connection is too slow.

    Args:
        way: what the ranks send through, in words: MPI with its provider, or TCP.
        fast: the nodes' fast network, in words; None: unknown.
    """
    slow = [each for each in connections if each.times_slower(expected) * limit > 1]
    if not slow:
        return None
    worst = max(slow, key=lambda each: each.times_slower(expected))
    cause, remedy = _cause(slow, connections, way, fast)
    return {
        "start": worst.start, "end": worst.end, "limit": limit, "cause": cause, "remedy": remedy,
        "measured": _words(worst.speed), "expected": _words(expected),
    }  # fmt: skip


def _words(speed: Speed) -> str:
    return "{:g} MB/s and {:g} us".format(*reversed(speed))


def _cause(slow: Sequence[Connection], every: Sequence[Connection], way: str, fast: Optional[str]) -> Tuple[str, str]:
    """Return the likely cause, and what to do."""
    common = set.intersection(*({each.start, each.end} for each in slow))
    routes = {(each.start, each.end) for each in slow}
    if len(slow) < len(every) and len(common) == 1:
        node = common.pop()
        return f"only connections of {node} are slow", f"exclude {node} from the job, and report it to the site"
    if not any((end, start) in routes for start, end in routes):
        return "the other direction is not slow", "report the nodes and this direction to the site"
    if len(slow) < len(every):
        known = "%d of %s are slow" % (len(slow), counted(len(every), "connection"))
        return known, "run it on other nodes, and report these to the site"
    if any(word in _ORDINARY for word in way.replace(";", " ").split()):
        over = f"instead of {fast}" if fast else "which uses the kernel's TCP"
        return f"the ranks use {way}, {over}", "check that the provider's library, plug-in and devices are bound"
    return (
        f"all connections are slow through {way}: a missing provider, plug-in or device, or a busy network",
        "compare with `doctor`, which measures without a container",
    )


def of_link(start: str, end: str, nanoseconds: int, there: int, back: int) -> List[Connection]:
    """Return both directions of a measured pair of nodes; ``there`` and ``back`` are bytes per second."""
    latency = round(nanoseconds / 1e3, 2)
    return [
        Connection(start, end, Speed(latency, round(there / 1e6, 1))),
        Connection(end, start, Speed(latency, round(back / 1e6, 1))),
    ]
