import pytest

from deployer.contract.base import version

ORDER = ["0.9", "1.0-alpha", "1.0-alpha.1", "1.0-beta", "1.0rc1", "1.0rc2", "1.0", "1.0.1", "1.2", "1.10", "2", "10"]


def test_the_order():
    shuffled = sorted(ORDER)  # as text: "10" before "2"
    assert sorted(shuffled, key=version.key) == ORDER != shuffled
    assert all(version.is_older(a, b) for a, b in zip(ORDER, ORDER[1:]))


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "1_0"), ("1.0+a", "1.0+b"), ("1.02", "1.2"), ("1.0RC1", "1.0-rc-1")]
)
def test_what_is_neither_older_nor_newer(one, other):
    assert not version.is_older(one, other)
    assert not version.is_older(other, one)


def test_a_number_of_any_length():
    assert version.is_older("9" * 100000, "1" + "0" * 100000)
