"""What the quickstart prints as the proof of a job."""

from __future__ import annotations

from typing import Any

from tests.lab.quickstart import proof


def rank(identity: str | None, of_host: str | None = None) -> dict[str, Any]:
    library = "Intel MPI" if identity else None
    return {"rank": 0, "host": "cn1", "mpi_library": library, "mpi_identity": identity, "host_mpi_identity": of_host}


def test_a_job_without_mpi_is_not_called_a_proof_of_mpi() -> None:
    network = {"nodes": 2, "latency_us": 41.0, "bandwidth_mb_s": 900.5, "slowest": "cn2"}
    assert proof({"ranks": [rank(None)], "network": None}) == ["the job ran without MPI"]
    assert proof({"ranks": [rank(None)], "network": network})[1:] == [
        "the network between its 2 nodes: 41.0 us, 900.5 MB/s"
    ]


def test_each_rank_is_compared_with_its_host() -> None:
    lines = proof({"ranks": [rank("a", "a"), rank("a", "b"), rank(None)]})
    assert [line.split()[-1] for line in lines[2:]] == ["yes", "NO", "NO"]
