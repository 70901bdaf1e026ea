"""The page of a job: ranks on nodes and CPUs, what each used, its steps in time, and the curves that it wrote."""

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from deployer.connected.ground import job_figures
from deployer.connected.ground.html_page import page
from deployer.connected.ground.job_figures import number
from deployer.contract import json_records, proof
from deployer.contract.evidence import parse_cpus
from deployer.contract.text import counted

#: The most nodes and CPUs of a node that are drawn, ranks and findings that are listed, curves, and points of each.
_NODES, _CPUS, _RANKS, _FINDINGS, _CURVES, _POINTS = 64, 512, 5000, 500, 12, 1000
#: Levels of a job's own result, steps, curves of a picture, and how much of its height the flattest of them needs.
_DEPTH, _STEPS, _STYLES, _FAR = 100, 50, 4, 10
#: Pixels, as in pages/job.html: of a CPU, how many of them are in a row, and the edges of a curve.
_CORE, _ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 24, 12, 64, 312, 12, 126
_COLOURS = ("#bcd9f5", "#ffdf9e", "#c3e8c3", "#f3c6df", "#d9cdf1", "#c4e6e6")


class _Square(NamedTuple):
    """A logical CPU: its place in pixels, its colour (empty: no rank may run on it), and its text."""

    x: int
    y: int
    colour: str
    text: str


class _Node(NamedTuple):
    """A node: its name, what the picture shows in words, its size in pixels, and its CPUs."""

    host: str
    label: str
    width: int
    height: int
    squares: list[_Square]


class _Curve(NamedTuple):
    """A list of numbers: its name, its points in pixels, and the number of its style."""

    name: str
    points: str
    style: int


class _Chart(NamedTuple):
    """Curves on the same axes: what the picture shows in words, the curves, and texts of the axes."""

    label: str
    curves: list[_Curve]
    least: str
    greatest: str
    drawn: str
    total: int


class _Step(NamedTuple):
    """A step of a job: what was done, and its begin and end in seconds after the job's start."""

    name: str
    begins: float
    ends: float


#: A list of numbers with its name.
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
    """Return what the template shows of a job."""
    ranks = proof.ranks(record)
    findings = [item for item in _list(record.get("findings")) if isinstance(item, dict)]
    code = record.get("exit_code")
    unexplained = f"No finding explains exit code {_text(code)}: read the job's log."
    nodes = _nodes(ranks)
    return {
        "lead": _ended(record),
        "proof": proof.words(record),
        "facts": [(label, _text(record.get(key))) for label, key in _FACTS],
        "findings": [tuple(_text(item.get(key)) for key in _FINDING) for item in findings[:_FINDINGS]],
        "no_findings": unexplained if code else "No findings.",
        "more_findings": _more(len(findings) - _FINDINGS, "finding"),
        "ranks": list(map(_rank, ranks[:_RANKS])),
        "more_ranks": _more(len(ranks) - _RANKS, "rank"),
        "nodes": [_node(host, cores) for host, cores in list(nodes.items())[:_NODES]],
        "more_nodes": _more(len(nodes) - _NODES, "node"),
        **_timeline(_steps(record)),
        **_charts(record.get("payload")),
    }


def _more(count: int, what: str) -> str:
    return counted(count, f"more {what}") if count > 0 else ""


def _ended(record: _Record) -> str:
    code, seconds = record.get("exit_code"), record.get("seconds")
    ended = "The job recorded no exit code" if code is None else f"The job ended with exit code {_text(code)}"
    taken = f" after {_text(seconds)} s." if seconds is not None else "."
    return ended + taken


_FACTS = (
    ("bundle", "bundle"),
    ("version", "version"),
    ("digest", "digest"),
    ("site", "site"),
    ("number", "job_id"),
    ("runtime", "runtime"),
    ("start option", "variant"),
    ("ranks", "world_size"),
    ("exit code", "exit_code"),
    ("started", "started"),
    ("seconds", "seconds"),
)
#: What the sections after the first show.
_SECTIONS = ("Findings", "Ranks", "Time", "Curves")
#: What the steps of a job do.
_STEP_NAMES = {
    "hosts": "nodes tested, image prepared",
    "network": "network tested",
    "stage": "image tested",
    "probe": "ranks tested",
    "payload": "program",
}
_FINDING = ("code", "severity", "subject", "message", "remedy")


def _nodes(ranks: Sequence[_Record]) -> dict[str, dict[int, list[str]]]:
    """Return the ranks that may run on each CPU, by node."""
    nodes: dict[str, dict[int, list[str]]] = {}
    for rank in ranks:
        cores = nodes.setdefault(_text(rank.get("host")), {})
        for core in _cpus(rank.get("cpus")):
            cores.setdefault(core, []).append(_text(rank.get("rank")))
    return nodes


def _rank(rank: _Record) -> tuple[str, ...]:
    first = (_text(rank.get(key)) for key in ("rank", "host", "cpus", "threads"))
    transport = ", ".join(filter(None, [proof.network(rank), *proof.transports(rank)]))
    return (*first, proof.library(rank), transport, _text(rank.get("exit_code")))


def _node(host: str, cores: Mapping[int, Sequence[str]]) -> _Node:
    """Return the picture of a node: a square per logical CPU, up to the highest that a rank uses."""
    count = min(max(cores, default=-1) + 1, _CPUS)
    used = sorted({rank for ranks in cores.values() for rank in ranks}, key=lambda rank: (len(rank), rank))
    label = f"Node {host}: {counted(count, 'CPU')}, ranks {', '.join(used) or 'none'}"
    squares = []
    for core in range(count):
        ranks = cores.get(core, ())
        colour = _COLOURS[used.index(ranks[0]) % len(_COLOURS)] if ranks else ""
        text = "+" if len(ranks) > 1 else "".join(ranks)
        squares.append(_Square(core % _ROW * _CORE, core // _ROW * _CORE, colour, text))
    width, height = max(min(count, _ROW), 1) * _CORE, -(-max(count, 1) // _ROW) * _CORE
    return _Node(host, label, width, height, squares)


def _steps(record: _Record) -> list[_Step]:
    """Return the steps of a job, from the times in its record; a time that does not fit the others is left out."""
    seconds = number(record.get("seconds"))
    if seconds is None:
        return []
    found, at = [], 0.0
    for step in _list(record.get("steps"))[:_STEPS]:
        ends = number(step.get("seconds")) if isinstance(step, dict) else None
        if ends is not None and ends >= at:
            name = _text(step.get("name"))
            found.append(_Step(_STEP_NAMES.get(name, name), at, ends))
            at = ends
    if not found:
        found.append(_Step("job", 0, seconds))
    waited = _waited(record)
    return [*([_Step("waited", -waited, 0)] if waited is not None else []), *found]


def _waited(record: _Record) -> float | None:
    """Return the seconds from the submission of a job to its start."""
    created = number(record.get("created"))
    try:
        started = dt.datetime.strptime(_text(record.get("started")) + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
    except ValueError:  # the file may come from anywhere
        return None
    waited = started.timestamp() - created if created is not None else -1
    return waited if waited >= 0 else None


def _timeline(steps: Sequence[_Step]) -> dict[str, object]:
    """Return a bar per step, in percent of the whole time, and the table of steps."""
    first, last = (steps[0].begins, steps[-1].ends) if steps else (0.0, 0.0)
    scale = 100 / max(last - first, 0.001)
    takes = [f"{step.ends - step.begins:.1f}" for step in steps]
    bars = [
        {
            "name": step.name,
            "takes": text,
            "left": f"{(step.begins - first) * scale:.2f}",
            "width": f"{max((step.ends - step.begins) * scale, 0.3):.2f}",
        }
        for step, text in zip(steps, takes, strict=True)
    ]
    timeline = "; ".join(f"{step.name} {text} s" for step, text in zip(steps, takes, strict=True))
    rows = [(step.name, f"{step.begins - first:.1f}", text) for step, text in zip(steps, takes, strict=True)]
    return {"bars": bars, "timeline": timeline, "steps": rows}


def _charts(payload: Any) -> dict[str, object]:
    """Return the curves of a job's own result, and the table of their numbers."""
    if json_records.is_deeper(payload, _DEPTH):
        none = f"The job's own result is nested deeper than {_DEPTH} levels; nothing of it is drawn."
        return {"charts": [], "numbers": [], "no_charts": none}
    found = list(_series("", payload))[:_CURVES]
    numbers = [
        (name, str(len(values)), *(f"{value:.6g}" for value in (values[0], values[-1], min(values), max(values))))
        for name, values in found
    ]
    none = "The job wrote no curves (lists of numbers that vary) to the file that DEPLOYER_RESULT names."
    varying = [(name, values) for name, values in found if min(values) < max(values)]
    return {"charts": list(map(_chart, _grouped(varying))), "numbers": numbers, "no_charts": none}


def _grouped(found: Sequence[_Series]) -> list[list[_Series]]:
    """Return the curves that share a picture: as ``loss`` and ``val_loss`` of one list, if their ranges are alike."""
    charts: dict[tuple[str, str, int], list[list[_Series]]] = {}
    for name, values in found:
        before, _, last = name.rpartition(".")
        alike = charts.setdefault((before, last.rpartition("_")[2], len(values)), [])
        for chart in alike:
            if len(chart) < _STYLES and _comparable([*(each for _, each in chart), values]):
                chart.append((name, values))
                break
        else:
            alike.append([(name, values)])
    return [chart for alike in charts.values() for chart in alike]


def _comparable(curves: Sequence[Sequence[float]]) -> bool:
    """Return whether each of the curves can be read if they share an axis."""
    whole = max(map(max, curves)) - min(map(min, curves))
    return whole <= _FAR * min(max(values) - min(values) for values in curves)


def _chart(series: Sequence[_Series]) -> _Chart:
    low, high = min(min(values) for _, values in series), max(max(values) for _, values in series)
    total = len(series[0][1])
    across, up = (_RIGHT - _LEFT) / (total - 1), (_BOTTOM - _TOP) / ((high - low) or 1)
    every = -(-total // _POINTS)
    numbers = [*range(0, total - 1, every), total - 1]
    curves = [
        _Curve(
            name,
            " ".join(f"{_LEFT + x * across:.1f},{_BOTTOM - (values[x] - low) * up:.1f}" for x in numbers),
            style,
        )
        for style, (name, values) in enumerate(series)
    ]
    words = [f"{name}: from {values[0]:.6g} to {values[-1]:.6g}" for name, values in series]
    drawn = f"1 in {every} is drawn" if every > 1 else ""
    label = f"{'; '.join(words)} in {counted(total, 'value')}" + (f", of which {drawn}" if drawn else "")
    return _Chart(label, curves, f"{low:.3g}", f"{high:.3g}", drawn, total)


def _series(name: str, value: Any) -> Iterator[_Series]:
    """Yield the lists of two or more finite numbers in a payload's result, with their names.

    A list of objects, as of epochs, is a list for each of their fields, without those that only count.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _series(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and len(value) > 1:
        if all(isinstance(item, dict) for item in value):
            for key in islice(value[0], _CURVES + 1):
                found = _series(f"{name}.{key}" if name else str(key), [item.get(key) for item in value])
                yield from ((each, numbers) for each, numbers in found if not _counts(numbers))
            return
        numbers = [float(item) for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
        finite = len(numbers) == len(value) and all(math.isfinite(number) for number in numbers)
        if finite and math.isfinite(max(numbers) - min(numbers)):
            yield name, numbers


def _counts(numbers: Sequence[float]) -> bool:
    """Return whether numbers are those of the epochs themselves: 1, 2, 3."""
    return all(after - before == 1 for before, after in pairwise(numbers))


def _cpus(value: object) -> Sequence[int]:
    text = str(value or "")
    if len(text) > _CPUS * 4 or re.search(r"\d{5}", text):  # no machine has such a CPU; the record is not trusted
        return ()
    return sorted(core for core in parse_cpus(text) if core < _CPUS)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return "" if value is None else str(value)
