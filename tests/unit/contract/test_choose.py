"""The first variant that nodes and site allow is taken, and the reason says what was passed over."""

import pytest

from deployer.contract.choose import choose
from deployer.contract.errors import Refused
from deployer.contract.plan import NodeShape, Plan, Variant

SMALL = Variant("charliecloud-folder", "charliecloud", "folder", "srun", "pmi2", 4)
LARGE = Variant("charliecloud-squashfs", "charliecloud", "squashfs", "srun", "pmi2", None)
OTHER = Variant("udocker-folder", "udocker", "folder", "srun", "pmi2", None)


def plan(*variants):
    return Plan(
        "lab",
        "batch",
        "sha256:0",
        "b:1",
        "~/d",
        [],
        NodeShape(1, 1, 1, 1),
        "slurm",
        [],
        [],
        None,
        [],
        {},
        [],
        list(variants),
    )


def test_the_first_that_fits_is_taken():
    choice = choose(plan(SMALL, LARGE), 4, {})
    assert choice.variant == SMALL
    assert choice.reason == "first in the plan for 4 nodes that lab can use"


def test_node_count_and_site_veto():
    assert choose(plan(SMALL, LARGE), 5, {}).variant == LARGE
    choice = choose(plan(SMALL, OTHER), 1, {"charliecloud": "no ch-run in PATH"})
    assert choice.variant == OTHER
    assert choice.reason.endswith("passed over charliecloud-folder (no ch-run in PATH)")


def test_nothing_left_is_refused_with_every_reason():
    with pytest.raises(Refused) as error:
        choose(plan(SMALL, OTHER), 5, {"udocker": "not allowed"})
    assert "charliecloud-folder (meant for at most 4 nodes), udocker-folder (not allowed)" in error.value.message
    with pytest.raises(Refused, match="the plan has no variant"):
        choose(plan(), 1, {})
