"""What is printed of an expected failure."""

from deployer.contract.base.errors import Refused, UsageError


def test_one_line_and_a_hint():
    assert UsageError("it\n is  wrong", "mend it").lines() == ["deployer: error: it is wrong", "hint: mend it"]
    assert UsageError("wrong").lines() == ["deployer: error: wrong"]


def test_several_causes_stand_below_each_in_a_line():
    error = Refused("2 errors", "mend them", ["a: wrong", "b:\nwrong"])
    assert error.lines() == ["deployer: error: 2 errors", "  a: wrong", "  b: wrong", "hint: mend them"]
    assert (error.message, error.details, error.exit_code) == ("2 errors", ["a: wrong", "b:\nwrong"], 3)


def test_an_escape_sequence_is_shown_and_not_obeyed():
    """Texts of images, profiles and programs are in messages."""
    error = UsageError("no \x1b]0;title\x07 in it\nreally", "try\x1b[2J\u202e", ["a\rb\x9b1m"])
    assert error.lines() == [
        "deployer: error: no \\x1b]0;title\\x07 in it really",
        "  a b\\u009b1m",
        "hint: try\\x1b[2J\\u202e",
    ]
