"""The published figures that `report --beside` shows."""

import pytest

from deployer.connected.ground.reports import published_runs
from deployer.contract.proof import measured_runs

OWN = measured_runs.Run(
    "train-1", "3dgan", "batch 128", measured_runs.SECONDS, "lab", "charliecloud", 2, 2, 1, [10.0, 12.0, 14.0]
)


def test_published_efficiencies_follow_from_published_times() -> None:
    rows = [row.run for row in measured_runs.rows(published_runs.published(["lrz-3dgan", "lrz-3dgan"]))]
    assert len(rows) == 33
    for row in rows:
        base = next(each for each in rows if (each.job, each.nodes) == (row.job, 4))
        assert row.published is not None
        if row.nodes == 768:  # the time would fit 1024 nodes
            assert (row.published, "1024 nodes" in row.settings) == (0.899, True)
        else:  # times and percentages are printed in about three digits
            assert base.mean * 4 / (row.mean * row.nodes) == pytest.approx(row.published, abs=0.006)


def test_published_rows_are_in_the_table_of_their_workload_and_labelled() -> None:
    found = measured_runs.rows([OWN, *published_runs.published(["lrz-3dgan"])])
    assert found[1].efficiency == 1
    lines = measured_runs.lines(found, lambda head, rows, _: [" ".join(row) for row in (head, *rows)])
    assert lines[0] == "3dgan: seconds per epoch, mean and half of its 95 % interval"
    assert lines[1] == "NODES RANKS THREADS RUNTIME s/epoch +- EFFICIENCY /NATIVE JOB"
    assert lines[2] == "2 2 1 charliecloud 12.00 4.97 100.0 % - train-1 (batch 128)"
    doubtful = (
        "768 3072 12 charliecloud 3.940 - 89.9 % - "
        "published, lrz-3dgan: 4 x 12, Intel MPI of the host (the printed efficiency fits 1024 nodes)"
    )
    assert doubtful in lines
    assert all("published, " in line for line in lines[3:])
