"""The site's command that collects facts about the site: capture."""

import argparse
import os
import time
from typing import Any, Dict, Tuple

from deployer.cli.site import common
from deployer.contract.base.errors import EXIT_DONE, Refused, UsageError
from deployer.contract.base.text import counted
from deployer.contract.rules import drift
from deployer.contract.rules.findings import ERROR
from deployer.site.capture import redact, report
from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.capture.report import facts_path
from deployer.site.container import trial
from deployer.site.jobs import survey
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.system import files, terminal

#: Initial and maximum seconds between two checks of the jobs.
_FIRST, _LAST = 0.5, 15.0


def add_parsers(subparsers: Any) -> None:
    """Register ``capture``."""
    command = common.add_command(subparsers, "capture", _capture)
    text = "write the profile to this file, and the facts of its libraries beside it"
    common.add(command, "-o", "--output", "FILE.json", text)
    common.flag(command, "--node", "run it in a job: capture this compute node for its partition")
    common.add(command, "--partition", "NAME", "the node's partition, if the scheduler does not report it")
    common.repeated(command, "--mpi", "PREFIX", "also capture the MPI installed here; may be repeated")
    text = (
        "capture this login node, and by one small job each a node of these partitions (A,B,... or all), and merge them"
    )
    common.add(command, "--partitions", "LIST", text)
    common.flag(command, "--no-wait", "with --partitions: do not wait for the jobs; the same command later continues")
    common.flag(command, "--dry-run", "with --partitions: print the jobs, and submit nothing")
    common.add(command, "--account", "NAME", "with --partitions: charge the jobs to this account")
    text = "with --partitions: a further word for the batch system, as --directive=--qos=test; may be repeated"
    common.repeated(command, "--directive", "WORD", text)
    command.add_argument("--name", help="the site's name (default: the cluster's)")
    text = "merge captures of login and compute nodes instead of capturing; later files override earlier ones"
    common.add(command, "--merge", "FILE.json", text, nargs="+")
    text = "print what has changed since this profile was captured, and what each change means"
    common.add(command, "--compare", "PROFILE.json", text)
    common.flag(command, "--redact", "replace hosts, users and addresses by placeholders")
    common.repeated(command, "--hide", "TEXT", "also replace this path or name by a placeholder; may be repeated")


def _capture(args: argparse.Namespace) -> int:
    if args.output and not args.output.endswith(".json"):
        raise UsageError(f"a capture is a JSON file: {args.output!r} does not end in .json", "name it FILE.json")
    started = time.time()
    if args.partitions:
        return _survey(args)
    before = report.whole(report.read(args.compare)) if args.compare else None  # its errors are reported first
    if args.merge:
        captured = report.merge([report.read(path) for path in args.merge])
    else:
        request = common.from_options(CaptureRequest, args, node=args.node or bool(args.partition), words=trial.words)
        captured = capture(request, SCHEDULERS.values())
    if before is not None:
        return _compare(args, before, report.whole(captured))
    if args.redact or args.hide:
        hide = redact.of(captured.profile, args.hide)
        captured = report.CaptureReport(hide(captured.profile), hide(captured.facts))
    if not args.output:
        terminal.show(report.pretty(captured.profile))
        terminal.tell("the facts of libraries are left out: to get them, give -o FILE.json")
        return EXIT_DONE
    report.write_report(args.output, captured)
    notes = captured.profile.get("notes", [])
    if args.json:
        terminal.show_json({"profile": args.output, "facts": report.facts_path(args.output), "notes": notes})
        return EXIT_DONE
    seconds = time.time() - started
    facts = os.path.basename(report.facts_path(args.output))
    terminal.show(f"{args.output}: read it, then copy it and {facts} to your own machine")
    terminal.show("%d MPI, %.1f s" % (len(captured.profile.get("mpi", {})), seconds))
    for note in notes:
        terminal.tell(f"note: {note}")
    return EXIT_DONE


def _survey(args: argparse.Namespace) -> int:
    used = [name for name in ("node", "partition", "merge", "compare") if getattr(args, name)]
    if used or not args.output:
        problem = f"--{used[0]} cannot be used" if used else "-o FILE.json is required"
        raise UsageError(f"{problem} with --partitions", "see: deployer.pyz capture --help")
    request = common.from_options(
        survey.SurveyRequest,
        args,
        output=os.path.abspath(args.output),
        partitions=None if args.partitions == "all" else list(filter(None, args.partitions.split(","))),
        directives=args.directive,
        words=trial.words,
    )
    if args.dry_run:
        return _show_jobs(args, request)
    began = time.time()
    shown: Dict[str, Tuple[str, int]] = {}
    while True:
        partitions = survey.step(request)
        for partition in partitions:
            now = (partition.state, partition.seconds // 60)  # changes each minute while it waits
            if not args.json and shown.get(partition.name) != now:
                terminal.tell(f"deployer: {partition!s}")
                shown[partition.name] = now
        if args.no_wait or not any(partition.active for partition in partitions):
            break
        time.sleep(min(_LAST, _FIRST + (time.time() - began) / 10))
    waiting = [partition for partition in partitions if partition.active]
    notes = [] if waiting else survey.collect(request, partitions)
    if args.json:
        record = {"profile": None if waiting else request.output, "facts": facts_path(request.output), "notes": notes}
        terminal.show_json(dict(record, partitions=[dict(partition._asdict()) for partition in partitions]))
        return EXIT_DONE
    for note in notes:
        terminal.tell(f"note: {note}")
    if waiting:
        terminal.show(
            "still active: %d of %s; run the same command again" % (len(waiting), counted(len(partitions), "job"))
        )
    else:
        captured = sum(1 for partition in partitions if partition.state == survey.CAPTURED)
        terminal.show(
            "%s: the login node and %d of %s" % (request.output, captured, counted(len(partitions), "partition"))
        )
        terminal.show(f"read it, then copy it and {os.path.basename(facts_path(request.output))} to your own machine")
    return EXIT_DONE


def _show_jobs(args: argparse.Namespace, request: Any) -> int:
    """Print the jobs that a survey would submit, after a capture of the login node; keep no new files."""
    begun = files.lexists(request.folder)  # its jobs may be in the queue
    profile = survey.login(request).profile
    scripts = {part.name: survey.script(request, profile, part) for part in survey.parts(request, profile)}
    if not begun:
        files.remove_tree(request.folder)
    if args.json:
        terminal.show_json({"jobs": scripts})
        return EXIT_DONE
    for name, text in scripts.items():
        terminal.show(f"# one node of the partition {name}:")
        terminal.show_text(text)
    terminal.show("would submit {}; nothing was submitted".format(counted(len(scripts), "job")))
    return EXIT_DONE


def _compare(args: argparse.Namespace, before: Any, now: Any) -> int:
    changes = drift.compare(drift.resolved(before), drift.resolved(now))
    if args.json:
        terminal.show_json({"drift": [change.record() for change in changes]})
    else:
        for change in changes:
            terminal.show(str(change))
            if change.kind != drift.NEW:
                terminal.show(f"         {change.meaning}")
    grave = [change for change in changes if change.severity == ERROR]
    if grave:
        raise Refused(
            "%d facts in %s have changed" % (len(grave), args.compare),
            "capture the site again, check bundles against it and make new plans",
        )
    if not args.json and not changes:
        terminal.show("nothing has changed")
    return EXIT_DONE
