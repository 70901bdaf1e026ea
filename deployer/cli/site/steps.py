"""The commands that job.sh calls: probe, result, start, again, shield, inside, stage.

All ranks of a job wait for them, so this module imports little, and imports a command's modules only when the command
runs. ``rank`` and a rank's probe do not use this module: see ``deployer.site.rank.first_module``.
"""

import argparse
import importlib
import os
import sys
import time
from typing import Any

from deployer.cli.site import common
from deployer.system import terminal

#: The steps that ``result`` checks.
_STEPS = ("hosts", "network", "stage", "probe", "payload")


def add_parsers(subparsers: Any) -> None:
    """Register these commands; each parser sets ``run``, a function from the arguments to the exit code."""
    add = subparsers.add_parser
    parser = add("probe", description="Called by job.sh: evidence from a node.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--host", action="store_true")
    which.add_argument("--network", action="store_true")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--library", metavar="FILE", help="the plan's MPI on the host")
    parser.add_argument("--home", metavar="DIR", help="make this folder as the job's home on the node")
    parser.set_defaults(run=_probe, after_dashes="a command that prints the image's canary, from a container")
    parser = add("result", description="Called by job.sh: judge the evidence and write result.json.")
    parser.add_argument("folder", metavar="JOBDIR")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--step", choices=_STEPS)
    text = "judge the steps named on standard input, up to and with this one"
    which.add_argument("--until", choices=_STEPS, help=text)
    parser.add_argument("--exit", type=int, default=0, metavar="N", help="exit code of the step's launcher")
    parser.add_argument("--id", default="", metavar="ID", help="the batch system's id of the job")
    parser.add_argument("--started", type=int, required=True, metavar="SECONDS", help="since the epoch")
    parser.add_argument("--signal", default="", metavar="NAME", help="the signal that asked the script to stop")
    parser.add_argument("--module", metavar="NAME", help="the module that could not be loaded")
    parser.add_argument("--setup", metavar="COMMAND", help="the command of the site's setup that failed")
    parser.add_argument("--launcher", metavar="PROGRAM", help="the launcher that is missing")
    parser.add_argument("--reason", metavar="TEXT", help="what the step said of its failure")
    parser.set_defaults(run=_result)
    parser = add("start", description="Called by job.sh: make the folder of a further start of the script.")
    parser.add_argument("folder", metavar="JOBDIR")
    parser.add_argument("--script", required=True, metavar="FILE", help="the script that runs")
    parser.add_argument("--id", default="", metavar="ID", help="the batch system's id of this start")
    parser.set_defaults(run=_start)
    parser = add("again", description="Called by job.sh: submit the job that continues this one.")
    parser.add_argument("folder", metavar="JOBDIR")
    parser.set_defaults(run=_again)
    parser = add("shield", description="Called by job.sh: become COMMAND, with SIGTERM blocked.")
    parser.epilog = "shield -- COMMAND [ARG...]"
    parser.set_defaults(run=_shield)
    parser = add("inside", description="Called by job.sh: start the image's own launcher in one container per node.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--serve", metavar="DIR", help="connect the nodes; what starts them follows --")
    which.add_argument("--node", action="store_true", help="start this node's container; its words follow --")
    which.add_argument("--launch", action="store_true", help="become the launcher, in the container")
    which.add_argument("--ask", action="store_true", help="[OPTIONS] NODE WORDS...: what a launcher calls, like ssh")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--image-python", default="")
    parser.add_argument("--passes-on", action="store_true", help="send SIGTERM to all processes of the nodes")
    parser.add_argument("--agent", metavar="PROGRAM")
    parser.add_argument("--machines", metavar="FILE")
    parser.add_argument("--hub", metavar="HOST,...:PORT", default="")
    parser.add_argument("--key", metavar="FILE", default="")
    parser.add_argument("--number", type=int, metavar="N", help="of this node (default: Slurm's)")
    parser.set_defaults(run=_inside)
    parser = add("stage", description="Called by job.sh: unpack the image on this node and hold it.")
    for name in ("image", "source", "into", "out", "tool"):
        parser.add_argument("--" + name, required=True)
    for name in ("abi", "stubs", "sent", "sha256"):
        parser.add_argument("--" + name)
    parser.add_argument("--kit", default="")
    parser.add_argument("--home", help="remove this folder at the end")
    parser.add_argument("--hosts", metavar="DIR", help="first write the facts of this node there, and make the home")
    parser.add_argument("--library", help="the plan's MPI on the host")
    parser.add_argument("--mount-point", action="append", default=[], dest="mounts", help="make it in the image")
    text = "the first N words after -- are the command that reads the canary"
    parser.add_argument("--reader", type=int, default=0, metavar="N", help=text)
    parser.set_defaults(run=_stage)


def _probe(args: argparse.Namespace) -> int:
    if args.host:
        from deployer.site.rank import host_probe

        host_probe.host(args.out, args.library, args.home, args.rest)
    else:
        from deployer.site.rank import meeting

        meeting.meet(args.out)
    return 0


def _shield(args: argparse.Namespace) -> int:
    import signal

    from deployer.system import payload, process

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    payload.restore_signals()
    process.replace(args.rest, dict(os.environ))


def _inside(args: argparse.Namespace) -> int:
    from deployer.site.inside import inside

    number = args.number if args.number is not None else int(os.environ.get("SLURM_NODEID", "0"))
    if args.serve:
        return inside.serve(
            args.serve, args.nodes, args.image_python, args.passes_on, args.agent, args.machines, args.rest
        )
    if args.node:
        return inside.node(args.hub, args.key, number, args.rest)
    if args.ask:
        return inside.ask(args.hub, args.key, args.rest)
    return inside.launch(args.hub, args.rest)


def _stage(args: argparse.Namespace) -> int:
    from deployer.site.run import stage

    mount, reader = args.rest[args.reader :], args.rest[: args.reader]
    return stage.stage(common.from_options(stage.StageRequest, args, mount=mount, reader=reader))


def _result(args: argparse.Namespace) -> int:
    if args.step:
        return _judge(args, args.step, args.exit, args.signal)
    for name in ("site.proof.result", "site.jobs.rendezvous", "site.jobs.result"):  # while the first step runs
        importlib.import_module("deployer." + name)
    for line in sys.stdin:
        step, code, signal = line.split()
        terminal.show(str(_judge(args, step, int(code), "" if signal == "-" else signal)))
        sys.stdout.flush()
        if step == args.until:
            break
    return 0


def _judge(args: argparse.Namespace, step: str, code: int, signal: str) -> int:
    """Check a job after a step, print its problems, and return the exit code for job.sh."""
    from deployer.contract.base import records
    from deployer.contract.base.json_records import Fields
    from deployer.contract.rules.findings import ERROR, Finding
    from deployer.site.jobs import result
    from deployer.site.proof.result import StepOutcome

    if not args.id:  # there is no batch system
        from deployer.site.jobs import jobs

        args.id = jobs.job_id(args.folder) or ""
    given = {"step": step, "exit_code": code, "signal": signal or None, "job_id": args.id, "ended": time.time()}
    outcome = common.from_options(StepOutcome, args, **given)
    verdict = result.write_result(args.folder, outcome)
    codes = []
    for record in verdict.record["findings"]:
        finding = records.read(Finding, Fields(record, "a finding", own=True))
        if finding.severity == ERROR and finding.code != "job.unfinished":
            terminal.complain([f"deployer: {finding!s}", f"hint: {finding.remedy}"])
            codes.append(finding.code)
    if codes:
        terminal.complain([f"deployer: {common.more(codes)}"])
    return verdict.exit_code


def _start(args: argparse.Namespace) -> int:
    from deployer.site.run import again

    sys.stdout.write(again.start(args.folder, args.script, args.id) + "\n")  # noqa: TID251  job.sh reads it
    return 0


def _again(args: argparse.Namespace) -> int:
    from deployer.site.run import again

    terminal.tell(f"deployer: job {os.path.basename(again.continue_job(args.folder))} continues it")
    return 0
