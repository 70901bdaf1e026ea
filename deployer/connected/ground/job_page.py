"""The page of a job: ranks on nodes and CPUs, what each used, its steps in time, and the curves that it wrote."""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deployer.connected.ground.html_page import element, facts, page, section, table
from deployer.contract import json_records
from deployer.contract.evidence import parse_cpus
from deployer.contract.text import counted

#: The most nodes and CPUs of a node that are drawn, ranks and findings that are listed, curves, and points of each.
_NODES, _CPUS, _RANKS, _FINDINGS, _CURVES, _POINTS = 64, 512, 5000, 500, 12, 1000
#: Kinds of MPI libraries that the first sentence names.
_LIBRARIES = 4
#: Levels of a job's own result.
_DEPTH = 100
#: Pixels: of a CPU, how many of them are in a row, of a bar, and of a curve. Each fits into the screen of a telephone.
_CORE, _ROW, _BAR, _WIDTH, _HEIGHT, _LEFT, _MARGIN = 24, 12, 44, 320, 170, 46, 24
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


def make(jobs: Sequence[PicturedJob]) -> str:
    """Return the page of one or more jobs."""
    names = [str(job.result.get("job", "")) for job in jobs]
    title = ("Jobs: " if len(jobs) > 1 else "Job ") + ", ".join(names)
    return page(title, *(part for job in jobs for part in _parts(job, len(jobs) > 1)))


def _parts(job: PicturedJob, named: bool) -> Iterator["ET.Element[str]"]:
    record = job.result
    name = str(record.get("job", ""))
    of = f" of {name}" if named else ""
    ranks = [rank for rank in _list(record.get("ranks")) if isinstance(rank, dict)]
    pairs = [(label, _text(record.get(key))) for label, key in _FACTS]
    lead = element("p", _told(record, ranks), class_="lead")
    yield section(f"Job {name}" if named else "Summary", lead, facts("The job", pairs))
    yield section(f"Findings{of}", *_findings(record))
    yield section(f"Ranks{of}", *_layout(ranks))
    yield section(f"Time{of}", *_timeline(job.steps))
    yield section(f"Curves{of}", *_curves(record.get("payload")))


def _told(record: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return how the job ended and which MPI its ranks used, in sentences."""
    code, seconds = record.get("exit_code"), record.get("seconds")
    ended = "The job recorded no exit code" if code is None else f"The job ended with exit code {_text(code)}"
    taken = f" after {_text(seconds)} s." if seconds is not None else "."
    used: dict[str, int] = {}
    for rank in ranks:
        used[_library(rank)] = used.get(_library(rank), 0) + 1
    hosts = {_text(rank.get("host")) for rank in ranks}
    seen = [f"{counted(number, 'rank')}: {library or 'no MPI library'}" for library, number in used.items()]
    if len(seen) > _LIBRARIES:
        seen[_LIBRARIES:] = [f"and {len(seen) - _LIBRARIES} more"]
    where = f" On {counted(len(hosts), 'node')}, {'; '.join(seen)}." if ranks else ""
    return ended + taken + where


def _library(rank: Mapping[str, Any]) -> str:
    return _text(rank.get("mpi_library") or rank.get("mpi_path"))


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
        yield element("p", f"Not listed: {counted(len(found) - _FINDINGS, 'more finding')}.")


def _layout(ranks: Sequence[Mapping[str, Any]]) -> Iterator["ET.Element[str]"]:
    if not ranks:
        yield element("p", "No rank left a record.")
        return
    nodes: dict[str, dict[int, list[str]]] = {}
    for rank in ranks:
        cores = nodes.setdefault(_text(rank.get("host")), {})
        for core in _cpus(rank.get("cpus")):
            cores.setdefault(core, []).append(_text(rank.get("rank")))
    pictures = (_node(host, cores) for host, cores in list(nodes.items())[:_NODES])
    yield element("div", *pictures, class_="pictures")
    if len(nodes) > _NODES:
        yield element("p", f"Not drawn: {counted(len(nodes) - _NODES, 'more node')}.")
    head = ("rank", "node", "CPUs", "threads", "MPI library", "transport", "exit code")
    rows = (
        (
            _text(rank.get("rank")),
            _text(rank.get("host")),
            _text(rank.get("cpus")),
            _text(rank.get("threads")),
            _library(rank),
            _transport(rank),
            _text(rank.get("exit_code")),
        )
        for rank in ranks[:_RANKS]
    )
    yield table("Ranks", head, rows)
    if len(ranks) > _RANKS:
        yield element("p", f"Not listed: {counted(len(ranks) - _RANKS, 'more rank')}.")


def _transport(rank: Mapping[str, Any]) -> str:
    """Return how a rank sends messages: libfabric's provider, or what NCCL reports."""
    communication = rank.get("communication")
    nccl = communication.get("nccl") if isinstance(communication, dict) else None
    network = nccl.get("network") if isinstance(nccl, dict) else None
    return _text(rank.get("provider") or (f"NCCL: {network}" if network else None))


def _node(host: str, cores: Mapping[int, Sequence[str]]) -> "ET.Element[str]":
    """Draw a node: a square per logical CPU, up to the highest that a rank uses, with the ranks that may run on it."""
    count = min(max(cores, default=-1) + 1, _CPUS)
    used = sorted({rank for ranks in cores.values() for rank in ranks}, key=lambda rank: (len(rank), rank))
    label = f"Node {host}: {counted(count, 'CPU')}, ranks {', '.join(used) or 'none'}"
    picture = _picture(label, max(min(count, _ROW), 1) * _CORE, -(-max(count, 1) // _ROW) * _CORE)
    for core in range(count):
        x, y = core % _ROW * _CORE, core // _ROW * _CORE
        ranks = cores.get(core, ())
        square = element("rect", x=x + 1, y=y + 1, width=_CORE - 3, height=_CORE - 3, rx=3, class_="edge")
        if ranks:
            square.set("fill", _COLOURS[used.index(ranks[0]) % len(_COLOURS)])
        else:
            square.set("class", "edge empty")
        text = "+" if len(ranks) > 1 else "".join(ranks)
        shown = element("text", text, x=x + _CORE // 2, y=y + 16, class_="on", text_anchor="middle")
        picture.extend([square, shown])
    return element("figure", element("figcaption", f"node {host}"), picture)


def _picture(label: str, width: int, height: int) -> "ET.Element[str]":
    return element("svg", role="img", aria_label=label, viewBox=f"0 0 {width} {height}", width=width, height=height)


def _timeline(steps: Sequence[TimedStep]) -> Iterator["ET.Element[str]"]:
    if not steps:
        yield element("p", "The times of its steps are not known: give the job's folder, not only its result.json.")
        return
    first, last = min(step.start for step in steps), max(step.end for step in steps)
    scale = 100 / max(last - first, 0.001)
    said = "; ".join(f"{step.name} {step.end - step.start:.1f} s" for step in steps)
    # No viewBox, and widths in percent: bars grow with the page, and texts keep their size.
    picture = element("svg", role="img", aria_label=said, width="100%", height=len(steps) * _BAR)
    for number, step in enumerate(steps):
        x, width, y = (step.start - first) * scale, (step.end - step.start) * scale, number * _BAR
        picture.append(element("text", f"{step.name}: {step.end - step.start:.1f} s", x=0, y=y + 15))
        picture.append(element("line", x1="0%", x2="100%", y1=y + 30, y2=y + 30, class_="grid"))
        bar = element("rect", x=f"{x:.2f}%", y=y + 22, width=f"{max(width, 0.3):.2f}%", height=16, rx=3, class_="bar")
        picture.append(bar)
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
    yield element("div", *(_curve(name, values) for name, values in found[:_CURVES]), class_="pictures")
    rows = (
        (name, str(len(values)), *(f"{value:.6g}" for value in (values[0], values[-1], min(values), max(values))))
        for name, values in found[:_CURVES]
    )
    yield table("Curves", ("name", "values", "first", "last", "least", "greatest"), rows)


def _curve(name: str, values: Sequence[float]) -> "ET.Element[str]":
    low, high = min(values), max(values)
    right, top, bottom = _WIDTH - 8, _MARGIN + 8, _HEIGHT - _MARGIN
    across, up = (right - _LEFT) / (len(values) - 1), (bottom - top) / ((high - low) or 1)
    every = -(-len(values) // _POINTS)
    points = " ".join(
        f"{_LEFT + number * across:.1f},{bottom - (values[number] - low) * up:.1f}"
        for number in [*range(0, len(values) - 1, every), len(values) - 1]
    )
    label = f"{name}: from {values[0]:.6g} to {values[-1]:.6g} in {counted(len(values), 'value')}"
    drawn = f"1 in {every} is drawn" if every > 1 else ""
    picture = _picture(f"{label}, of which {drawn}" if drawn else label, _WIDTH, _HEIGHT)
    picture.append(element("text", name, x=0, y=14, class_="name"))
    for y, value in ((top, high), (bottom, low)):
        picture.append(element("line", x1=_LEFT, x2=right, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid"))
        picture.append(element("text", f"{value:.3g}", x=_LEFT - 6, y=y + 4, class_="faint", text_anchor="end"))
    picture.append(element("text", "1", x=_LEFT, y=_HEIGHT - 6, class_="faint"))
    if drawn:
        middle = (_LEFT + right) // 2
        picture.append(element("text", drawn, x=middle, y=_HEIGHT - 6, class_="faint", text_anchor="middle"))
    picture.append(element("text", str(len(values)), x=right, y=_HEIGHT - 6, class_="faint", text_anchor="end"))
    picture.append(element("polyline", points=points, class_="curve"))
    return picture


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
