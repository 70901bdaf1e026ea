"""deployer rehearse: run a job on this machine as the site would, without a network."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.site import common
from deployer.connected.rehearse.request import RehearsalRequest
from deployer.connected.rehearse.ways import WAYS, rehearsed
from deployer.contract.errors import UsageError
from deployer.contract.job import check_time, seconds
from deployer.contract.rehearsal import CODES, Rehearsal
from deployer.system import files, terminal

_SHORT = re.compile(r"([0-9]{1,6})([smh])\Z")
_TIME = "2m"
_UNITS = {"s": 1, "m": 60, "h": 3600}


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "rehearse", run)
    command.add_argument("bundle", metavar="B.tar", help="a bundle that `pack` wrote")
    command.add_argument("job", metavar="JOB", nargs="?", help="a job of the bundle (default: its first)")
    command.add_argument(
        "--site", help="use this site's memory, folders and variables: a profile's name or path, or ssh:HOST"
    )
    command.add_argument("--partition", help="with --site: of this partition (default: the first)")
    command.add_argument("--ranks", type=int, metavar="N", help="number of ranks (default: 2, if the job has as many)")
    text = "end the job after this time, as the site does: 90s, 2m, 1h or [D-]HH:MM:SS (default: %(default)s)"
    command.add_argument("--time", metavar="TIME", default=_TIME, help=text)
    text = "bind this folder or file into the container, as run does; may be repeated"
    command.add_argument("--bind", action="append", default=[], metavar="SRC[:DST]", help=text)
    text = "install this bundle too, whose data the job needs; may be repeated"
    command.add_argument("--data", action="append", default=[], metavar="BUNDLE.tar", help=text)
    text = "treat this rule as a warning; the record names it"
    command.add_argument("--accept", action="append", default=[], metavar="CODE", help=text)
    text = "where the simulated site is made (default: namespaces if this machine can make them, else docker)"
    command.add_argument("--engine", choices=WAYS, help=text)
    text = "store the outcome in the bundle: inspect shows it, and policies can require it; signatures become invalid"
    command.add_argument("--record", action="store_true", help=text)
    text = "write the files of the image that the job opened to this file, one path per line"
    command.add_argument("--used", metavar="FILE", help=text)
    command.epilog = (
        "Words after -- are added to the end of the job's command. "
        "Exit: 0 RUN or WARN, 3 REFUSE, as for check. `deployer explain` lists the rules."
    )
    command.set_defaults(after_dashes="arguments of the job's command")


def duration(text: str) -> int:
    """Return the seconds of a time limit. Raises UsageError."""
    short = _SHORT.match(text)
    found = int(short.group(1)) * _UNITS[short.group(2)] if short else seconds(check_time(text))
    if not found:
        raise UsageError(f"--time {text}: a job needs some time", "for instance 2m")
    return found


def run(args: argparse.Namespace) -> int:
    """Rehearse the job and print what it reached for."""
    unknown = sorted(set(args.accept) - set(CODES))
    if unknown:
        raise UsageError(f"no rule of a rehearsal has the code {', '.join(unknown)}", f"codes: {', '.join(CODES)}")
    request = RehearsalRequest(
        args.bundle,
        args.job,
        _site(args),
        args.ranks,
        duration(args.time),
        args.bind,
        args.rest,
        args.data,
    )
    found = rehearsed(request, args.accept, args.engine, _silent if args.json else terminal.tell)
    outcome = found.outcome
    if args.json:
        print(json.dumps({**outcome.record(), "folder": str(found.folder), "engine": found.way}))
    else:
        show(outcome)
        print(f"simulated by: {found.way}")
        print(f"log: {found.folder}/output.log")
    sys.stdout.flush()  # the report comes before an error of what follows
    if args.used:
        files.write_text(args.used, "".join(f"{path}\n" for path in found.opened_files()))
    if args.record:
        record(args.bundle, outcome)
    if not outcome.exit_code:
        site = settings.site_for_hint(args.site)
        common.suggest(args, *(("push", args.bundle, site) if args.site else ("check", args.bundle, "--site", site)))
    return outcome.exit_code


def show(outcome: Rehearsal) -> None:
    """Print the report of a rehearsal."""
    for line in outcome.lines():
        terminal.show(line)
    if outcome.findings and not terminal.is_quiet():
        terminal.show(common.more(list(dict.fromkeys(item.finding.code for item in outcome.findings))))


def record(bundle: str, outcome: Rehearsal) -> None:
    """Store an outcome in a bundle."""
    from deployer.connected.bundle import rehearsals

    if rehearsals.record(Path(bundle), outcome):
        terminal.warn("the bundle's signatures are void: sign it again (deployer sign)")


def _site(args: argparse.Namespace) -> Any:
    if not args.site:
        return None
    from deployer.connected.rehearse.site_plan import plan_of
    from deployer.connected.transfer.published import profile_of

    return plan_of(args.bundle, profile_of(args.site), args.partition)


def _silent(line: str) -> None:
    del line
