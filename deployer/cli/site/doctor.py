"""doctor: find faults, from the kernel to training on two nodes."""

import argparse
import sys
from typing import Any

from deployer.cli.site import common
from deployer.site.doctor import ladder
from deployer.site.doctor.climb import Ground, Step
from deployer.site.storage import store
from deployer.system import terminal

#: Seconds for each of its jobs, including the waiting time in the queue.
_PATIENCE = 600
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


def seconds(text: str) -> float:
    """Parse a finite number of seconds."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return number


def _doctor(args: argparse.Namespace) -> None:
    def tell(step: Step) -> None:
        if not args.json:
            terminal.show(*common.wrapped(step.line(), "", " " * _INDENT))
            sys.stdout.flush()

    ground = Ground(store.locate(args.root), args.image, args.plan, args.patience, not args.dry_run)
    examined = ladder.examine(ground, tell)
    common.as_json(args, examined.record(), indent=2)
    if examined.error:
        examined.error.message = f"{examined.steps[-1].name}: {examined.error.message}"
        raise examined.error
