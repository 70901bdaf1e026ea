"""Wrappers as their manual pages describe them; with options that are not known, nothing is followed."""

import shlex

import pytest

from deployer.connected.linker.starts import wrappers


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("env prog -x", "prog -x"),
        ("env -i A=1 B='2 3' -- prog", "-- prog"),  # after an assignment, -- is the program's name
        ("env -S 'A=1 prog -x' y", "prog -x y"),
        ("env -C /x --unset A B=1 prog", "prog"),
        ("env -i -u HOME A=1 prog a", "prog a"),
        ("env -i -uHOME -u X --unset=Y --ignore-environment A=1 prog", "prog"),
        ("/usr/bin/nice -n 5 prog", "prog"),
        ("nice -n5 prog", "prog"),
        ("nice -10 prog", "prog"),
        ("nohup prog", "prog"),
        ("stdbuf -oL -e 0 prog", "prog"),
        ("timeout -k 5 --signal KILL 60 prog 1 2", "prog 1 2"),
        ("taskset -c 0-3 prog", "prog"),
        ("numactl --cpunodebind=0 --membind 1 -l prog", "prog"),
        ("numactl -N0 -m 0 prog", "prog"),
        ("setsid -w prog", "prog"),
        ("chrt -f 10 prog", "prog"),
        ("ionice -c2 -n 0 prog", "prog"),
        ("time -p prog", "prog"),
    ],
)
def test_the_command_in_a_wrappers_words(line: str, command: str) -> None:
    found = wrappers.inner(shlex.split(line))
    assert list(found.words) == shlex.split(command)
    assert not found.unclear


@pytest.mark.parametrize("line", ["env -Z p", "nice -Q prog", "timeout 5", "numactl --show", "env -v=1 p"])
def test_what_is_not_understood_is_unclear(line: str) -> None:
    found = wrappers.inner(shlex.split(line))
    assert found.unclear
    assert not found.words


def test_other_programs_are_no_wrappers() -> None:
    assert wrappers.inner(["prog", "env", "x"]) is None
