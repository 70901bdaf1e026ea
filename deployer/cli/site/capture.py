"""The site's command that collects facts about the site: capture."""

import argparse
import os
import time
from typing import Any, Dict, Mapping, Sequence, Tuple

from deployer.cli.site import common
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.site.capture import capture_files, ports
from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.container.runtimes import trial_words
from deployer.site.jobs import survey
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.rank import interfaces
from deployer.system import files, terminal

#: Initial and maximum seconds between two checks of the jobs.
_FIRST, _LAST = 0.5, 15.0


def add_parsers(subparsers: Any) -> None:
    """Register ``capture``."""
    command = common.add_command(subparsers, "capture", _capture)
    text = "write the profile to this file, and the facts of its libraries beside it"
    common.add(command, "-o", "--output", "FILE.json", text)
    common.flag(command, "--node", "run it in a job: capture this compute node for its partition")
    common.add(command, "--listen", "FILE", "with --node: also listen on a port, named in this file, for a trial")
    common.add(command, "--partition", "NAME", "the node's partition, if the scheduler does not report it")
    text = "capture this login node, and by one small job each a node of these partitions (A,B,... or all), and "
    text += "merge them"
    common.add(command, "--partitions", "LIST", text)
    common.flag(command, "--no-wait", "with --partitions: do not wait for the jobs; the same command later continues")
    common.flag(command, "--dry-run", "with --partitions: print the jobs, and submit nothing")
    common.add_capturing(command, "with --partitions: ")
    text = "merge captures of login and compute nodes instead of capturing; later files override earlier ones"
    common.add(command, "--merge", "FILE.json", text, nargs="+")


def _capture(args: argparse.Namespace) -> None:
    if args.output and not args.output.endswith(".json"):
        raise UsageError(f"a capture is a JSON file: {args.output!r} does not end in .json", "name it FILE.json")
    started = time.time()
    if args.partitions:
        _survey(args)
        return
    if args.merge:
        captured = capture_files.merge([capture_files.read(path) for path in args.merge])
    else:
        request = common.from_options(CaptureRequest, args, node=args.node or bool(args.partition), words=trial_words)
        captured = capture(request, SCHEDULERS.values())
        if args.listen:
            ports.listen(args.listen, interfaces.addresses())
    if args.redact or args.hide:
        captured = captured.redacted(args.hide)
    if not args.output:
        terminal.show(capture_files.pretty(captured.profile))
        terminal.tell("the facts of libraries are left out: to get them, give -o FILE.json")
        return
    captured.write(args.output)
    notes = captured.profile.get("notes", [])
    facts = capture_files.facts_path(args.output)
    if common.as_json(args, {"profile": args.output, "facts": facts, "notes": notes}):
        return
    terminal.show(f"{args.output}: read it, then copy it and {os.path.basename(facts)} to your own machine")
    terminal.show(f"{len(captured.profile.get('mpi', {}))} MPI, {time.time() - started:.1f} s")
    terminal.tell(*(f"note: {note}" for note in notes))


def _survey(args: argparse.Namespace) -> None:
    used = [name for name in ("node", "partition", "merge") if getattr(args, name)]
    if used or not args.output:
        problem = f"--{used[0]} cannot be used" if used else "-o FILE.json is required"
        raise UsageError(f"{problem} with --partitions", "see: deployer.pyz capture --help")
    request = common.from_options(
        survey.SurveyRequest,
        args,
        output=os.path.abspath(args.output),
        partitions=None if args.partitions == "all" else list(filter(None, args.partitions.split(","))),
        directives=args.directive,
        words=trial_words,
        addresses=interfaces.addresses(),
    )
    if args.dry_run:
        show_jobs(args, _scripts(request))
        return
    began = time.time()
    meter = PartitionMeter()
    while True:
        partitions = survey.step(request)
        if not args.json:
            meter(partitions)
        if args.no_wait or not any(partition.active for partition in partitions):
            break
        time.sleep(min(_LAST, _FIRST + (time.time() - began) / 10))
    waiting = [partition for partition in partitions if partition.active]
    notes = [] if waiting else survey.collect(request, partitions)
    facts = capture_files.facts_path(request.output)
    record = {"profile": None if waiting else request.output, "facts": facts, "notes": notes}
    if common.as_json(args, dict(record, partitions=[dict(partition._asdict()) for partition in partitions])):
        return
    terminal.tell(*(f"note: {note}" for note in notes))
    if waiting:
        jobs = counted(len(partitions), "job")
        terminal.show(f"still active: {len(waiting)} of {jobs}; run the same command again")
    else:
        captured = sum(1 for partition in partitions if partition.state == survey.CAPTURED)
        count = counted(len(partitions), "partition")
        terminal.show(f"{request.output}: the login node and {captured} of {count}")
        terminal.show(f"read it, then copy it and {os.path.basename(facts)} to your own machine")


class PartitionMeter:
    """Print the state of a partition when it changes, and every minute while it waits.

    Attributes:
        shown: what was printed last for each partition.
    """

    def __init__(self) -> None:
        self.shown: Dict[str, Tuple[str, str, int]] = {}

    def __call__(self, partitions: Sequence[Any]) -> None:
        for partition in partitions:
            now = (partition.state, partition.reason, partition.seconds // 60)
            if self.shown.get(partition.name) != now:
                self.shown[partition.name] = now
                terminal.tell(f"deployer: {partition!s}")


def _scripts(request: survey.SurveyRequest) -> Dict[str, str]:
    """Return the jobs that a survey would submit, after a capture of the login node; keep no new files."""
    begun = files.lexists(request.folder)  # its jobs may be in the queue
    jobs = survey.Survey(request, survey.login(request).profile)
    scripts = {part.name: jobs.script(part) for part in jobs.wanted()}
    if not begun:
        files.remove_tree(request.folder)
    return scripts


def show_jobs(args: argparse.Namespace, scripts: Mapping[str, str]) -> None:
    """Print the jobs that a capture would submit, by partition."""
    if common.as_json(args, {"jobs": scripts}):
        return
    for name, text in scripts.items():
        terminal.show(f"# one node of the partition {name}:")
        terminal.show_text(text)
    terminal.show(f"would submit {counted(len(scripts), 'job')}; nothing was submitted")
