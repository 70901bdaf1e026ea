"""The page of a job: ranks on nodes and CPUs, what each used, its steps in time, and the curves that it wrote."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deployer.connected.ground.html_page import page
from deployer.contract import json_records, proof
from deployer.contract.evidence import parse_cpus
from deployer.contract.text import counted

#: The most nodes and CPUs of a node that are drawn, ranks and findings that are listed, curves, and points of each.
_NODES, _CPUS, _RANKS, _FINDINGS, _CURVES, _POINTS = 64, 512, 5000, 500, 12, 1000
#: Levels of a job's own result.
_DEPTH = 100
#: Pixels, as in pages/job.html: of a CPU, how many of them are in a row, and the edges of a curve.
_CORE, _ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 24, 12, 46, 312, 32, 146
_COLOURS = ("#bcd9f5", "#ffdf9e", "#c3e8c3", "#f3c6df", "#d9cdf1", "#c4e6e6")


class TimedStep(NamedTuple):
    """A step of a job.

    Attributes:
        name: what was done.
        start: seconds since the epoch.
        end: likewise.
    """

    name: str
    start: float
    end: float


class PicturedJob(NamedTuple):
    """What the page shows.

    Attributes:
        result: the job's result.json.
        steps: its steps in time, as far as they are known.
    """

    result: Mapping[str, Any]
    steps: Sequence[TimedStep]


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
    """A list of numbers: its name, what the picture shows in words, points in pixels, and texts of its axes."""

    name: str
    label: str
    points: str
    least: str
    greatest: str
    drawn: str
    total: int


def make(jobs: Sequence[PicturedJob]) -> str:
    """Return the page of one or more jobs."""
    names = [str(job.result.get("job", "")) for job in jobs]
    title = ("Jobs: " if len(jobs) > 1 else "Job ") + ", ".join(names)
    sections = ["Summary", *_SECTIONS]
    if len(jobs) > 1:
        sections = [part for name in names for part in (f"Job {name}", *(f"{each} of {name}" for each in _SECTIONS))]
    return page("job.html", title=title, sections=sections, jobs=list(map(_values, jobs)))


def _values(job: PicturedJob) -> dict[str, object]:
    """Return what the template shows of a job."""
    record = job.result
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
        **_timeline(job.steps),
        **_curves(record.get("payload")),
    }


def _more(count: int, what: str) -> str:
    return counted(count, f"more {what}") if count > 0 else ""


def _ended(record: Mapping[str, Any]) -> str:
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
_FINDING = ("code", "severity", "subject", "message", "remedy")


def _nodes(ranks: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, list[str]]]:
    """Return the ranks that may run on each CPU, by node."""
    nodes: dict[str, dict[int, list[str]]] = {}
    for rank in ranks:
        cores = nodes.setdefault(_text(rank.get("host")), {})
        for core in _cpus(rank.get("cpus")):
            cores.setdefault(core, []).append(_text(rank.get("rank")))
    return nodes


def _rank(rank: Mapping[str, Any]) -> tuple[str, ...]:
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


def _timeline(steps: Sequence[TimedStep]) -> dict[str, object]:
    """Return a bar per step, in percent of the whole time, and the table of steps."""
    first, last = min((step.start for step in steps), default=0), max((step.end for step in steps), default=0)
    scale = 100 / max(last - first, 0.001)
    takes = [f"{step.end - step.start:.1f}" for step in steps]
    bars = [
        {
            "name": step.name,
            "takes": text,
            "left": f"{(step.start - first) * scale:.2f}",
            "width": f"{max((step.end - step.start) * scale, 0.3):.2f}",
        }
        for step, text in zip(steps, takes, strict=True)
    ]
    timeline = "; ".join(f"{step.name} {text} s" for step, text in zip(steps, takes, strict=True))
    rows = [(step.name, f"{step.start - first:.1f}", text) for step, text in zip(steps, takes, strict=True)]
    return {"bars": bars, "timeline": timeline, "steps": rows}


def _curves(payload: Any) -> dict[str, object]:
    """Return the curves of a job's own result, and the table of their numbers."""
    if json_records.is_deeper(payload, _DEPTH):
        none = f"The job's own result is nested deeper than {_DEPTH} levels; nothing of it is drawn."
        return {"curves": [], "no_curves": none}
    found = list(_series("", payload))[:_CURVES]
    numbers = [
        (name, str(len(values)), *(f"{value:.6g}" for value in (values[0], values[-1], min(values), max(values))))
        for name, values in found
    ]
    none = "The job wrote no lists of numbers to the file that DEPLOYER_RESULT names."
    return {"curves": [_curve(*each) for each in found], "numbers": numbers, "no_curves": none}


def _curve(name: str, values: Sequence[float]) -> _Curve:
    low, high = min(values), max(values)
    across, up = (_RIGHT - _LEFT) / (len(values) - 1), (_BOTTOM - _TOP) / ((high - low) or 1)
    every = -(-len(values) // _POINTS)
    points = " ".join(
        f"{_LEFT + number * across:.1f},{_BOTTOM - (values[number] - low) * up:.1f}"
        for number in [*range(0, len(values) - 1, every), len(values) - 1]
    )
    label = f"{name}: from {values[0]:.6g} to {values[-1]:.6g} in {counted(len(values), 'value')}"
    drawn = f"1 in {every} is drawn" if every > 1 else ""
    label += f", of which {drawn}" if drawn else ""
    return _Curve(name, label, points, f"{low:.3g}", f"{high:.3g}", drawn, len(values))


def _series(name: str, value: Any) -> Iterator[tuple[str, list[float]]]:
    """Yield the lists of two or more finite numbers in a payload's result, with their names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _series(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and len(value) > 1:
        numbers = [float(item) for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
        finite = len(numbers) == len(value) and all(math.isfinite(number) for number in numbers)
        if finite and math.isfinite(max(numbers) - min(numbers)):
            yield name, numbers


def _cpus(value: object) -> Sequence[int]:
    text = str(value or "")
    if len(text) > _CPUS * 4 or re.search(r"\d{5}", text):  # no machine has such a CPU; the record is not trusted
        return ()
    return sorted(core for core in parse_cpus(text) if core < _CPUS)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return "" if value is None else str(value)
