"""The speed and cost of jobs, from their records: samples per second, parallel efficiency, node-hours.

A figure that is missing in the records is never estimated; the page reports what is missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.base.text import counted
from deployer.contract.proof import in_words, measured_runs
from deployer.contract.proof.measured_runs import IMAGES, Row, Run

#: The field in a payload's own result with the number of samples per epoch, over all ranks.
_SAMPLES = "samples_per_epoch"
_MOST = 1e15

_Facts = list[tuple[str, str]]


def tables(jobs: Sequence[Mapping[str, Any]]) -> list[_Facts]:
    """Return the names and texts of each job's figures, compared with the other jobs."""
    runs = list(map(_run, jobs))
    rows = {id(row.run): row for row in measured_runs.rows([run for run in runs if isinstance(run, Run)])}
    figures = []
    for job, run in zip(jobs, runs, strict=True):
        if isinstance(run, Run):
            facts = [*_speed(job, run), ("parallel efficiency", _efficiency(rows[id(run)]))]
        else:
            facts = [("speed", f"not known: {run}")]
        figures.append([*facts, ("cost", _cost(job))])
    return figures


def number(value: object) -> float | None:
    """Return a number from an untrusted record; None if its size is not plausible."""
    return float(value) if isinstance(value, int | float) and abs(value) < _MOST else None


def _run(job: Mapping[str, Any]) -> Run | str:
    """Return the measured run of a job, or the reason why there is none."""
    try:
        return measured_runs.of_result(Fields(dict(job), "the record", own=True))
    except UsageError as error:
        return error.message


def _speed(job: Mapping[str, Any], run: Run) -> _Facts:
    mean = f"mean of {counted(len(run.values), 'value')}"
    if run.unit == IMAGES:
        return [("images per second", f"{run.mean:.4g}, all ranks together ({mean})")]
    facts = [("seconds per epoch", f"{run.mean:.4g} ({mean})")]
    payload = job.get("payload")
    samples = number(payload.get(_SAMPLES)) if isinstance(payload, dict) else None
    if samples is None or samples <= 0:
        return [*facts, ("samples per second", f"not known: the program wrote no {_SAMPLES}")]
    return [*facts, ("samples per second", f"{samples / run.mean:.4g}, all ranks together: {samples:.0f} per epoch")]


def _efficiency(row: Row) -> str:
    run, base = row.run, row.base[0]
    if base.nodes == 1 and base.ranks < run.ranks:
        size = f"{counted(base.nodes, 'node')}, {counted(base.ranks, 'rank')}"
        return f"{100 * row.efficiency:.1f} %, compared with {base.job} ({size})"
    if run.nodes == 1:
        return "none: this job has one node, and others are compared with it"
    return "not known: no job of one node with the same settings, to compare with, is on this page"


def _cost(job: Mapping[str, Any]) -> str:
    nodes = number(job.get("nodes")) or len({str(rank.get("host")) for rank in in_words.ranks(job)})
    seconds = number(job.get("seconds"))
    if not nodes or seconds is None:
        return "not known: the record has no number of nodes, or no time"
    return f"{nodes * seconds / 3600:.3g} node-hours: {counted(int(nodes), 'node')} for {seconds:.0f} s"
