"""doctor: find faults, from the kernel to training on two nodes."""

import argparse
import os
import sys
from typing import Any

from deployer.cli.site import common
from deployer.contract.base.dialogue import CALLER
from deployer.contract.base.errors import UsageError
from deployer.site.doctor import ladder, problem_report
from deployer.site.doctor.climb import Climb, Ground, Step
from deployer.site.storage import store
from deployer.system import files, terminal

#: Seconds for each of its jobs, including the waiting time in the queue.
_PATIENCE = 600
#: The file name that means standard output for a report.
SCREEN = "-"
#: Columns before the observation of a step: its state and name.
_INDENT = 20


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_store_command(subparsers, "doctor", _doctor)
    common.add(command, "image", store.REFERENCE, "an installed image (default: the one installed last)", nargs="?")
    common.add(command, "--plan", "SITE", "use this plan, if the bundle has several")
    text = "wait this long for each of its two jobs"
    common.add(command, "--patience", "SECONDS", text, type=seconds, default=_PATIENCE)
    common.flag(command, "--dry-run", "submit nothing")
    text = "also write a report without names to this file, for an issue; -: print it and nothing else"
    common.add(command, "--report", "FILE", text)


def seconds(text: str) -> float:
    """Parse a finite number of seconds."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return number


def _doctor(args: argparse.Namespace) -> None:
    def tell(step: Step) -> None:
        if not args.json and args.report != SCREEN:
            terminal.show(*common.wrapped(step.line(), "", " " * _INDENT))
            sys.stdout.flush()

    ground = Ground(store.locate(args.root), args.image, args.plan, args.patience, not args.dry_run)
    last = problem_report.last_job(ground) if args.report else ""
    path = new_file(args)
    if path:
        files.write_text(path, problem_report.text(ground, Climb([], None), last))  # so that it remains after Ctrl-C
    examined = ladder.examine(ground, tell)
    if path:
        files.write_text(path, problem_report.text(ground, examined, last))
        if CALLER not in os.environ:  # otherwise the laptop fetches it
            announce(path)
    elif args.report:
        terminal.show_text(problem_report.text(ground, examined, last))
    common.as_json(args, examined.record(), indent=2)
    if examined.error:
        examined.error.message = f"{examined.steps[-1].name}: {examined.error.message}"
        raise examined.error


def new_file(args: argparse.Namespace) -> str:
    """Return the report's file; empty without a report or if it is printed. Raises UsageError if the file exists."""
    path = "" if args.report in (None, SCREEN) else str(args.report)
    if path and files.lexists(path):
        raise UsageError(f"{path} exists", "name a new file, or remove it")
    return path


def announce(path: str) -> None:
    """Print that the report was written."""
    terminal.tell(f"wrote {path}; nothing was sent: read it before you attach it to an issue")
