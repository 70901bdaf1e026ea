"""The table of runtimes: each name has an adapter or a refusal, and the order of a policy is kept."""

import pytest

from deployer.contract.site import runtime_table
from deployer.contract.site.plan import CHARLIECLOUD_KIT, NATIVE, NOT_STAGED, STAGINGS
from deployer.contract.site.runtime_table import TABLE
from deployer.site.container.runtimes import RUNTIMES


@pytest.mark.parametrize("known", TABLE, ids=[known.name for known in TABLE])
def test_each_name_has_an_adapter_or_a_refusal_with_an_alternative(known):
    assert (known.name in RUNTIMES) is not bool(known.refusal)
    assert bool(known.refusal) is bool(known.instead)
    assert known.program
    assert NOT_STAGED in known.stagings
    assert set(known.stagings) <= set(STAGINGS)
    if not known.refusal:
        assert RUNTIMES[known.name].known is known
    else:
        assert runtime_table.refusal(known.name) == (known.refusal, known.instead)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.30", "ch-run 0.30 is too old: deployer uses 0.31 or newer"),
        ("ch-run 0.9.10~pre", "ch-run 0.9.10 is too old: deployer uses 0.31 or newer"),
        ("0.31", None),
        ("0.31.1", None),
        ("1.0", None),
        ("", None),
        (None, None),
    ],
)
def test_a_version_may_be_too_old(version, expected):
    for name in ("charliecloud", CHARLIECLOUD_KIT):
        assert runtime_table.too_old(name, version) == expected
    assert runtime_table.too_old("udocker", version) is None


def test_a_profile_cannot_name_what_another_name_allows():
    assert CHARLIECLOUD_KIT in runtime_table.SUPPORTED
    assert CHARLIECLOUD_KIT not in runtime_table.NAMED


def test_a_name_of_another_version_is_refused():
    why, instead = runtime_table.refusal("sandbox9000")
    assert "does not know it" in why
    assert instead


def test_the_order_is_the_policy_s_and_without_a_container_comes_last():
    policy = ["udocker", NATIVE, "docker", "apptainer"]
    assert runtime_table.in_order(policy) == ["udocker", "docker", "apptainer", NATIVE]


def test_what_bundles_carry_comes_before_udocker_if_it_uses_user_namespaces():
    both = ["charliecloud", "charliecloud-kit"]
    assert runtime_table.in_order(["udocker", "charliecloud"]) == [*both, "udocker"]
    assert runtime_table.in_order(["charliecloud", "apptainer", "udocker"]) == [*both, "apptainer", "udocker"]
    assert runtime_table.in_order(["apptainer", "udocker", "charliecloud"]) == ["apptainer", *both, "udocker"]


def test_a_singularity_that_is_a_link_to_apptainer_has_its_versions():
    assert runtime_table.too_old("singularity", "apptainer version 1.4.5") is None
    assert runtime_table.too_old("singularity", "singularity-ce version 3.11.4-jammy") is None
    assert "3.8 or newer" in str(runtime_table.too_old("singularity", "singularity version 3.7.4-1.el7"))
    assert "1.0 or newer" in str(runtime_table.too_old("singularity", "apptainer version 0.1.1"))


def test_a_podman_without_the_options_of_every_start_is_too_old():
    assert runtime_table.too_old("podman", "podman version 4.3.1") is None
    assert "4.3 or newer" in str(runtime_table.too_old("podman", "podman version 3.4.4"))
