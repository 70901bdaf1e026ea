"""The page of a job: ranks on nodes and CPUs, their resource use, the steps over time, and the curves it wrote."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from deployer.connected.ground.reports import job_figures
from deployer.connected.ground.reports.html_page import page
from deployer.connected.ground.reports.job_figures import number
from deployer.contract.base import json_records
from deployer.contract.base.text import counted
from deployer.contract.proof import in_words
from deployer.contract.proof.evidence import parse_cpus

#: The most to draw: nodes, CPUs per node, curves, points per curve.
_NODES, _CPUS, _CURVES, _POINTS = 64, 512, 12, 1000
#: The most levels of a job's own result, steps, and curves per picture; the flattest needs 1/_FAR of its height.
_DEPTH, _STEPS, _STYLES, _FAR = 100, 50, 4, 10
#: The edges of a picture of curves in pixels, as in pages/job.html.
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 312, 12, 126
_COLOURS = ("#bcd9f5", "#ffdf9e", "#c3e8c3", "#f3c6df", "#d9cdf1", "#c4e6e6")


class _Node(NamedTuple):
    """A node: its name, a text version of the picture, and the colour and text of each logical CPU.

    No rank may run on a CPU without a colour.
    """

    host: str
    label: str
    squares: list[tuple[str, str]]


class _Chart(NamedTuple):
    """Curves on the same axes, each with name, values and points.

    The bounds are the least and greatest values; one in ``every`` points is drawn.
    """

    curves: list[tuple[str, list[float], str]]
    least: float
    greatest: float
    every: int


class _Step(NamedTuple):
    """A step of a job: its action, and its begin and end in seconds after the job's start."""

    name: str
    begins: float
    ends: float


#: A list of numbers and its name.
_Series = tuple[str, list[float]]
_Record = Mapping[str, Any]


def make(jobs: Sequence[_Record]) -> str:
    """Return the page of one or more jobs, from their result.json."""
    names = [str(job.get("job", "")) for job in jobs]
    title = ("Jobs: " if len(jobs) > 1 else "Job ") + ", ".join(names)
    sections = ["Summary", *_SECTIONS]
    if len(jobs) > 1:
        sections = [part for name in names for part in (f"Job {name}", *(f"{each} of {name}" for each in _SECTIONS))]
    shown = [{**_values(job), "figures": rows} for job, rows in zip(jobs, job_figures.tables(jobs), strict=True)]
    return page("job.html", title=title, sections=sections, jobs=shown)


def _values(record: _Record) -> dict[str, object]:
    """Return the template's values for a job."""
    ranks = in_words.ranks(record)
    nodes = _nodes(ranks)
    return {
        "record": record,
        "proof": in_words.words(record),
        "findings": [item for item in _list(record.get("findings")) if isinstance(item, dict)],
        "ranks": [(rank, in_words.library(rank), in_words.networks(rank)) for rank in ranks],
        "nodes": [_node(host, cores) for host, cores in list(nodes.items())[:_NODES]],
        "all_nodes": len(nodes),
        "steps": _steps(record),
        **_charts(record.get("payload")),
    }


#: The contents of the sections after the first.
_SECTIONS = ("Findings", "Ranks", "Time", "Curves")
#: The actions of a job's steps.
_STEP_NAMES = {
    "hosts": "nodes tested, image prepared",
    "network": "network tested",
    "stage": "image tested",
    "probe": "ranks tested",
    "payload": "program",
}


def _nodes(ranks: Sequence[_Record]) -> dict[str, dict[int, list[str]]]:
    """Return the ranks allowed on each CPU, by node."""
    nodes: dict[str, dict[int, list[str]]] = {}
    for rank in ranks:
        cores = nodes.setdefault(_text(rank.get("host")), {})
        for core in _cpus(rank.get("cpus")):
            cores.setdefault(core, []).append(_text(rank.get("rank")))
    return nodes


def _node(host: str, cores: Mapping[int, Sequence[str]]) -> _Node:
    """Return the picture of a node: one square per logical CPU, up to the highest one that a rank uses."""
    count = min(max(cores, default=-1) + 1, _CPUS)
    used = sorted({rank for ranks in cores.values() for rank in ranks}, key=lambda rank: (len(rank), rank))
    label = f"Node {host}: {counted(count, 'CPU')}, ranks {', '.join(used) or 'none'}"
    squares = []
    for core in range(count):
        ranks = cores.get(core, ())
        colour = _COLOURS[used.index(ranks[0]) % len(_COLOURS)] if ranks else ""
        squares.append((colour, "+" if len(ranks) > 1 else "".join(ranks)))
    return _Node(host, label, squares)


def _steps(record: _Record) -> list[_Step]:
    """Return the steps of a job from the times in its record. Inconsistent times are left out."""
    seconds = number(record.get("seconds"))
    if seconds is None:
        return []
    steps, at = [], 0.0
    for step in _list(record.get("steps"))[:_STEPS]:
        ends = number(step.get("seconds")) if isinstance(step, dict) else None
        if ends is not None and ends >= at:
            name = _text(step.get("name"))
            steps.append(_Step(_STEP_NAMES.get(name, name), at, ends))
            at = ends
    if not steps:
        steps.append(_Step("job", 0, seconds))
    waited = number(record.get("waited"))
    return [*([_Step("waited", -waited, 0)] if waited is not None and waited >= 0 else []), *steps]


def _charts(payload: Any) -> dict[str, object]:
    """Return the curves in a job's own result, and the table of their numbers."""
    if json_records.is_deeper(payload, _DEPTH):
        return {"charts": [], "numbers": [], "too_deep": _DEPTH}
    curves = list(_series("", payload))[:_CURVES]
    varying = [(name, values) for name, values in curves if min(values) < max(values)]
    return {"charts": list(map(_chart, _grouped(varying))), "numbers": curves, "too_deep": 0}


def _grouped(every: Sequence[_Series]) -> list[list[_Series]]:
    """Group curves that share a picture, such as ``loss`` and ``val_loss`` of one list with similar ranges."""
    charts: dict[tuple[str, str, int], list[list[_Series]]] = {}
    for name, values in every:
        before, _, last = name.rpartition(".")
        alike = charts.setdefault((before, last.rpartition("_")[2], len(values)), [])
        for chart in alike:
            curves = [*(others for _, others in chart), values]
            whole = max(map(max, curves)) - min(map(min, curves))
            # Every curve must stay readable if all share an axis.
            if len(chart) < _STYLES and whole <= _FAR * min(max(curve) - min(curve) for curve in curves):
                chart.append((name, values))
                break
        else:
            alike.append([(name, values)])
    return [chart for alike in charts.values() for chart in alike]


def _chart(series: Sequence[_Series]) -> _Chart:
    low, high = min(min(values) for _, values in series), max(max(values) for _, values in series)
    total = len(series[0][1])
    across, up = (_RIGHT - _LEFT) / (total - 1), (_BOTTOM - _TOP) / (high - low)
    every = -(-total // _POINTS)
    numbers = [*range(0, total - 1, every), total - 1]
    curves = []
    for name, values in series:
        points = (f"{_LEFT + x * across:.1f},{_BOTTOM - (values[x] - low) * up:.1f}" for x in numbers)
        curves.append((name, values, " ".join(points)))
    return _Chart(curves, low, high, every)


def _series(name: str, value: Any) -> Iterator[_Series]:
    """Yield the named lists of two or more finite numbers in a payload's result.

    A list of objects, for example of epochs, gives a list for each of their fields, except mere counters.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _series(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and len(value) > 1:
        if all(isinstance(item, dict) for item in value):
            for key in islice(value[0], _CURVES + 1):
                inner = _series(f"{name}.{key}" if name else str(key), [item.get(key) for item in value])
                # Not epoch numbers: 1, 2, 3.
                yield from (curve for curve in inner if any(then - before != 1 for before, then in pairwise(curve[1])))
            return
        numbers = [float(item) for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
        finite = len(numbers) == len(value) and all(math.isfinite(number) for number in numbers)
        if finite and math.isfinite(max(numbers) - min(numbers)):
            yield name, numbers


def _cpus(value: object) -> Sequence[int]:
    text = str(value or "")
    if len(text) > _CPUS * 4 or re.search(r"\d{5}", text):  # no machine has such a CPU, and the record is untrusted
        return ()
    return sorted(core for core in parse_cpus(text) if core < _CPUS)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return "" if value is None else str(value)
