"""Commands for jobs at the site: run, exec, shell, notebook, jobs, status, logs, cancel.

For job.sh's commands, see ``steps``.
"""

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from deployer.cli.site import common, run_table
from deployer.contract.base.dialogue import ANNOUNCE, ANSWER, CALLER, TOKEN
from deployer.contract.base.errors import EXIT_INTERRUPTED, JobFailed, UsageError
from deployer.contract.base.shell import quoted
from deployer.contract.bundle.job import check_time, seconds
from deployer.contract.rules.findings import ACCEPTABLE
from deployer.contract.site.plan import STAGINGS
from deployer.contract.site.runtime_table import SUPPORTED
from deployer.site.jobs import ending, jobs, overview
from deployer.site.jobs import result as results
from deployer.site.proof.rank_record import WARN
from deployer.site.storage.store import REFERENCE, Store, locate
from deployer.system import files, terminal

if TYPE_CHECKING:
    from deployer.contract.bundle.sweep import TaskGroup
    from deployer.site.container.container import Home
    from deployer.site.jobs.jobs import Status
    from deployer.site.run.exec import ExecRequest
    from deployer.site.run.prepare.request import RunRequest


def add_parsers(subparsers: Any) -> None:
    """Register these commands; each parser sets ``run``, a function from the arguments to the exit code."""
    parser = common.add_store_command(subparsers, "run", _run)
    common.add(parser, "image", REFERENCE, "an installed image")
    common.add(parser, "job", "JOB", "a job of the bundle (default: its first)", nargs="?")
    add_job_options(parser)
    common.add(parser, "--plan", "SITE", "use this plan, if the bundle has several")
    common.flag(parser, "--force", "submit it even if check predicts that it will not run")
    text = "do not stop the job for this finding; may be repeated"
    parser.add_argument("--accept", action="append", default=[], choices=ACCEPTABLE, help=text)
    common.flag(parser, "--dry-run", "print the batch script and submit nothing")
    common.flag(parser, "--wait", "wait until the job ends; exit 1 if it failed")
    # For push, whose process has just checked all files of the image. It is part of the protocol between versions:
    # a site may keep a newer deployer.pyz than the laptop's, so the option cannot be removed.
    parser.add_argument("--just-checked", action="store_true", help=argparse.SUPPRESS)
    # For a laptop, which knows the job's name before it submits the job. There is never a second job with this name.
    parser.add_argument("--token", type=_token, help=argparse.SUPPRESS)
    parser.epilog = (
        "Words after -- are added to the end of the job's command. If the bundle has no job, they are the command."
    )
    parser.set_defaults(after_dashes="arguments of the job's command")

    parser = _add_starting(subparsers, "exec", _exec)
    parser.epilog = "Words after -- are the command: exec NAME -- COMMAND [ARG...]. Exit: the command's own"
    parser.set_defaults(after_dashes="the command and its arguments")
    parser = _add_starting(subparsers, "shell", _shell)
    common.flag(parser, "--in-job", "start it on a node, in a job of its own that ends with it")
    _add_limits(parser.add_argument_group("the job, with --in-job"))

    parser = common.add_store_command(subparsers, "where", _where)
    common.add(parser, "image", REFERENCE, "an installed image")
    common.add(parser, "--plan", "SITE", "use this plan, if the bundle has several")
    common.repeated(parser, "--bind", "SRC[:DST]", "bind this folder or file of the host; may be repeated")
    common.repeated(parser, "--env", "NAME=VALUE", "set this environment variable too; may be repeated")
    text = "in the words of this runtime (default: the plan's choice): apptainer, charliecloud, podman or singularity; "
    text += "pyxis: for that plug-in; edf: as a file for CSCS's Container Engine"
    common.add(parser, "--format", "FORMAT", text, choices=(*SUPPORTED, "edf", "pyxis"))
    common.add(parser, "--sif", "FILE", "write the image, with its app and wheels, to this SIF file and use it")

    parser = _add_starting(subparsers, "notebook", _notebook)
    common.add(parser, "--idle", "TIME", "end it when idle (default: %(default)s)", type=check_time, default="30m")
    common.add(parser, "--port", "PORT", "the laptop's, for the browser (default: %(default)s)", type=int, default=8888)
    _add_limits(parser)

    parser = common.add_store_command(subparsers, "retry", _retry)
    common.add(parser, "job", "GROUP[.TASK]", "a group of tasks, or one of its tasks")
    parser = common.add_store_command(subparsers, "jobs", _jobs)
    common.add(parser, "job", "GROUP", "list the tasks of this group (default: all jobs)", nargs="?")
    job, last, only = "its name or the scheduler's id (default: %s)", "the last", "the active one, if there is only one"
    for name, run, default in (("status", _status, last), ("logs", _logs, last), ("cancel", _cancel, only)):
        parser = common.add_store_command(subparsers, name, run, has_record=name != "logs")
        common.add(parser, "job", "JOB", job % default, nargs="?")
        if name == "status":
            common.flag(parser, "--wait", "wait until the job ends; exit 1 if it failed")
            parser.add_argument("--after-log", action="store_true", help=argparse.SUPPRESS)  # `deploy` printed the log
        if name == "logs":
            common.flag(parser, "-f", "--follow", "keep printing until the job has ended")


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a submitted job: its layout, limits and container."""
    common.add(parser, "--nodes", "N", "number of nodes (default: the job's)", type=int)
    common.add(parser, "--ranks-per-node", "R", "ranks per node (default: the job's)", type=int)
    text = "what every rank reads: absolute path in the container (default: the job's)"
    common.add(parser, "--stdin", "FILE", text)
    text = "if the job saves its state before the time limit, continue it in up to N more jobs"
    common.add(parser, "--again", "N", text, type=int)
    which = parser.add_mutually_exclusive_group()
    common.add(which, "--array", "FIRST-LAST[%M]", "submit an array of tasks with these numbers, at most M at a time")
    common.add(
        which, "--sweep", "FILE", "submit an array of tasks with the parameters of this file: grid, random or list"
    )
    text = "send SIGUSR1 to the ranks this many seconds before the time limit (default: %(default)s)"
    common.add(parser, "--warn", "SECONDS", text, type=int, default=WARN)
    common.add(parser, "--gpus-per-rank", "N", "GPUs that each rank sees (default: the job's, else all)", type=int)
    _add_limits(parser)
    _add_container(parser)
    text = "where the image is while ranks run (default: the plan's choice)"
    parser.add_argument("--staging", choices=STAGINGS, help=text)
    common.add_launch(parser, "the plan's")


def _add_limits(parser: Any) -> None:
    """Add what any job requests from the batch system."""
    common.add(parser, "--threads", "T", "threads per rank (default: the job's)", type=int)
    common.add(parser, "--time", "[D-]HH:MM:SS", "time limit; also 90m, 24h, 2d", type=check_time)
    common.add(parser, "--memory", "MIB", "memory that one rank needs (default: the job's)", type=int)
    common.add(parser, "--gpus", "N", "GPUs to request per node (default: all of a node's)", type=int)
    text = "account to charge the job to (default: the plan's, else $SBATCH_ACCOUNT or $SLURM_ACCOUNT)"
    common.add(parser, "--account", "NAME", text)
    text = "use the plan for this partition; one without a plan must have nodes like those of the first plan"
    common.add(parser, "--partition", "NAME", text)
    common.add(parser, "--constraint", "FEATURES", "features that its nodes must have")
    common.add(parser, "--reservation", "NAME", "run in this reservation of the batch system")
    common.repeated(parser, "--directive", "WORD", "one more directive for the batch system; may be repeated")


def _add_starting(subparsers: Any, name: str, function: Callable[[argparse.Namespace], Optional[int]]) -> Any:
    """Register a command that starts a container here."""
    parser = common.add_store_command(subparsers, name, function, has_record=False)
    common.add(parser, "image", REFERENCE, "an installed image")
    common.add(parser, "--plan", "SITE", "use this plan, if the bundle has several")
    _add_container(parser)
    return parser


def _token(word: str) -> str:
    if not TOKEN.match(word):
        raise argparse.ArgumentTypeError(f"{word!r} is not the end of a job's name")
    return word


def _add_container(parser: argparse.ArgumentParser) -> None:
    common.repeated(parser, "--bind", "SRC[:DST]", "bind this folder or file of the host; may be repeated")
    text = "set this environment variable in the container, over the image's, the job's and the plan's; may be repeated"
    common.repeated(parser, "--env", "NAME=VALUE", text)
    text = "use this folder as HOME (default: a private one on the node, removed at the end)"
    common.add(parser, "--home", "DIR", text)
    common.flag(parser, "--user-site", "let Python use the packages in ~/.local of that home")
    text = f"a runtime that the site's policy allows (default: the plan's choice): {', '.join(SUPPORTED)}; "
    text += "native: no container, the host's own programs, for comparison"
    common.add(parser, "--runtime", "RUNTIME", text, choices=SUPPORTED)


def request(args: argparse.Namespace) -> "RunRequest":
    """Return the request for a job from options, most of which have the names of its fields."""
    from deployer.site.run.job_script.submission import SubmissionOptions
    from deployer.site.run.prepare.request import RunRequest

    wanted = {"image": getattr(args, "image", ""), "plan": getattr(args, "plan", None), "memory_mb": args.memory}
    options = common.from_options(SubmissionOptions, args, directives=args.directive)
    wanted.update(binds=args.bind, extra=args.rest, home=_home(args), options=options, tasks=_tasks(args))
    return common.from_options(RunRequest, args, **wanted)


def _tasks(args: argparse.Namespace) -> "Optional[TaskGroup]":
    """Return the tasks of a group; None: the job is not one."""
    from deployer.contract.base import json_records
    from deployer.contract.bundle import sweep

    if getattr(args, "sweep", None):  # notebooks and shells have no tasks
        inline = args.sweep.startswith("{")  # a laptop sends the content of the file
        data = args.sweep.encode("utf-8", "surrogateescape") if inline else files.read_bytes(args.sweep)
        what = "the sweep" if inline else args.sweep
        return sweep.of_sweep(json_records.Fields(json_records.parse(data, what), what).record, what)
    return sweep.of_array(args.array) if getattr(args, "array", None) else None


def _run(args: argparse.Namespace) -> int:
    from deployer.site.run import earlier, run

    store = locate(args.root)
    wanted = request(args)
    before = earlier.earlier(store, wanted, _tell)
    while before and before.problem:
        name = os.path.basename(before.folder)
        terminal.warn(f"job {name}, which this command may have made before, {before.problem}; a new job is submitted")
        wanted = earlier.renamed(wanted)
        before = earlier.earlier(store, wanted, _tell)
    folder = before.folder if before else run.prepare(store, wanted)
    terminal.complain([f"deployer: {line}" for line in run.warnings(folder)])
    known = results.launch(folder).checked
    if known and known.findings:
        _tell(common.more([finding.code for finding in known.against or known.findings]))
    if args.dry_run:
        if args.json:
            terminal.show_json({"folder": folder, "script": os.path.join(folder, "job.sh")}, indent=2)
        else:
            terminal.show_text(run.show_script(folder))
            _tell(f"not submitted; by hand: {run.by_hand(folder)}")
        return 0
    job_id = before.number if before else run.submit(folder)
    if os.environ.get(ANNOUNCE) == "1":
        terminal.show(f"{ANSWER}{os.path.basename(folder)} {job_id}")
        sys.stdout.flush()
    if not args.json:
        how = "was submitted before" if before else "submitted"
        terminal.show(f"job {os.path.basename(folder)} {how} as {job_id}: {folder}")
        sys.stdout.flush()
        if before:
            _tell("the site's answer to it was lost; the same command again submits another job")
    if args.wait:
        return _wait(args, store, folder, repeated=before is not None)
    if args.json:
        terminal.show_json(dict(jobs.status(folder).record(), repeated=before is not None), indent=2)
    common.suggest(args, *(("jobs",) if wanted.tasks else ("logs", "-f")), os.path.basename(folder))
    return 0


def _retry(args: argparse.Namespace) -> None:
    from deployer.site.run import run

    store = locate(args.root)
    folder = jobs.find(store, args.job)
    job_id, tasks, active = run.repeat(folder)
    listed = ", ".join(map(str, tasks)) or "none to repeat"
    line = f"tasks of {args.job}: {listed}" + (f"; submitted as {job_id}" if tasks else "") + f"; {active} are active"
    common.show_result(args, {"job": args.job, "job_id": job_id or None, "tasks": tasks, "active": active}, line)


def _wait(
    args: argparse.Namespace, store: Store, folder: str, tail: bool = True, repeated: Optional[bool] = None
) -> int:
    """Follow a submitted job to its end, and print how it ended; with ``tail``, also the log's end if it failed.

    Args:
        repeated: whether an earlier `run` has submitted the job; None: the command is not `run`.
    """
    failure: Optional[JobFailed] = None
    tell = _tell if terminal.is_watched() else lambda _: None
    try:
        jobs.follow(folder, tell)
        while jobs.following(folder):
            folder = jobs.following(folder)
            tell(f"job {os.path.basename(folder)} continues it")
            jobs.follow(folder, tell)
    except JobFailed as error:
        failure = error
    except KeyboardInterrupt:
        name = os.path.basename(folder)
        message = f"deployer: interrupted: job {name} ({jobs.job_id(folder)}) continues"
        terminal.complain([message, f"hint: to end it: {quoted([sys.executable, store.tool, 'cancel', name])}"])
        return EXIT_INTERRUPTED
    status = jobs.status(folder)
    record = status.record() if repeated is None else dict(status.record(), repeated=repeated)
    if not common.as_json(args, record, indent=2):
        terminal.show(*ending.lines(status))
        sys.stdout.flush()
    if failure:
        lines = [] if status.tasks else jobs.tail(folder)
        new = [line for line in lines if not _repeats(failure, line)]
        terminal.complain([f"| {line}" for line in (new if tail else ())])
        if getattr(args, "after_log", False) and len(new) < len(lines):
            raise JobFailed(failure.message.partition(": ")[0])
        raise failure
    _suggest_result(args, folder)
    return 0


def _repeats(failure: JobFailed, line: str) -> bool:
    """Return whether a line in a job's log, printed by the step ``result``, is part of an error."""
    known = line.startswith("deployer: error ") and line.split(": ", 2)[-1] in failure.message
    return known or line == f"hint: {failure.hint}" or line.startswith("deployer: more: ")


def _suggest_result(args: argparse.Namespace, folder: str) -> None:
    """Print the command that fetches a job's output; only the laptop has one."""
    if CALLER in os.environ:
        common.suggest(args, "result", os.path.basename(folder))


def _exec(args: argparse.Namespace) -> int:
    from deployer.site.run import exec as execs

    return execs.execute(locate(args.root), _exec_request(args), args.rest)


def _where(args: argparse.Namespace) -> None:
    from deployer.site.run import where
    from deployer.site.run.exec import ExecRequest

    request = ExecRequest(args.image, args.plan, args.bind, env=args.env)
    place = where.find(locate(args.root), request, args.format, args.sif and os.path.abspath(args.sif))
    lines = place.options
    if args.format != where.EDF:
        lines = [f"image    {quoted([place.image])}", f"options  {quoted(place.options)}"]
    common.show_result(args, place._asdict(), *lines)


def _shell(args: argparse.Namespace) -> None:
    from deployer.site.run import exec as execs

    store = locate(args.root)
    if not args.in_job:
        execs.shell(store, _exec_request(args))
    from deployer.site.notebook import notebook

    words = [word for word in args.words if word != "--in-job"]
    notebook.interactive(store, request(args), [sys.executable, store.tool, *words])


def _notebook(args: argparse.Namespace) -> None:
    from deployer.site.notebook import notebook

    notebook.hold(locate(args.root), request(args), seconds(args.idle), _tell)


def _exec_request(args: argparse.Namespace) -> "ExecRequest":
    from deployer.site.run.exec import ExecRequest

    return common.from_options(ExecRequest, args, binds=args.bind, home=_home(args))


def _home(args: argparse.Namespace) -> "Home":
    from deployer.site.container import container

    return container.Home(chosen=args.home, user_site=args.user_site)


def _jobs(args: argparse.Namespace) -> None:
    store = locate(args.root)
    if args.job is not None:
        run_table.show_tasks(args, jobs.status(jobs.find(store, args.job)).record().get("tasks"))
        return
    seen = overview.look(store)
    records = [dict(status.record(), created=status.launch.created) for status in seen.jobs]
    record = {"jobs": records, "unreadable": [folder for folder, _ in seen.unreadable]}
    if not common.as_json(args, record, indent=2) and seen.jobs:
        terminal.show(*_table(seen.jobs))
    for folder, reason in seen.unreadable:
        terminal.warn(f"{os.path.basename(folder)}: {reason}")
    if not (seen.jobs or seen.unreadable):
        _tell(f"there are no jobs under {store.jobs}")


def _table(statuses: "List[Status]") -> List[str]:
    rows = []
    for status in statuses:
        launch = status.launch
        when = time.strftime("%m-%d %H:%M", time.localtime(launch.created))
        # A job's name begins with its bundle's name.
        name = f"{launch.job}: {status.reason}" if status.tasks else launch.job
        rows.append([status.job_id or "-", status.state, when, str(launch.nodes), launch.version, name])
    return common.table(("NUMBER", "STATE", "CREATED", "NODES", "VERSION", "JOB"), rows, ("NODES",))


def _status(args: argparse.Namespace) -> int:
    store = locate(args.root)
    folder = jobs.find(store, args.job)
    if args.wait:
        return _wait(args, store, folder, tail=False)
    status = jobs.status(folder)
    if args.json:
        following = None if status.active else jobs.following(folder)
        next_job = os.path.basename(following) if following else None
        terminal.show_json(dict(status.record(), continued_by=next_job, own=files.is_own(folder)), indent=2)
    else:
        terminal.show(status.line())
    if status.active and not status.tasks:
        common.suggest(args, "logs", "-f", os.path.basename(folder))
    elif status.exit_code == 0:
        _suggest_result(args, folder)
    return 0


def _logs(args: argparse.Namespace) -> None:
    jobs.show_log(jobs.find(locate(args.root), args.job), args.follow)


def _cancel(args: argparse.Namespace) -> None:
    store = locate(args.root)
    folder = _the_active_one(store) if args.job is None else jobs.find(store, args.job)
    cancelled = jobs.cancel(folder)
    name, job_id = os.path.basename(folder), jobs.job_id(folder)
    record = {"job": name, "job_id": job_id, "folder": folder, "cancelled": cancelled}
    line = f"job {name} ({job_id}) {'cancelled' if cancelled else 'had already ended'}"
    common.show_result(args, record, line)


def _the_active_one(store: Store) -> str:
    """Return the folder of the active job, or of the last job if none is active. Raises UsageError for several."""
    active = overview.look(store).active
    if len(active) > 1:
        listed = ", ".join(f"{status.launch.job} ({status.job_id})" for status in active)
        raise UsageError(f"{len(active)} jobs are active: {listed}", "select one: cancel JOB")
    return active[0].folder if active else jobs.find(store, None)


def _tell(line: str) -> None:
    terminal.tell(f"deployer: {line}")
