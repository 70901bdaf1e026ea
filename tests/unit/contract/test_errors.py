"""What is printed of an expected failure."""

from deployer.contract.errors import Refused, UsageError


def test_one_line_and_a_hint():
    assert UsageError("it\n is  wrong", "mend it").lines() == ["deployer: error: it is wrong", "hint: mend it"]
    assert UsageError("wrong").lines() == ["deployer: error: wrong"]


def test_several_causes_stand_below_each_in_a_line():
    error = Refused("2 errors", "mend them", ["a: wrong", "b:\nwrong"])
    assert error.lines() == ["deployer: error: 2 errors", "  a: wrong", "  b: wrong", "hint: mend them"]
    assert (error.message, error.details, error.exit_code) == ("2 errors", ["a: wrong", "b:\nwrong"], 3)
