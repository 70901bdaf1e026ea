"""deployer capture HOST: make a site's profile with one command."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.site import common
from deployer.cli.site.capture import PartitionMeter, show_jobs
from deployer.connected.transfer.capture_site import FOLDER, CapturedSite, SiteRequest, capture_site, dry_run, stem
from deployer.contract.base.errors import TransferError, UsageError
from deployer.contract.base.text import counted, printable
from deployer.system import terminal


def add_parsers(subparsers: Any) -> None:
    """Register ``capture``."""
    command = common.add_command(subparsers, "capture", _capture)
    common.add(command, "host", "HOST", "a login node, as you give it to ssh")
    text = "capture a node of each of these partitions (A,B,...; default: all)"
    common.add(command, "--partitions", "LIST", text, default="all")
    text = "write the profile to this file (default: site_profiles/HOST.yaml), and the capture beside it"
    common.add(command, "-o", "--output", "FILE.yaml", text, type=Path)
    common.add(command, "--workspace", "DIR", "the folder for images at the site, for the profile")
    text = "a folder at the site that all nodes see, for the capture itself (default: one in the home, removed later)"
    common.add(command, "--folder", "DIR", text, default=FOLDER)
    text = "the site's Python, 3.6 or newer: a name in its PATH, or a whole path (default: the first that works)"
    common.add(command, "--python", "PATH", text)
    common.add(command, "--ssh-config", "F", "use this ssh configuration instead of ~/.ssh/config", type=Path)
    common.add_capturing(command)
    common.flag(command, "--dry-run", "print the jobs, submit nothing and write nothing")


def _capture(args: argparse.Namespace) -> None:
    settings.fill(args, site=False)
    output = args.output or Path("site_profiles", f"{args.name or stem(args.host)}.yaml")
    if output.suffix != ".yaml":
        raise UsageError(f"a profile is a YAML file: {output} does not end in .yaml", "name it FILE.yaml")
    if args.python is not None and not re.fullmatch(r"/[^\x00-\x1f\x7f]+|[\w.+-]+", args.python):
        text = f"neither a name nor a whole path: --python {printable(args.python)}"
        raise UsageError(text, "give a name in the site's PATH, or a path that begins with /")
    given = {"mpi": args.mpi, "directive": args.directive, "hide": args.hide, "account": filter(None, [args.account])}
    options = [f"--{name}={value}" for name, values in given.items() for value in values]
    options += ["--redact"] if args.redact else []
    request = common.from_options(SiteRequest, args, output=output, options=options)
    if args.dry_run:
        show_jobs(args, dry_run(request))
        return
    meter = PartitionMeter()
    try:
        done = capture_site(request, meter)
    except TransferError as error:
        hint = f"{error.hint}; run the same command again to continue" if error.hint else ""
        raise TransferError(error.message, hint or "run the same command again to continue") from error
    except KeyboardInterrupt:
        if meter.shown:
            terminal.complain(["hint: the jobs stay in the queue, and the same command continues"])
        raise
    if not common.as_json(args, _record(request, done)):
        _show(request, done)
    if done.problem:
        raise done.problem
    _suggest(args, done, str(output))


def _suggest(args: argparse.Namespace, done: CapturedSite, profile: str) -> None:
    """Print the next command: before the first bundle, or after a change that requires new plans."""
    if done.decisions:
        common.suggest(args, "profile", "validate", profile)
    elif done.differences:
        common.suggest(args, "plan", "B.tar", "--site", profile, "-o", "B.plan")


def _record(request: SiteRequest, done: CapturedSite) -> dict[str, Any]:
    return {
        "profile": str(request.output), "captured": str(request.captured), "facts": str(request.facts),
        "name": done.name, "seconds": round(done.seconds, 3),
        "partitions": [partition._asdict() for partition in done.partitions],
        "decisions": [{"key": point.key, "value": point.value, "why": point.why} for point in done.decisions],
        "missing": done.missing, "notes": done.notes,
        "differences": [difference._asdict() for difference in done.differences],
    }  # fmt: skip


def _show(request: SiteRequest, done: CapturedSite) -> None:
    captured = sum(partition.state == "captured" for partition in done.partitions)
    partitions = counted(len(done.partitions), "partition")
    terminal.show(f"captured the login node and {captured} of {partitions} in {done.seconds:.0f} s")
    terminal.show(f"facts: {request.captured}, {request.facts.name}")
    for note in done.notes:
        terminal.tell(*common.wrapped(f"note: {note}", "", "  "))
    for difference in done.differences:
        terminal.show(str(difference), f"         {difference.severity}: {difference.meaning}")
    if done.decisions:
        terminal.show(f"{request.output} is valid; you have to decide:")
        for decision in done.decisions:
            text = f"{decision.key}: {json.dumps(decision.value)} ({decision.why})"
            terminal.show(*common.wrapped(text, "  ", "    "))
    elif not done.problem:
        terminal.show(f"{request.output} already exists and is valid; it was not changed")
    for text in done.missing:
        terminal.show(*common.wrapped(f"missing: {text}", "  ", "    "))
