"""Copies between the memories of a node's ranks: whether a runtime prevents them, and the reason that people read."""

import pytest

from deployer.contract.site import memory_copies
from deployer.contract.site.choose import explained
from tests import running as made


def plan(*runtimes, join=True):
    options = [made.START_OPTION._replace(name=each, runtime=each, join=join) for each in runtimes]
    return made.PLAN._replace(start_options=options)


@pytest.mark.parametrize(
    ("runtime", "prevented"),
    [("apptainer", True), ("singularity", True), ("podman", True), ("podman-hpc", True), ("enroot", True),
     ("charliecloud", False), ("charliecloud-kit", False), ("udocker", False), ("native", False), ("of-2030", False)],
)  # fmt: skip
def test_who_prevents_them(runtime, prevented):
    (option,) = plan(runtime).start_options
    assert memory_copies.prevented(option) is prevented
    assert not memory_copies.prevented(option._replace(join=False))  # the plan does not want them


def test_people_read_the_reason_once_for_each_runtime():
    found = plan("podman", "charliecloud", "podman", "apptainer")
    assert explained(found)[:2] == [found.way, found.tries]
    assert [text.partition(": ")[2] for text in explained(found)[2:]] == [
        f"{name} gives each of them a user namespace of its own" for name in ("podman", "apptainer")
    ]
    assert explained(plan("podman", join=False))[2:] == []
