"""deployer report: the measured figures of several jobs as one table, or as a page."""

import argparse
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.laptop.remote import add_site
from deployer.cli.site import common, run_table
from deployer.contract.base.errors import TransferError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.proof import measured_runs
from deployer.site.jobs import report as reports
from deployer.site.jobs import result as results
from deployer.site.jobs.report import Collected
from deployer.system import files


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "report", run)
    what = "the path of a result.json or of a job's folder; with --site a job there"
    run_table.add_options(command, what)
    text = "write one page of all the jobs instead: ranks on nodes and CPUs, MPI, steps in time, curves; "
    common.add(command, "--html", "FILE", text + "a JOB is a path", type=Path)
    add_site(command.add_argument_group("the site"), here="files of this machine")


def run(args: argparse.Namespace) -> None:
    """Print the report, or write its page."""
    if args.html:
        _page(args)
        return
    answer = _there(args) if args.site else None
    tasks = answer.record.get("tasks") if answer else reports.of_group(args.job, None)
    if tasks:
        run_table.show_tasks(args, tasks)
        return
    collected = Collected(*measured_runs.of_record(answer)) if answer else reports.collect(args.job, None)
    run_table.show(args, collected.runs, collected.left_out)


def _page(args: argparse.Namespace) -> None:
    """Write the HTML page of jobs."""
    from deployer.connected.ground.reports import job_page

    if args.site or args.csv:
        hint = "fetch the job's folder first: deployer result --site SITE JOB -o DIR"
        raise UsageError("--html reads jobs by path, and prints no table", hint)
    records = []
    for path in dict.fromkeys(args.job):
        folder = files.is_folder(path)
        if not folder and not files.is_file(path):
            raise UsageError(f"{path} does not exist", "give a job's folder, or its result.json")
        records.append((results.read(path) if folder else results.read_file(path)).record)
    files.write_text(str(args.html), job_page.make(records))
    common.show_result(args, {"page": str(args.html)}, f"wrote {args.html}")


def _there(args: argparse.Namespace) -> Fields:
    """Return the site's report on its jobs."""
    settings.fill(args)
    from deployer.connected.transfer.published import profile_of
    from deployer.connected.transfer.remote import Remote

    with Remote(profile_of(args.site, args.ssh_config), args.ssh_config) as remote:
        remote.prepare()
        answer = remote.site(["report", *args.job])
    return Fields(answer.record, answer.what, TransferError, own=True)
