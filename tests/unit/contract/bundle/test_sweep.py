"""The tasks of --array and --sweep: what is accepted, in which order, and one clear line for everything else."""

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import sweep


def expanded(given):
    return [task.parameters for task in sweep.of_sweep(given, "s.yaml").tasks]


@pytest.mark.parametrize(
    ("text", "numbers", "at_once"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("7", [7], None),
        ("0-9:3%2", [0, 3, 6, 9], 2),
        ("1,4,10-12%100", [1, 4, 10, 11, 12], 100),
        ("0-9999", list(range(10000)), None),
    ],
)
def test_an_array(text, numbers, at_once):
    group = sweep.of_array(text)
    assert [task.number for task in group.tasks] == numbers
    assert group.at_once == at_once
    assert group.arrays == [(text.partition("%")[0], None)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0-",
        "-1",
        "3-1",
        "0-10000",
        "0-5000,5000-10000",
        "0-9:0",
        "0-9%",
        "0-9%0",
        "0-9%x",
        "1,1",
        "1;2",
        "9" * 99,
    ],
)
def test_no_array(text):
    with pytest.raises(UsageError, match="number"):
        sweep.of_array(text)


def test_a_grid_varies_the_last_parameter_first():
    group = sweep.of_sweep({"grid": {"lr": [0.1, 1e-5], "mode": ["a b", True]}, "at_once": 2}, "s.yaml")
    assert [task.number for task in group.tasks] == [0, 1, 2, 3]
    assert group.tasks[0].words == ["--lr=0.1", "--mode=a b"]
    assert group.tasks[3].words == ["--lr=1e-05", "--mode=true"]
    assert (group.at_once, group.arrays) == (2, [("0-3", None)])


def test_a_list_may_have_other_parameters_in_each_task():
    assert expanded({"list": [{"lr": 1}, {"lr": 1, "n.x": "$HOME"}]}) == [{"lr": 1}, {"lr": 1, "n.x": "$HOME"}]


def test_random_values_are_the_same_in_every_python():
    given = {
        "lr": {"from": "1e-4", "to": 0.1, "log": True},
        "n": {"from": 1, "to": 3},
        "x": {"from": 0, "to": 1.5},
        "m": ["a", "b"],
    }
    first = expanded({"random": given, "tasks": 3, "seed": 7})
    assert first == [
        {"lr": 0.00099143, "n": 1, "x": 0.745794, "m": "a"},
        {"lr": 0.0840369, "n": 2, "x": 1.21237, "m": "a"},
        {"lr": 0.00171253, "n": 2, "x": 0.807321, "m": "b"},
    ]
    assert expanded({"random": given, "tasks": 2, "seed": 7}) == first[:2]
    assert sorted(task["n"] for task in expanded({"random": {"n": {"from": 1, "to": 50}}, "tasks": 50})) == list(
        range(1, 51)
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "it needs one of grid, list, and random"),
        ({"grid": {"a": [1]}, "list": [{"a": 1}]}, "it needs one of grid"),
        ({"gird": {"a": [1]}}, "gird"),
        ({"grid": {"a": [1]}, "tasks": 3}, "it needs one of grid"),
        ({"grid": {}}, "grid is empty"),
        ({"grid": [1]}, "grid is empty, or not a mapping"),
        ({"grid": {"a": []}}, "a: not a list of values"),
        ({"grid": {"a": 1}}, "a: not a list of values"),
        ({"grid": {"a b": [1]}}, "'a b' is not the name of a parameter"),
        ({"grid": {"-a": [1]}}, "'-a' is not the name of a parameter"),
        ({"grid": {1: [1]}}, "1 is not the name of a parameter"),
        ({"grid": {"a": [1, 2, 1]}}, "the tasks 0 and 2 have the same parameters"),
        ({"grid": {"a": [[1]]}}, r"a: \[1\] is not a text"),
        ({"grid": {"a": [None]}}, "a: None is not a text"),
        ({"grid": {"a": ["x\ny"]}}, "is not a text in one line"),
        ({"grid": {"a": [float("nan")]}}, "not JSON compliant"),
        ({"grid": {"a": list(range(101)), "b": list(range(101))}}, "it has more than 10000 tasks"),
        ({"grid": {name: list(range(1000)) for name in "abcdefgh"}}, "it has more than 10000 tasks"),
        ({"grid": {"a": [1]}, "at_once": 0}, "at_once: 0 is not a number"),
        ({"grid": {"a": [1]}, "at_once": True}, "at_once: True is not a number"),
        ({"list": []}, "list is empty"),
        ({"list": [{}]}, "is not a mapping of parameters"),
        ({"list": ["x"]}, "'x' is not a mapping"),
        ({"list": [{"a": 1}, {"a": 1}]}, "the tasks 0 and 1"),
        ({"random": {"a": [1, 2]}}, "it needs `tasks`"),
        ({"random": {"a": [1, 2]}, "tasks": 3}, "only 2 different ones of 3"),
        ({"random": {"a": [1, 2]}, "tasks": 10001}, "tasks: 10001 is not a number from 1 to 10000"),
        ({"random": {"a": {"from": 2, "to": 1}}, "tasks": 1}, "a: not a list of values, nor from, to"),
        ({"random": {"a": {"from": 0, "to": 1, "log": True}}, "tasks": 1}, "nor from, to"),
        ({"random": {"a": {"from": 0, "to": 1, "step": 1}}, "tasks": 1}, "nor from, to"),
        ({"random": {"a": {"from": 0, "to": float("inf")}}, "tasks": 1}, "nor from, to"),
        ({"random": {"a": {"to": 1}}, "tasks": 1}, "nor from, to"),
    ],
)
def test_no_sweep(given, words):
    with pytest.raises(UsageError, match=words) as error:
        sweep.of_sweep(given, "s.yaml")
    assert error.value.message.startswith("s.yaml: ")
    assert "\n" not in error.value.message
