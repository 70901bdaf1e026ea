"""The commands that job.sh calls: probe, result, start, again, keep, shield, inside, stage, jupyter.

All ranks of a job wait for them, so this module imports little, and imports a command's modules only when the command
runs. ``rank`` and a rank's probe do not use this module: see ``deployer.site.rank.first_module``.
"""

import argparse
import functools
import os
import sys
import time
from typing import Any, Optional

from deployer.cli.site import common
from deployer.system import terminal

#: The steps that ``result`` checks.
_STEPS = ("hosts", "network", "stage", "probe", "payload")


def add_parsers(subparsers: Any) -> None:
    """Register these commands; each parser sets ``run``, a function from the arguments to the exit code."""
    add = functools.partial(common.add_command, subparsers, has_record=False)
    parser = add("probe", _probe, "Called by job.sh: evidence from a node.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--host", action="store_true")
    which.add_argument("--network", action="store_true")
    parser.add_argument("--out", required=True, metavar="DIR")
    common.add(parser, "--library", "FILE", "the plan's MPI on the host")
    common.add(parser, "--home", "DIR", "make this folder as the job's home on the node")
    _add_keep(parser)
    parser.set_defaults(after_dashes="a command that prints the image's canary, from a container")
    parser = add("result", _result, "Called by job.sh: judge the evidence and write result.json.")
    parser.add_argument("folder", metavar="JOBDIR")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--step", choices=_STEPS)
    text = "judge the steps named on standard input, up to and with this one"
    which.add_argument("--until", choices=_STEPS, help=text)
    common.add(parser, "--exit", "N", "exit code of the step's launcher", type=int, default=0)
    common.add(parser, "--id", "ID", "the batch system's id of the job", default="")
    common.add(parser, "--started", "SECONDS", "since the epoch", type=int, required=True)
    common.add(parser, "--signal", "NAME", "the signal that asked the script to stop", default="")
    common.add(parser, "--module", "NAME", "the module that could not be loaded")
    common.add(parser, "--setup", "COMMAND", "the command of the site's setup that failed")
    common.add(parser, "--launcher", "PROGRAM", "the launcher that is missing")
    common.add(parser, "--reason", "TEXT", "what the step said of its failure")
    parser = add("start", _start, "Called by job.sh: make the folder of a further start of the script.")
    parser.add_argument("folder", metavar="JOBDIR")
    common.add(parser, "--script", "FILE", "the script that runs", required=True)
    common.add(parser, "--id", "ID", "the batch system's id of this start", default="")
    common.add(parser, "--array", "N", "the array of the group whose task starts")
    parser = add("again", _again, "Called by job.sh: submit the job that continues this one.")
    parser.add_argument("folder", metavar="JOBDIR")
    parser = add("keep", _keep, "Called by job.sh: keep the caches of the job's home.")
    parser.add_argument("--home", metavar="DIR", required=True)
    _add_keep(parser)
    parser = add("shield", _shield, "Called by job.sh: become COMMAND, with SIGTERM blocked.")
    parser.epilog = "shield -- COMMAND [ARG...]"
    parser = add("inside", _inside, "Called by job.sh: start the image's own launcher in one container per node.")
    which = parser.add_mutually_exclusive_group(required=True)
    common.add(which, "--serve", "DIR", "connect the nodes; what starts them follows --")
    common.flag(which, "--node", "start this node's container; its words follow --")
    common.flag(which, "--launch", "become the launcher, in the container")
    common.flag(which, "--ask", "[OPTIONS] NODE WORDS...: what a launcher calls, like ssh")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--image-python", default="")
    common.flag(parser, "--passes-on", "send SIGTERM to all processes of the nodes")
    parser.add_argument("--agent", metavar="PROGRAM")
    parser.add_argument("--machines", metavar="FILE")
    parser.add_argument("--hub", metavar="HOST,...:PORT", default="")
    parser.add_argument("--key", metavar="FILE", default="")
    common.add(parser, "--number", "N", "of this node (default: Slurm's)", type=int)
    parser = add("stage", _stage, "Called by job.sh: unpack the image on this node and hold it.")
    for name in ("image", "source", "into", "out", "tool", "hosts"):
        parser.add_argument("--" + name, required=True)
    for name in ("abi", "stubs", "once"):
        parser.add_argument("--" + name)
    common.flag(parser, "--relay", "nodes send the file on to each other")
    common.flag(parser, "--in-place", "mount the file where it is")
    parser.add_argument("--kit", default="")
    parser.add_argument("--home", help="remove this folder at the end")
    _add_keep(parser)
    parser.add_argument("--library", help="the plan's MPI on the host")
    parser.add_argument("--mount-point", action="append", default=[], dest="mounts", help="make it in the image")
    text = "the first N words after -- are the command that reads the canary"
    common.add(parser, "--reader", "N", text, type=int, default=0)
    add("jupyter", _jupyter, "Called by the job of a notebook: run Jupyter in the container.")


def _add_keep(parser: argparse.ArgumentParser) -> None:
    common.add(parser, "--keep", "PATH", "archives of caches, then paths in the home", action="append", default=[])


def _keep(args: argparse.Namespace) -> None:
    from deployer.site.container import caches

    caches.save(args.home, args.keep[0], args.keep[1:])


def _jupyter(_: argparse.Namespace) -> int:
    from deployer.site.notebook import jupyter

    return jupyter.serve()


def _probe(args: argparse.Namespace) -> None:
    if args.host:
        from deployer.site.rank import host_probe

        host_probe.host(args.out, args.library, args.home, args.rest, args.keep)
    else:
        from deployer.site.rank import meeting

        meeting.meet(args.out)


def _shield(args: argparse.Namespace) -> None:
    import signal

    from deployer.system import payload, process

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    payload.restore_signals()
    process.replace(args.rest, dict(os.environ))


def _inside(args: argparse.Namespace) -> int:
    from deployer.site.inside import hub, inside

    number = args.number if args.number is not None else int(os.environ.get("SLURM_NODEID", "0"))
    if args.serve:
        return hub.serve(
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


def _result(args: argparse.Namespace) -> Optional[int]:
    if args.step:
        return _judge(args, args.step, args.exit, args.signal)
    from deployer.site.jobs import rendezvous, watch  # noqa: F401  all are imported while the first step runs

    for line in watch.lines(args.folder, sys.stdin):
        step, code, signal, *reason = line.split(None, 3)
        args.reason = reason[0].strip() if reason else None
        terminal.show(str(_judge(args, step, int(code), "" if signal == "-" else signal)))
        sys.stdout.flush()
        if step == args.until:
            break
    return None


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
    judged = result.write_result(args.folder, outcome)
    codes = []
    for record in judged["findings"]:
        finding = records.read(Finding, Fields(record, "a finding", own=True))
        if finding.severity == ERROR and finding.code != "job.unfinished":
            terminal.complain([f"deployer: {finding!s}", f"hint: {finding.remedy}"])
            codes.append(finding.code)
    if codes:
        terminal.complain([f"deployer: {common.more(codes)}"])
    return judged["exit_code"] or 0


def _start(args: argparse.Namespace) -> None:
    from deployer.site.run import again

    sys.stdout.write(again.start(args.folder, args.script, args.id, args.array) + "\n")  # noqa: TID251  job.sh reads it


def _again(args: argparse.Namespace) -> None:
    from deployer.site.run import again

    terminal.tell(f"deployer: job {os.path.basename(again.continue_job(args.folder))} continues it")
