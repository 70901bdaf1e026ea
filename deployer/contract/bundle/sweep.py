"""The tasks of a group: ``run --array`` and ``run --sweep``. Pure.

A sweep has one of three forms, and optionally ``at_once``, the largest number of tasks that run at the same time::

    {"grid": {"lr": [0.1, 0.01], "layers": [2, 4]}}
    {"random": {"lr": {"from": 1e-4, "to": 0.1, "log": true}, "layers": [2, 4]}, "tasks": 20, "seed": 1}
    {"list": [{"lr": 0.1}, {"lr": 0.01, "layers": 4}]}
"""

import hashlib
import itertools
import json
import math
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.base import text as texts
from deployer.contract.base.errors import UsageError

#: The largest number of tasks in a group.
MOST = 10000
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?$")
_ARRAY = re.compile(r"([0-9,:-]+)(?:%([1-9][0-9]{0,8}))?$")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*$")
#: The keys of a sweep, of which one form is needed.
_FORMS = {"grid": dict, "random": dict, "list": list}
_COUNTS = ("at_once", "tasks", "seed")
#: Random draws per task until the sweep counts as too small for so many different tasks.
_DRAWS = 100


class GroupTask(NamedTuple):
    """A task.

    Attributes:
        number: its number.
        parameters: its parameters by name: texts, numbers and truth values.
    """

    number: int
    parameters: Mapping[str, Any] = {}

    @property
    def words(self) -> List[str]:
        """The parameters as words of a command."""
        return [f"--{name}={shown(value)}" for name, value in self.parameters.items()]


class TaskArray(NamedTuple):
    """A submitted array.

    Attributes:
        tasks: the numbers of its tasks, as ``numbers`` reads them.
        job_id: the batch system's id; None: the submission had no answer.
    """

    tasks: str
    job_id: Optional[str] = None

    def by_index(self, own_numbers: bool) -> Dict[int, int]:
        """Return its tasks by the batch system's numbers; for ``own_numbers`` see ``Scheduler``."""
        tasks = numbers(self.tasks)
        return dict(zip(tasks if own_numbers else range(1, len(tasks) + 1), tasks))


class TaskGroup(NamedTuple):
    """The tasks of a group.

    Attributes:
        tasks: the tasks.
        at_once: the largest number of tasks that run at the same time; None: no limit.
        arrays: the arrays, in the order of their submission.
    """

    tasks: Sequence[GroupTask]
    at_once: Optional[int] = None
    arrays: Sequence[TaskArray] = ()

    def submitting(self, tasks: str) -> "TaskGroup":
        """Return the group with one more array of these tasks, which has no id yet."""
        return self._replace(arrays=[*self.arrays, TaskArray(tasks)])

    def submitted(self, job_id: str) -> "TaskGroup":
        """Return the group with the id of the last array."""
        return self._replace(arrays=[*self.arrays[:-1], self.arrays[-1]._replace(job_id=job_id)])


def shown(value: Any) -> str:
    """Return the text of a parameter's value."""
    return value if isinstance(value, str) else json.dumps(value)


def numbers(text: str) -> List[int]:
    """Return the numbers of a text such as ``0-9:3,12``. Raises UsageError for another text, or too many numbers."""
    found: List[int] = []
    for match, part in ((_RANGE.match(part), part) for part in text.split(",")):
        first, last, step = match.groups() if match else ("1", "0", None)
        span = range(int(first), int(last or first) + 1, int(step or 1))
        if not span or len(found) + len(span) > MOST:
            raise UsageError(f"{part!r} is not a number or a range of numbers, or there are more than {MOST} tasks")
        found += span
    return found


def of_array(text: str) -> TaskGroup:
    """Return a group of tasks without parameters, and its first array, from ``--array``. Raises UsageError."""
    match = _ARRAY.match(text)
    tasks = [GroupTask(number) for number in numbers(match.group(1))] if match else []
    if match is None or len({task.number for task in tasks}) < len(tasks):
        raise UsageError(f"--array {text}: not numbers of tasks, each once", "for instance 0-9, 1-10:3, 0,4 or 0-99%8")
    return TaskGroup(tasks, int(match.group(2) or 0) or None).submitting(match.group(1))


def of_sweep(given: Mapping[str, Any], what: str) -> TaskGroup:
    """Return a group with the tasks of a sweep, and its first array; ``what`` is the sweep's name for errors.

    Raises:
        UsageError: it is not a sweep, has no tasks or too many, or two tasks are the same.
    """
    try:
        tasks = [GroupTask(number, _checked(one)) for number, one in enumerate(_expanded(given))]
        first: Dict[str, int] = {}
        for task in tasks:
            same = first.setdefault(json.dumps(task.parameters, sort_keys=True, allow_nan=False), task.number)
            if same != task.number:
                raise ValueError("the tasks %d and %d have the same parameters" % (same, task.number))
    except ValueError as error:
        raise UsageError(f"{what}: {error}", "see `Arrays and sweeps` in docs/cluster.md") from None
    return TaskGroup(tasks, given.get("at_once")).submitting("0-%d" % (len(tasks) - 1))


def _expanded(given: Mapping[str, Any]) -> List[Any]:
    """Return the parameters of each task. Raises ValueError."""
    form = next((name for name in _FORMS if name in given), "")
    if set(given) - {form, *(_COUNTS if form == "random" else _COUNTS[:1])} or not form:
        raise ValueError("it needs one of grid, list, and random with `tasks`, and has: " + ", ".join(map(str, given)))
    for name in _COUNTS:
        if type(given.get(name, 1)) is not int or not 1 <= given.get(name, 1) <= MOST:
            raise ValueError("%s: %r is not a number from 1 to %d" % (name, given[name], MOST))
    if not isinstance(given[form], _FORMS[form]) or not given[form]:
        raise ValueError(f"{form} is empty, or not a {'list' if form == 'list' else 'mapping'}")
    tasks: Iterable[Any] = given[form]
    if form == "grid":
        lists = [_values(values, name) for name, values in given[form].items()]
        tasks = (dict(zip(given[form], values)) for values in itertools.product(*lists))
    if form == "random":
        tasks = _random(given[form], given.get("tasks", 0), given.get("seed", 1))
    every = list(itertools.islice(tasks, MOST + 1))
    if len(every) > MOST:
        raise ValueError("it has more than %d tasks" % MOST)
    return every


def _values(value: Any, name: str) -> List[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name}: not a list of values")
    return value


def _checked(parameters: Any) -> Dict[str, Any]:
    """Return the parameters of a task. Raises ValueError if they cannot be words of a command."""
    if not isinstance(parameters, dict) or not parameters:
        raise ValueError(f"{parameters!r} is not a mapping of parameters")
    for name, value in parameters.items():
        if not _NAME.match(str(name)):
            raise ValueError(f"{name!r} is not the name of a parameter: use letters, digits and . _ -")
        if not isinstance(value, (int, float)) and (not isinstance(value, str) or texts.fault(value)):
            raise ValueError(f"{name}: {value!r} is not a text in one line, a number, true or false")
    return parameters


def _random(ranges: Mapping[str, Any], count: int, seed: int) -> Iterable[Dict[str, Any]]:
    drawn: Dict[str, Dict[str, Any]] = {}
    for draw in range(count * _DRAWS):
        one = {name: _drawn(_chance("%d %d %s" % (seed, draw, name)), spec, name) for name, spec in ranges.items()}
        drawn[repr(one)] = one
        if len(drawn) == count:
            return drawn.values()
    raise ValueError("it needs `tasks`, and has only %d different ones of %d" % (len(drawn), count))


def _chance(words: str) -> float:
    """Return a number from 0 to 1, which is the same for the same words in every Python."""
    return int(hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:13], 16) / 16**13


def _drawn(chance: float, spec: Any, name: str) -> Any:
    """Return the value for a random number from 0 to 1."""
    if not isinstance(spec, dict):
        return _values(spec, name)[int(chance * len(spec))]
    try:
        low, high, log = float(spec["from"]), float(spec["to"]), spec.get("log", False)  # YAML reads 1e-4 as a text
        if not (0.0 if log else -math.inf) < low < high < math.inf or set(spec) - {"from", "to", "log"}:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name}: not a list of values, nor from, to (larger) and perhaps `log: true`") from None
    if type(spec["from"]) is type(spec["to"]) is int and not log:
        return spec["from"] + int(chance * (spec["to"] - spec["from"] + 1))
    return float("%.6g" % (low * math.pow(high / low, chance) if log else low + chance * (high - low)))
