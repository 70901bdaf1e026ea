"""report: print the measurements of several jobs in one table."""

import argparse
from typing import Any, Sequence, Tuple

from deployer.cli.site import common
from deployer.contract.base.errors import JobFailed
from deployer.contract.proof import measured_runs
from deployer.contract.proof.measured_runs import Row, Run
from deployer.site.storage.store import locate
from deployer.system import terminal


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_store_command(subparsers, "report", run)
    add_options(command, "a job's name, the scheduler's id, or the path of a job's folder or result.json")


def add_options(command: argparse.ArgumentParser, what: str) -> None:
    """Add the report's options for both command lines; ``what`` describes a JOB."""
    common.add(command, "job", "JOB", what, nargs="+")
    common.flag(command, "--csv", "print one CSV table")
    text = "compute the efficiency against the smallest run of any layout (default: of the same ranks per node and "
    common.flag(command, "--all-layouts", text + "threads per rank)")


def run(args: argparse.Namespace) -> None:
    """Print the report on jobs at this site."""
    from deployer.site.jobs import report as reports

    collected = reports.collect(args.job, lambda: locate(args.root))
    show(args, collected.runs, collected.left_out)


def show(
    args: argparse.Namespace, runs: Sequence[Run], left_out: Sequence[Tuple[str, str]], beside: Sequence[Run] = ()
) -> Sequence[Row]:
    """Print the report in the requested form, and return its rows. Raises JobFailed if there are no runs."""
    without = ["{}: {}".format(*item) for item in left_out]
    if not runs:
        hint = "a program writes figures to $DEPLOYER_RESULT, as JSON under `measured`"
        raise JobFailed("none of the jobs has figures to report", hint, without)
    common.warn("left out: " + line for line in without)
    rows = measured_runs.rows([*runs, *beside], args.all_layouts)
    if args.json:
        terminal.show_json(measured_runs.record(rows, left_out))
    elif args.csv:
        terminal.show_text(measured_runs.csv_text(rows))
    else:
        terminal.show(*measured_runs.lines(rows, common.table))
    return rows
