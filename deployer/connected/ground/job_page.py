"""The page of a job: ranks on nodes and CPUs, what each used, its steps in time, and the curves that it wrote."""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deployer.connected.ground.html_page import element, facts, page, section, table
from deployer.contract import json_records
from deployer.contract.evidence import parse_cpus

#: The most nodes and CPUs of a node that are drawn, ranks and findings that are listed, curves, and points of each.
_NODES, _CPUS, _RANKS, _FINDINGS, _CURVES, _POINTS = 64, 512, 5000, 500, 12, 1000
#: Levels of a job's own result.
_DEPTH = 100
#: Pixels: of a CPU, and of the width and height of a drawing.
_CORE, _WIDTH, _HEIGHT, _MARGIN = 22, 720, 180, 40
_COLOURS = ("#cfe2ff", "#ffe5b4", "#d1f0d1", "#f5d0e6", "#e2d9f3", "#d4eeee")


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


def make(jobs: Sequence[PicturedJob]) -> str:
    """Return the page of one or more jobs."""
    names = [str(job.result.get("job", "")) for job in jobs]
    return page("Jobs: " + ", ".join(names), *(part for job in jobs for part in _parts(job)))


def _parts(job: PicturedJob) -> Iterator["ET.Element[str]"]:
    record = job.result
    name = str(record.get("job", ""))
    ranks = [rank for rank in _list(record.get("ranks")) if isinstance(rank, dict)]
    pairs = [(label, _text(record.get(key))) for label, key in _FACTS]
    yield section(f"Job {name}", facts("The job", pairs))
    yield section(f"Findings of {name}", *_findings(record))
    yield section(f"Ranks of {name}", *_layout(ranks))
    yield section(f"Time of {name}", *_timeline(job.steps))
    yield section(f"Curves of {name}", *_curves(record.get("payload")))


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
_FINDING = ("code", "severity", "subject", "message", "remedy")


def _findings(record: Mapping[str, Any]) -> Iterator["ET.Element[str]"]:
    found = [item for item in _list(record.get("findings")) if isinstance(item, dict)]
    if found:
        rows = (tuple(_text(item.get(key)) for key in _FINDING) for item in found[:_FINDINGS])
        yield table("Errors, warnings and notes", _FINDING, rows)
    elif record.get("exit_code"):
        yield element("p", f"No finding explains exit code {_text(record.get('exit_code'))}: read the job's log.")
    else:
        yield element("p", "No findings.")
    if len(found) > _FINDINGS:
        yield element("p", f"{len(found) - _FINDINGS} more findings are not listed.")


def _layout(ranks: Sequence[Mapping[str, Any]]) -> Iterator["ET.Element[str]"]:
    if not ranks:
        yield element("p", "No rank left a record.")
        return
    nodes: dict[str, dict[int, list[str]]] = {}
    for rank in ranks:
        cores = nodes.setdefault(_text(rank.get("host")), {})
        for core in _cpus(rank.get("cpus")):
            cores.setdefault(core, []).append(_text(rank.get("rank")))
    for host, cores in list(nodes.items())[:_NODES]:
        yield _node(host, cores)
    if len(nodes) > _NODES:
        yield element("p", f"{len(nodes) - _NODES} more nodes are not drawn.")
    head = ("rank", "node", "CPUs", "threads", "MPI library", "transport", "exit code")
    rows = (
        (
            _text(rank.get("rank")),
            _text(rank.get("host")),
            _text(rank.get("cpus")),
            _text(rank.get("threads")),
            _text(rank.get("mpi_library") or rank.get("mpi_path")),
            _transport(rank),
            _text(rank.get("exit_code")),
        )
        for rank in ranks[:_RANKS]
    )
    yield table("Ranks", head, rows)
    if len(ranks) > _RANKS:
        yield element("p", f"{len(ranks) - _RANKS} more ranks are not listed.")


def _transport(rank: Mapping[str, Any]) -> str:
    """Return how a rank sends messages: libfabric's provider, or what NCCL reports."""
    communication = rank.get("communication")
    nccl = communication.get("nccl") if isinstance(communication, dict) else None
    network = nccl.get("network") if isinstance(nccl, dict) else None
    return _text(rank.get("provider") or (f"NCCL: {network}" if network else None))


def _node(host: str, cores: Mapping[int, Sequence[str]]) -> "ET.Element[str]":
    """Draw a node: a square per logical CPU, up to the highest that a rank uses, with the ranks that may run on it."""
    count = min(max(cores, default=-1) + 1, _CPUS)
    per_row = _WIDTH // _CORE
    height = -(-max(count, 1) // per_row) * _CORE + _CORE
    used = sorted({rank for ranks in cores.values() for rank in ranks}, key=lambda rank: (len(rank), rank))
    label = f"Node {host}: {count} CPUs, ranks {', '.join(used) or 'none'}"
    picture = element(
        "svg", role="img", aria_label=label, viewBox=f"0 0 {_WIDTH} {height}", width=_WIDTH, height=height
    )
    picture.append(element("text", f"node {host}", x=0, y=14))
    for core in range(count):
        x, y = core % per_row * _CORE, core // per_row * _CORE + _CORE
        ranks = cores.get(core, ())
        number = used.index(ranks[0]) if ranks else 0
        colour = _COLOURS[number % len(_COLOURS)] if ranks else "#ffffff"
        picture.append(element("rect", x=x, y=y, width=_CORE - 2, height=_CORE - 2, fill=colour, stroke="#5a5a5a"))
        picture.append(element("text", "+" if len(ranks) > 1 else "".join(ranks), x=x + 3, y=y + 14))
    return picture


def _timeline(steps: Sequence[TimedStep]) -> Iterator["ET.Element[str]"]:
    if not steps:
        yield element("p", "The times of its steps are not known: give the job's folder, not only its result.json.")
        return
    first, last = min(step.start for step in steps), max(step.end for step in steps)
    scale = (_WIDTH - 2 * _MARGIN) / max(last - first, 0.001)
    height = len(steps) * _CORE * 2
    said = "; ".join(f"{step.name} {step.end - step.start:.1f} s" for step in steps)
    picture = element("svg", role="img", aria_label=said, viewBox=f"0 0 {_WIDTH} {height}", width=_WIDTH, height=height)
    for number, step in enumerate(steps):
        x, width = _MARGIN + (step.start - first) * scale, max((step.end - step.start) * scale, 1)
        y = number * _CORE * 2
        picture.append(element("text", f"{step.name}: {step.end - step.start:.1f} s", x=0, y=y + 14))
        picture.append(
            element("rect", x=f"{x:.1f}", y=y + 18, width=f"{width:.1f}", height=16, fill="#cfe2ff", stroke="#5a5a5a")
        )
    yield picture
    rows = ((step.name, f"{step.start - first:.1f}", f"{step.end - step.start:.1f}") for step in steps)
    yield table("Steps", ("step", "begins after (s)", "takes (s)"), rows)


def _curves(payload: Any) -> Iterator["ET.Element[str]"]:
    if json_records.is_deeper(payload, _DEPTH):
        yield element("p", f"The job's own result is nested deeper than {_DEPTH} levels; nothing of it is drawn.")
        return
    found = list(_series("", payload))
    if not found:
        yield element("p", "The job wrote no lists of numbers to the file that DEPLOYER_RESULT names.")
        return
    for name, values in found[:_CURVES]:
        yield _curve(name, values)
    rows = (
        (name, str(len(values)), *(f"{value:.6g}" for value in (values[0], values[-1], min(values), max(values))))
        for name, values in found[:_CURVES]
    )
    yield table("Curves", ("name", "values", "first", "last", "least", "greatest"), rows)


def _curve(name: str, values: Sequence[float]) -> "ET.Element[str]":
    low, high = min(values), max(values)
    across, up = (_WIDTH - 2 * _MARGIN) / (len(values) - 1), (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1)
    every = -(-len(values) // _POINTS)
    points = " ".join(
        f"{_MARGIN + number * across:.1f},{_HEIGHT - _MARGIN - (values[number] - low) * up:.1f}"
        for number in [*range(0, len(values) - 1, every), len(values) - 1]
    )
    label = f"{name}: from {values[0]:.6g} to {values[-1]:.6g} in {len(values)} values"
    if every > 1:
        label += f", of which 1 in {every} is drawn"
    picture = element(
        "svg", role="img", aria_label=label, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", width=_WIDTH, height=_HEIGHT
    )
    picture.append(element("text", label, x=_MARGIN, y=16))
    picture.append(element("text", f"{high:.3g}", x=0, y=_MARGIN))
    picture.append(element("text", f"{low:.3g}", x=0, y=_HEIGHT - _MARGIN))
    picture.append(element("polyline", points=points, fill="none", stroke="#0b5394", stroke_width=2))
    return picture


def _series(name: str, value: Any) -> Iterator[tuple[str, list[float]]]:
    """Yield the lists of two or more finite numbers in a payload's result, with their names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _series(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and len(value) > 1:
        numbers = [float(item) for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
        if len(numbers) == len(value) and all(math.isfinite(number) for number in numbers):
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
