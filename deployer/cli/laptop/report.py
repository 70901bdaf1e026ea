"""deployer report: the measured figures of several jobs as one table, or as a plot."""

import argparse
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.laptop.remote import add_site
from deployer.cli.site import common
from deployer.cli.site import report as shared
from deployer.connected.ground import plot
from deployer.contract import json_records, report
from deployer.contract.errors import TransferError
from deployer.contract.json_records import Fields
from deployer.site.jobs import report as reports
from deployer.site.jobs.report import Collected
from deployer.system import files


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "report", run)
    what = "the path of a result.json, of a job's folder, or of an earlier report --json; with --site a job there"
    shared.add_options(command, what)
    command.add_argument("--plot", metavar="FILE", type=Path, help="draw it as well: FILE.png or FILE.svg")
    add_site(command.add_argument_group("the site"), here="files of this machine")


def run(args: argparse.Namespace) -> int:
    """Print the report, and draw it."""
    if args.plot:
        plot.check(args.plot)
    found = _there(args) if args.site else _here(args.job)
    rows = shared.show(args, found.runs, found.left_out)
    if args.plot:
        plot.draw(args.plot, rows)
    return 0


def _there(args: argparse.Namespace) -> Collected:
    """Return the figures of jobs of a site."""
    settings.fill(args)
    from deployer.connected.transfer.published import profile_of
    from deployer.connected.transfer.remote import Remote

    with Remote(profile_of(args.site, args.ssh_config), args.ssh_config) as remote:
        remote.prepare()
        answer = Fields(remote.site(["report", *args.job]), f"the answer of {remote.host}", TransferError, own=True)
    return Collected(*report.of_record(answer))


def _here(paths: list[str]) -> Collected:
    """Return the figures of files on this machine; of an earlier report, only your own jobs."""
    found = Collected([], [])
    for path in dict.fromkeys(paths):
        if not files.is_file(path) or not _is_report(path):
            more = reports.collect([path], None)
        else:
            data = files.read_bytes(path)
            more = Collected(*report.of_record(json_records.loads(data, report.SCHEMA, path, own=True)))
        found.runs.extend(run for run in more.runs if run.published is None)
        found.left_out.extend(more.left_out)
    return found


def _is_report(path: str) -> bool:
    """Return whether a file says that it is a report; its first field is enough, as ours are written."""
    with files.open_regular(path) as stream:
        return f'"deployer.{report.SCHEMA}"'.encode() in stream.read(100)
