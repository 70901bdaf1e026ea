"""How the lab gets its nodes back from Slurm."""

from typing import Any

import pytest

from tests.lab import Lab, cluster


def test_a_node_that_is_drained_anew_is_resumed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a slurmd that can report only now that it failed to kill a job."""
    told: list[Any] = []
    lab = Lab("unit")
    monkeypatch.setattr(cluster.services, "pid_in_node", lambda holder, daemon: holder)
    monkeypatch.setattr(lab, "_holders", lambda: {"login1": 1, "cn1": 2})
    monkeypatch.setattr(lab, "_slurm_states", lambda: {"cn1": "drained" if len(told) < 2 else "idle"})
    monkeypatch.setattr(lab, "sh", lambda node, user, command, timeout: told.append(command))
    monkeypatch.setattr(cluster, "_RESUME_AGAIN_S", 0.01)
    lab.wait_for_slurm(["cn1"])
    assert told == [["scontrol", "update", "nodename=cn1", "state=resume"]] * 2
