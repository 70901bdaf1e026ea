"""doctor: find what is broken, from the kernel to training on two nodes."""

import argparse
import sys
from typing import Any

from deployer.cli.site import common
from deployer.site.doctor import ladder
from deployer.site.doctor.climb import Ground, Step
from deployer.site.storage import store
from deployer.system import terminal

#: Seconds for each of its jobs, waiting time in the queue included.
_PATIENCE = 600
#: Columns before the observation of a step: its state and name.
_INDENT = 20


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_store_command(subparsers, "doctor", _doctor)
    text = "an installed image (default: the one installed last)"
    command.add_argument("image", metavar=store.REFERENCE, nargs="?", help=text)
    command.add_argument("--plan", metavar="SITE", help="use this plan, if the bundle has several")
    text = "wait this long for each of its two jobs"
    command.add_argument("--patience", type=seconds, default=_PATIENCE, metavar="SECONDS", help=text)
    command.add_argument("--dry-run", action="store_true", help="submit nothing")


def seconds(text: str) -> float:
    """Return a finite number of seconds."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return number


def _doctor(args: argparse.Namespace) -> int:
    def tell(step: Step) -> None:
        if not args.json:
            terminal.show(*common.wrapped(step.line(), "", " " * _INDENT))
            sys.stdout.flush()

    ground = Ground(store.locate(args.root), args.image, args.plan, args.patience, not args.dry_run)
    examined = ladder.examine(ground, tell)
    if args.json:
        terminal.show_json(examined.record(), indent=2)
    if examined.error:
        examined.error.message = "%s: %s" % (examined.steps[-1].name, examined.error.message)
        raise examined.error
    return 0
