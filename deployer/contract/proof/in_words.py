"""The proof in words: which MPI a job's ranks used, over which network, according to its result.json. Pure.

The record may come from elsewhere, so a field with an unexpected form counts as missing.
"""

import re
from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from deployer.contract.base.text import counted, printable
from deployer.contract.site.plan import NATIVE

#: Where the ranks' MPI library came from: the site's own file; another file although the site's was expected; or, if no
#: file of the site was expected, the image or the host.
_SITE = "%s used the site's %s (same file as the host's)"
_OTHER = "%s used another MPI library than the site's: %s"
_IMAGE, _HOST = "%s used the image's own %s", "%s used the host's %s"
_BEFORE = ", but only in the test before the program"
_NONE = "no MPI library was found in %s%s"
#: Patterns for the result of ``MPI_Get_library_version``, and the usual names.
_NAMES = (
    (re.compile(r"Intel\(R\) MPI Library (\S+)"), "Intel MPI"),
    (re.compile(r"Open MPI v([^\s,]+)"), "Open MPI"),
    (re.compile(r"CRAY MPICH version (\S+)"), "Cray MPICH"),
    (re.compile(r"MVAPICH\d* Version\s*:\s*(\S+)"), "MVAPICH"),
    (re.compile(r"MPICH Version\s*:\s*(\S+)"), "MPICH"),
)
_LENGTH = 60
#: The most kinds of libraries or networks to list.
_MOST = 4

_Rank = Mapping[str, Any]
#: The words for the origin of a library, its name, and whether only the test before the program used it.
_Group = Tuple[str, str, bool]
_NO_MPI: _Group = (_NONE, "", False)


def line(result: Any) -> str:
    """Return what result.json proves, as one line that begins with ``proof: ``."""
    return "proof: " + printable(words(result))


def ranks(result: Any) -> List[_Rank]:
    """Return the records of the ranks in result.json."""
    listed = result.get("ranks") if isinstance(result, Mapping) else None
    return [rank for rank in listed if isinstance(rank, Mapping)] if isinstance(listed, list) else []


def library(rank: _Rank) -> str:
    """Return the name and version of a rank's MPI library: ``Intel MPI 2021.15``; empty if none was found."""
    says, path = _text(rank.get("mpi_library")), _text(rank.get("mpi_path"))
    names = (f"{name} {match.group(1)}" for pattern, name in _NAMES for match in pattern.finditer(says))
    return next(names, says[:_LENGTH] or path.rpartition("/")[2])


def networks(rank: _Rank) -> str:
    """Return a rank's network and other transports, such as ``tcp (libfabric)``; may be empty."""
    return ", ".join(_network(rank) + _transports(rank))


def _network(rank: _Rank) -> List[str]:
    """Return a rank's network, if it is known."""
    provider, network = rank.get("provider"), _nccl(rank).get("network")
    return [f"{provider} (libfabric)"] if provider else [f"{network} (NCCL)"] if network else []


def _transports(rank: _Rank) -> List[str]:
    """Return a rank's transports besides the network: ``shared memory within a node``, or what NCCL reports."""
    via = _nccl(rank).get("via")
    shared = ["shared memory within a node"] if rank.get("shared_memory") else []
    return shared + (list(filter(None, map(_text, via))) if isinstance(via, list) else [])


def words(result: Any) -> str:
    """Return what result.json proves: which MPI how many ranks used, and over which network."""
    if not isinstance(result, Mapping) or not isinstance(result.get("ranks"), list):
        return "none: result.json lists no ranks"
    known = ranks(result)
    total = max(_requested(result), len(known))
    if not known:
        return "none: no rank left a record"
    groups = _groups(result)
    missing = total - len(known)
    if set(groups) == {_NO_MPI} and not missing:
        return _without(result, known)
    good = sum(len(group) for (origin, _, _), group in groups.items() if origin not in (_OTHER, _NONE))
    parts = [
        origin % (_of(len(group), total), name) + (_BEFORE if before else "")
        for (origin, name, before), group in groups.items()
    ]
    if len(parts) > _MOST:
        parts[_MOST:] = ["and %d other kinds" % (len(parts) - _MOST)]
    if missing:
        parts.append(f"{_of(missing, total)} left no record")
    world = _world(result, total)
    verdict = "none: " if not good else "incomplete: " if good < total or world else ""
    return verdict + "; ".join([*parts, *world, *_networks(known), *_measured(result)])


def _requested(result: _Rank) -> int:
    """Return the number of ranks that the job requested, which older records lack."""
    nodes, per_node = result.get("nodes"), result.get("ranks_per_node")
    count = nodes * per_node if isinstance(nodes, int) and isinstance(per_node, int) else 0
    return count if count < 10**8 else 0


def _groups(result: _Rank) -> Dict[_Group, List[_Rank]]:
    groups: Dict[_Group, List[_Rank]] = OrderedDict()
    for rank in ranks(result):
        own, host = rank.get("mpi_identity"), rank.get("host_mpi_identity")
        origin = _SITE if own == host else _OTHER
        if host is None:
            origin = _HOST if result.get("runtime") == NATIVE else _IMAGE
        key = (origin, library(rank), rank.get("mpi_seen_in") == "probe") if own is not None else _NO_MPI
        groups.setdefault(key, []).append(rank)
    return groups


def _of(count: int, total: int) -> str:
    return "%d of %s" % (count, counted(total, "rank"))


def _without(result: _Rank, known: Sequence[_Rank]) -> str:
    """Return the words for a job without ranks that used MPI."""
    if len(known) == 1:
        return "not needed: one rank, which used no MPI"
    linked = [rank.get("communication") for rank in known]
    connected = sum(isinstance(item, Mapping) and item.get("connected") is True for item in linked)
    everyone = _of(len(known), len(known))
    if not any(linked):
        return "; ".join(["none: " + _NONE % (everyone, ""), *_measured(result)])
    verdict = "" if connected else "none: "
    shown = "%s%s used no MPI; %d were connected to other ranks" % (verdict, everyone, connected)
    return "; ".join([shown, *_networks(known), *_measured(result)])


def _world(result: _Rank, total: int) -> List[str]:
    """Return why the ranks do not form one MPI world."""
    size = result.get("world_size")
    if total in (1, size):
        return []
    if size is None:
        return ["the size of their MPI world is not proven"]
    return ["their MPI world had %s, not %d" % (counted(size, "rank"), total)] if isinstance(size, int) else []


def _networks(known: Sequence[_Rank]) -> List[str]:
    """Return the ranks' network, and the other transports that ranks on one node used."""
    if len(known) == 1:
        return []
    networks = _first(name for rank in known for name in _network(rank)) or "not reported"
    transports = _first(name for rank in known for name in _transports(rank))
    return [f"network: {networks}", *([f"transport: {transports}"] if transports else [])]


def _first(names: Iterable[str]) -> str:
    return ", ".join(list(OrderedDict.fromkeys(names))[:_MOST])


def _measured(result: _Rank) -> List[str]:
    """Return the worst speed between the nodes."""
    network = result.get("network")
    if not isinstance(network, Mapping):
        return []
    figures = (_text(network.get("latency_us")), _text(network.get("bandwidth_mb_s")))
    return ["between the nodes: {} us, {} MB/s".format(*figures)]


def _nccl(rank: _Rank) -> _Rank:
    communication = rank.get("communication")
    nccl = communication.get("nccl") if isinstance(communication, Mapping) else None
    return nccl if isinstance(nccl, Mapping) else {}


def _text(value: Optional[object]) -> str:
    return "" if value is None else str(value)
