"""Plans of jobs that start inside-out, and what the profile says of it."""

import pytest

from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.base.errors import Refused


@pytest.fixture(scope="module")
def lab() -> Profile:
    return load("lab")


def test_a_profile_that_says_inside_makes_such_plans(lab: Profile) -> None:
    profile = lab.model_copy(update={"launch": "inside"})
    plan = make_plan(profile, "hello:1", ["openmpi"])
    assert (plan.launch, plan.mpi, plan.abi, plan.inside) == ("inside", None, "openmpi", None)
    assert {(each.launcher, each.pmi) for each in plan.containers} == {("mpirun", "")}
    assert plan.pass_environment == []
    assert not any("mpi" in name for name in plan.modules)


def test_a_partition_and_the_command_line_come_before_the_profile(lab: Profile) -> None:
    profile = lab.model_copy(update={"launch": "inside"})
    assert make_plan(profile.selected([], None, "outside"), "hello:1", ["mpich-abi"]).launch == "outside"
    assert make_plan(lab.selected([], None, "inside"), "hello:1", ["mpich-abi"]).launch == "inside"
    assert profile.starts_inside
    assert not lab.starts_inside


def test_other_plans_carry_what_changes(lab: Profile) -> None:
    plan = make_plan(lab, "hello:1", ["mpich-abi"])
    inside = make_plan(lab.selected([], None, "inside"), "hello:1", ["mpich-abi"])
    assert plan.launch == "outside"
    assert plan.mpi is not None
    found = plan.started_inside()
    assert found is not None
    assert found == inside


def test_an_image_without_a_known_mpi_is_refused(lab: Profile) -> None:
    with pytest.raises(Refused, match="no MPI of a known family"):
        make_plan(lab.selected([], None, "inside"), "hello:1")
    assert make_plan(lab, "hello:1").inside is None
