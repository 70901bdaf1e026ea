"""The evidence that a good job of many ranks leaves in its folder, for tests and benchmarks of the judge."""

import json
import os
from pathlib import Path
from typing import Dict

from deployer.contract.base import json_records
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import HostRecord, Launch, NodeRecord, ProbeRecord
from deployer.contract.proof.measurements import Allreduce, Measures
from deployer.contract.proof.payload import MappedLibrary
from deployer.contract.site.plan import CANARY_TEXT, HostMpi
from deployer.site.proof import rank_record
from deployer.site.rank.node_records import node_name

_SAYS = "Intel(R) MPI Library 2021.15"
_MPI = HostMpi("intel", "2021.15", "/opt/mpi", "/opt/mpi/lib/libmpi.so.12", _SAYS)
_LIBRARY = MappedLibrary("/opt/mpi/lib/libmpi.so.12", "build-id:aa", _SAYS)


def leave(folder: str, nodes: int, ranks_per_node: int, collected: bool) -> None:
    """Write the records of all nodes and ranks into a new job folder.

    ``collected``: as of a staged image; otherwise the ranks wrote into the job's folder themselves.
    """
    for name in ("hosts", "ranks"):
        os.makedirs(os.path.join(folder, name))
    fields = ("job-1", "gan", "1", "sha256:" + "0" * 64, "site", "option", "", "charliecloud", nodes, ranks_per_node)
    launch = Launch(*fields, threads=1, time="01:00:00", command=["true"], mpi=_MPI, provider="tcp", created=1000)
    _write(folder, "job.json", json_records.pretty(launch.record()))
    for node in range(nodes):
        host = f"node{node:05d}"
        record = HostRecord(host, "build-id:aa", (), ("0-23,48-71", "24-47,72-95"))
        _write(folder, f"hosts/{host}.json", json_records.pretty(evidence.record(record)))
        texts = {}
        for local in range(ranks_per_node):
            texts.update(_rank(node * ranks_per_node + local, local, host, nodes * ranks_per_node))
        _write(folder, f"hosts/{host}.root", CANARY_TEXT)
        if collected:
            _write(folder, f"ranks/node-{host}.json", json_records.pretty(evidence.record(NodeRecord(host, texts))))
        else:
            lines = [rank_record.line(name, text).decode() for name, text in texts.items()]
            _write(folder, f"ranks/{host}{rank_record.SUFFIX}", "".join(lines))


def differ(folder: str) -> None:
    """Let every other node of a job that ``leave`` made have another MPI library, each its own."""
    for number, path in enumerate(sorted(Path(folder, "hosts").glob("*.json"))):
        if number % 2:
            path.write_text(path.read_text().replace("build-id:aa", f"build-id:{number:06x}"))


def recorded(folder: object, name: str) -> str:
    """Return the record ``name`` that a rank wrote into a folder on this machine."""
    return rank_record.latest(Path(str(folder), node_name() + rank_record.SUFFIX).read_text())[name]


def _rank(task: int, local: int, host: str, size: int) -> Dict[str, str]:
    """Return the records of a rank, by name."""
    provider = None if task else "tcp"
    measures = Measures(None, Allreduce(12000, 8388608, 10**9), None, 10**9)
    cpus = f"{local},{local + 48}"
    probe = ProbeRecord(
        task, host, rank_record.DONE, _LIBRARY, None, task, size, provider, "multiple", 1, cpus, measures
    )
    payload = dict(rank_record.begun(task, host), exit_code=0, ended=5000, libraries=[dict(_LIBRARY._asdict())])
    return {
        rank_record.PROBE % task: json.dumps(evidence.record(probe)),
        rank_record.PAYLOAD % task: rank_record.dumps(payload),
    }


def _write(folder: str, name: str, text: str) -> None:
    Path(folder, name).write_text(text)
