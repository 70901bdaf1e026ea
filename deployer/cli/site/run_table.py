"""report: print the measurements of several jobs in one table."""

import argparse
import csv
import sys
from typing import Any, Optional, Sequence, Tuple

from deployer.cli.site import common
from deployer.contract.base.errors import JobFailed, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import printable
from deployer.contract.bundle.sweep import shown
from deployer.contract.proof import measured_runs
from deployer.contract.proof.measured_runs import Run
from deployer.site.storage.store import locate
from deployer.system import terminal

#: The columns of a table of tasks before their parameters.
_OF_TASKS = ("task", "state", "exit_code", "seconds")


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_store_command(subparsers, "report", run)
    add_options(command, "a job's name, the scheduler's id, or the path of a job's folder or result.json")


def add_options(command: argparse.ArgumentParser, what: str) -> None:
    """Add the report's options for both command lines; ``what`` describes a JOB."""
    common.add(command, "job", "JOB", what, nargs="+")
    common.flag(command, "--csv", "print one CSV table")


def run(args: argparse.Namespace) -> None:
    """Print the report on jobs at this site."""
    from deployer.site.jobs import report as reports

    tasks = reports.of_group(args.job, lambda: locate(args.root))
    if tasks:
        show_tasks(args, tasks)
        return
    collected = reports.collect(args.job, lambda: locate(args.root))
    show(args, collected.runs, collected.left_out)


def show_tasks(args: argparse.Namespace, tasks: Optional[Sequence[Record]]) -> None:
    """Print the tasks of a group, with their parameters and figures. Raises UsageError if there are none."""
    if not tasks:
        raise UsageError("this is not a group of tasks", "see: status")
    pairs = ((kind, key) for kind in ("parameters", "figures") for task in tasks for key in task.get(kind) or ())
    keys = list(dict.fromkeys(pairs))
    head = [*_OF_TASKS, *(printable(key) for _, key in keys)]
    cells = (
        [task.get(name) for name in _OF_TASKS] + [(task.get(kind) or {}).get(key) for kind, key in keys]
        for task in tasks
    )
    rows = [[printable("-" if cell is None else shown(cell)) for cell in row] for row in cells]
    if args.json:
        terminal.show_json({"tasks": tasks})
    elif getattr(args, "csv", False):
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *rows])
    else:
        terminal.show(*common.table(head, rows, ("task", "exit_code", "seconds")))


def show(args: argparse.Namespace, runs: Sequence[Run], left_out: Sequence[Tuple[str, str]]) -> None:
    """Print the report in the requested form. Raises JobFailed if there are no runs."""
    without = ["{}: {}".format(*item) for item in left_out]
    if not runs:
        hint = "a program writes figures to $DEPLOYER_RESULT, as JSON under `measured`"
        raise JobFailed("none of the jobs has figures to report", hint, without)
    common.warn("left out: " + line for line in without)
    rows = measured_runs.rows(runs)
    if args.json:
        terminal.show_json(measured_runs.record(rows, left_out))
    elif args.csv:
        terminal.show_text(measured_runs.csv_text(rows))
    else:
        terminal.show(*measured_runs.lines(rows, common.table))
