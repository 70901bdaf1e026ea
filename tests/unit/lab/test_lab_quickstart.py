"""What the quickstart prints: what a long stage does, and the proof of a job."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.lab.quickstart import heartbeat, proof, steps_of


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


def test_a_build_is_shown_by_the_step_of_each_of_its_parts() -> None:
    log = [
        "stage tools: Step 8/8 : RUN pip install",
        "stage tools: Collecting numpy",
        "stage tools: Successfully built 0123456789ab",
        "Step 9/22 : FROM tools AS python",
        "Horovod for mpich-abi: Step 13/17 : RUN set -- $MPIS;     case $FRAMEWORK in",
        "Step 10/22 : COPY requirements.txt /src/",
        "Horovod for mpich-abi:   Building wheel for horovod (setup.py): still running...",
    ]
    assert steps_of("\n".join(log)) == (
        "image, step 10/22, COPY requirements.txt /src/; "
        "Horovod for mpich-abi, step 13/17, RUN set -- $MPIS; case $FRAMEWORK in"
    )
    assert steps_of("\n".join([*log, "Successfully built 0123456789ab"])).startswith("Horovod for mpich-abi")
    assert "base" in steps_of("")


def test_a_stage_that_prints_nothing_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()

    def doing() -> str:
        asked.set()
        return "step 1"

    with heartbeat(doing, every=0.001):
        assert asked.wait(timeout=10)
    assert set(capsys.readouterr().out.splitlines()) == {"    0 s: step 1"}
