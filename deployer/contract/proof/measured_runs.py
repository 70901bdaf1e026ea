"""The measured runs in a report: figures, efficiency, and container compared with native. Pure.

A payload describes its figures in the file that DEPLOYER_RESULT specifies; they become part of result.json::

    "measured": {"workload": "ResNet50", "settings": "batch 256 per rank", "unit": "images/s", "values": [74.1, 74.9]}

``values`` are for the whole job: an image rate is the sum over its ranks. Without that section, the older form of
results is read: ``epochs`` with ``seconds``, and ``iterations`` of one rank.
"""

import csv
import math
import statistics
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import UsageError
from deployer.contract.base.grouping import grouped
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.base.text import printable
from deployer.contract.site.plan import NATIVE

SCHEMA = "report"

#: Quantiles of Student's t for 95 %, for 1 to 9 degrees of freedom. For more, the coefficients of an expansion that is
#: exact to four decimals (Abramowitz and Stegun, 26.7.5).
_QUANTILES = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157)
_SERIES = (1.959964, 2.372271, 2.822499, 2.55585, 1.589534)

#: The units of figures.
SECONDS, IMAGES = "s/epoch", "images/s"
UNITS = {SECONDS: "seconds per epoch", IMAGES: "images per second, all ranks together"}

#: The most numbers that one job may report, one per epoch or iteration.
_MAX_VALUES = 10000
#: The smallest and the largest figure.
_LEAST, _MOST = 1e-9, 1e15
_MOST_PROCESSES = 10**7
_HINT = "a program writes figures to $DEPLOYER_RESULT, as JSON under `measured`"


class Run(NamedTuple):
    """A measured job.

    Attributes:
        job: its name.
        workload: what was computed; runs of one workload and unit make a table.
        settings: what else must be equal for runs to be comparable, such as the batch size; may be empty.
        unit: SECONDS or IMAGES.
        site: where it ran.
        runtime: its runtime; NATIVE without a container.
        nodes: number of nodes.
        ranks: number of ranks, or of training processes if torchrun starts several per rank.
        threads: threads per rank; None: unknown.
        values: one figure per epoch or iteration.
    """

    job: str
    workload: str
    settings: str
    unit: str
    site: str
    runtime: str
    nodes: int
    ranks: int
    threads: Optional[int]
    values: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean of its figures."""
        return mean(self.values)

    @property
    def speed(self) -> float:
        """The speed; twice the value is twice as fast."""
        return 1 / self.mean if self.unit == SECONDS else self.mean

    @property
    def native(self) -> bool:
        """Whether it ran without a container."""
        return self.runtime == NATIVE

    @property
    def per_node(self) -> float:
        """The ranks per node."""
        return self.ranks / self.nodes


class Row(NamedTuple):
    """A run in its table.

    Attributes:
        run: the run.
        efficiency: its speed per rank, divided by that of the smallest run of the same kind.
        of_native: the speed of a container divided by the speed of the same job without one; None: no such job.
        base: the smallest runs of the same kind.
    """

    run: Run
    efficiency: float
    of_native: Optional[float]
    base: Sequence[Run]


# ------------------------------------------------------------------------------------------------ reading


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> Optional[float]:
    """Return half the width of the mean's 95 % interval, t s / sqrt(n); None for a single value."""
    if len(values) < 2:
        return None
    return quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def quantile(free: int) -> float:
    """Return t such that 95 % of the distribution with ``free`` degrees of freedom lies between -t and t."""
    if free <= len(_QUANTILES):
        return _QUANTILES[free - 1]
    return sum(coefficient / float(free) ** power for power, coefficient in enumerate(_SERIES))


def of_result(result: Fields) -> Run:
    """Return the run of a job. Raises UsageError if the job did not end well or has no figures."""
    exit_code = result.record.get("exit_code")
    if exit_code != 0:
        why = "has not ended" if exit_code is None else f"failed with exit code {exit_code}"
        raise UsageError(f"it {why}", f"run it again; its findings: {result.what}")
    ranks = result.items("ranks")
    if not ranks:
        raise UsageError(f"{result.what} has no evidence of any rank", "run it again")
    started = (result.maybe_number("world_size") or len(ranks)) * (result.maybe_number("workers") or 1)
    if not isinstance(result.record.get("payload"), dict):
        raise UsageError(f"{result.what} has no figures: the payload wrote no result of its own", _HINT)
    payload = result.child("payload")
    measured = payload.maybe_child("measured")
    processes = measured.maybe_number("processes") if measured else None
    if measured and processes is not None and not 1 <= processes <= _MOST_PROCESSES:
        raise UsageError("%s: field 'processes': not a number of processes: %d" % (measured.what, processes), _HINT)
    count = processes or started  # the payload may start some itself
    workload, settings, unit, values = _figures(result.text("bundle"), payload, measured, count)
    threads = {rank.maybe_number("threads") for rank in ranks}
    return Run(
        job=result.text("job"),
        workload=workload,
        settings=settings,
        unit=unit,
        site=result.text("site"),
        runtime=result.text("runtime"),
        nodes=len({rank.text("host") for rank in ranks}),
        ranks=count,
        threads=threads.pop() if len(threads) == 1 else None,
        values=values,
    )


def _figures(bundle: str, payload: Fields, measured: Optional[Fields], ranks: int) -> Tuple[str, str, str, List[float]]:
    """Return workload, settings, unit and values of the payload's own result."""
    if measured is not None:
        unit = measured.text("unit")
        if unit not in UNITS:
            raise UsageError(f"{measured.what}: unknown unit: {unit!r}", "write one of: " + ", ".join(UNITS))
        settings = measured.maybe_text("settings") or ""
        return measured.text("workload"), settings, unit, _numbers(measured, "values")
    if isinstance(payload.record.get("epochs"), list):
        seconds = [_positive(epoch.what, "seconds", epoch.record.get("seconds")) for epoch in payload.items("epochs")]
        # The first epoch includes the time in which the framework builds its graph.
        return bundle, "", SECONDS, _some(seconds[1:] or seconds, payload, "epochs")
    if isinstance(payload.record.get("iterations"), list):
        rates = [ranks * rate for rate in _numbers(payload, "iterations")]
        batch = payload.maybe_number("batch_size") or 0
        settings = "batch %d per rank" % batch if "batch_size" in payload.record else ""
        return payload.maybe_text("network") or bundle, settings, IMAGES, rates
    raise UsageError(f"{payload.what} has no figures: neither measured, epochs nor iterations", _HINT)


def _numbers(fields: Fields, name: str) -> List[float]:
    values = fields.record.get(name)
    if not isinstance(values, list):
        raise UsageError(f"{fields.what}: field {name!r} is not a list of numbers", _HINT)
    return _some([_positive(fields.what, name, value) for value in values[: _MAX_VALUES + 1]], fields, name)


def _some(values: List[float], fields: Fields, name: str) -> List[float]:
    if not 0 < len(values) <= _MAX_VALUES:
        count = "more than %d" % _MAX_VALUES if values else "no"
        raise UsageError(f"{fields.what}: field {name!r} has {count} numbers", _HINT)
    return values


def _positive(what: str, name: str, value: Any) -> float:
    """Return a positive number for calculations; JSON may also have NaN, infinity, and integers that are too large."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and _LEAST <= value <= _MOST:
        return float(value)
    shown = printable(repr(value)[:40])
    raise UsageError(f"{what}: field {name!r}: not a number from {_LEAST:g} to {_MOST:g}: {shown}", _HINT)


def of_record(record: Fields) -> Tuple[List[Run], List[Tuple[str, str]]]:
    """Return the runs from a report that ``--json`` printed, and the omitted jobs, each with the reason."""
    runs = []
    for item in record.items("runs"):
        unit = item.text("unit")
        if unit not in UNITS or not all(1 <= item.number(name) <= _MOST for name in ("nodes", "ranks")):
            raise UsageError(f"{item.what} is not a run: its unit is {unit!r}", "write it with report --json")
        runs.append(records.read(Run, item, values=_numbers(item, "values")))
    return runs, [(item.text("job"), item.text("reason")) for item in record.items("left_out")]


# ------------------------------------------------------------------------------------------------ computing


def rows(runs: Sequence[Run]) -> List[Row]:
    """Return the rows in the order of the tables."""

    def kind(run: Run) -> Tuple[Any, ...]:
        return (*_same(run), run.native, run.per_node, run.threads)

    kinds = grouped((kind(run), run) for run in runs)
    natives = grouped((_place(run), run) for run in runs if run.native)
    in_order = []
    for run in sorted(runs, key=_order):
        smallest = min(other.ranks for other in kinds[kind(run)])
        base = [other for other in kinds[kind(run)] if other.ranks == smallest]
        efficiency = run.speed / run.ranks / mean([other.speed / other.ranks for other in base])
        without = [] if run.native else natives.get(_place(run), [])
        of_native = run.speed / mean([other.speed for other in without]) if without else None
        in_order.append(Row(run, efficiency, of_native, base))
    return in_order


def _same(run: Run) -> Tuple[Any, ...]:
    return run.workload, run.unit, run.site, run.settings


def _place(run: Run) -> Tuple[Any, ...]:
    return (*_same(run), run.nodes, run.ranks, run.threads)


def _order(run: Run) -> Tuple[Any, ...]:
    """Tables by workload, layouts apart, and the fewest nodes first."""
    return (*_same(run), (run.per_node, run.threads or 0), run.nodes, run.job)


# ------------------------------------------------------------------------------------------------ writing

_HEAD = ("NODES", "RANKS", "THREADS", "RUNTIME", "%s", "+-", "EFFICIENCY", "/NATIVE", "JOB")
#: The right-aligned columns.
_RIGHT = frozenset((*_HEAD[:3], *_HEAD[5:8], *UNITS))
_COLUMNS = (
    *("job", "workload", "settings", "unit", "site", "runtime", "nodes", "ranks", "threads", "samples", "mean"),
    *("interval_95", "efficiency", "container_to_native"),
)

#: The characters with which a formula begins in a spreadsheet.
_FORMULA = ("=", "+", "-", "@")

_Table = Callable[..., List[str]]


def lines(found: Sequence[Row], table: _Table) -> List[str]:
    """Return the tables for people; ``table`` lays out head, rows and right-aligned columns."""
    shown: List[str] = []
    for (workload, unit), rows in grouped(((row.run.workload, row.run.unit), row) for row in found).items():
        head = tuple(unit if name == "%s" else name for name in _HEAD)
        cells = [[printable(cell) for cell in _cells(row)] for row in rows]
        title = f"{printable(workload)}: {UNITS[unit]}, mean and half of its 95 % interval"
        shown += [*([""] if shown else []), title, *table(head, cells, _RIGHT)]
    return shown


def _cells(row: Row) -> List[str]:
    run = row.run
    half = half_width(run.values)
    return [
        "%d" % run.nodes,
        "%d" % run.ranks,
        "-" if run.threads is None else "%d" % run.threads,
        run.runtime,
        _figure(run.mean, run.mean),
        "-" if half is None else _figure(half, run.mean),
        "%.1f %%" % (100 * row.efficiency),
        "-" if row.of_native is None else f"{row.of_native:.3f}",
        run.job + (f" ({run.settings})" if run.settings else ""),
    ]


def _figure(value: float, mean: float) -> str:
    """Return a number with as many decimals as give ``mean`` about four digits."""
    return "%.*f" % (max(0, min(6, 3 - math.floor(math.log10(mean)))), value)


def csv_text(found: Sequence[Row]) -> str:
    """Return all rows as one CSV table."""
    text = _Pieces()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in found:
        known = {**row.run._asdict(), **_computed(row)}
        writer.writerow([_cell(known[name]) for name in _COLUMNS])
    return "".join(text)


class _Pieces(List[str]):
    """A list that a CSV writer can write to."""

    write = list.append


def _cell(value: Any) -> str:
    """Return a cell. Text that a spreadsheet would read as a formula gets a leading apostrophe, which stays hidden."""
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    text = printable(str(value))
    return "'" + text if text.startswith(_FORMULA) else text


def record(found: Sequence[Row], left_out: Sequence[Tuple[str, str]]) -> Record:
    """Return the report for programs; ``of_record`` reads it."""
    runs = [{**row.run._asdict(), **_computed(row)} for row in found]
    without = [{"job": job, "reason": reason} for job, reason in left_out]
    return json_records.stamped(SCHEMA, {"runs": runs, "left_out": without})


def _computed(row: Row) -> Dict[str, Any]:
    values = row.run.values
    return {
        "samples": len(values),
        "mean": row.run.mean,
        "interval_95": half_width(values),
        "efficiency": row.efficiency,
        "container_to_native": row.of_native,
    }
