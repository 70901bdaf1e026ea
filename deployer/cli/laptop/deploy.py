"""deployer deploy: from a definition to a followed job with one command."""

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployer.cli.laptop import foresight, settings
from deployer.cli.laptop.remote import FINDS, see_jobs, site_options, tell_of_job
from deployer.cli.site import common, jobs
from deployer.connected.deploy.deploy import Deploy, Deployed
from deployer.connected.deploy.packing import DONE, DeployRequest, DeployStage
from deployer.connected.ground import progress, user_settings
from deployer.connected.transfer import following
from deployer.contract.base.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    DeployerError,
    JobFailed,
    SpaceError,
    TransferError,
)
from deployer.system import terminal

#: The build and rehearsal messages that the user waits for; everything else is in the log.
_SAID = ("build: ", "pack: ", "base: ", "wheels: ", "horovod: ", "Step ", "installing ", "running ", "waiting ")
#: Seconds for which a job is followed with --json, both queued and running.
_LONGEST = 14 * 24 * 3600
#: Seconds between two copies of the job's files.
_COPY_SECONDS = 10.0
#: Exit codes of `status --wait` after the job has ended.
_ENDED = (EXIT_DONE, JobFailed.exit_code)


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "deploy", run)
    common.add(command, "definition", "DEF", "a definition: a folder with a bundle.yaml", type=Path)
    common.add(command, "site", "SITE", settings.SITE, nargs="?")
    common.add(command, "job", "JOB", "a job of the definition (default: its first)", nargs="?")
    ours = command.add_argument_group("the deploy")
    common.flag(ours, "--dry-run", "print what each stage would do, send no bundle and submit nothing")
    common.flag(ours, "--no-follow", "end after the submission")
    text = "while the job runs, copy its changed files into DIR/JOB, as result --follow does"
    common.add(ours, "--follow", "DIR", text, type=Path)
    common.flag(ours, "--force", "deploy it even if check predicts that it will not run")
    common.repeated(ours, "--accept", "CODE", "treat this finding of lint or check as a warning; may be repeated")
    common.add(ours, "--mpi", "NAME", "use this MPI of the profile in partitions that have several")
    common.add(ours, "--key", "KEY", "sign the bundle with this key (default: the settings')", type=Path)
    text = "write the bundle to this file (default: one in the cache)"
    common.add(ours, "-o", "--output", "B.tar", text, type=Path)
    common.add(ours, "--ssh-config", "F", "use this ssh configuration instead of ~/.ssh/config", type=Path)
    jobs.add_job_options(command.add_argument_group("the job"))
    command.epilog = "Words after -- are added to the end of the job's command. A stage that fails ends the deploy "
    command.epilog += "with its exit code; run the same command again to continue from there."
    command.set_defaults(after_dashes="arguments of the job's command")


def run(args: argparse.Namespace) -> int:
    """Deploy, and return the exit code."""
    settings.fill(args, how="deployer deploy DEF SITE")
    foresight.read_sweep(args)
    return _deploy(args)


def _deploy(args: argparse.Namespace) -> int:
    shows = not (args.json or terminal.is_quiet())
    with Deploy(_request(args), _show if shows else lambda _: None, say) as deploy:
        if args.job or not deploy.definition.is_data:  # what the site would refuse, before anything is built or sent
            foresight.of_deploy(args, deploy.profile, deploy.definition.name, deploy.definition.own_jobs)
        try:
            done = deploy.run()
        except KeyboardInterrupt:
            if not deploy.submitting:
                raise
            tell_of_job(args, also=FINDS if deploy.finds_job else "")
            return EXIT_INTERRUPTED
        except (JobFailed, SpaceError, TransferError) as error:  # local errors; the site's have other classes
            if deploy.submitting:
                error.message += "; the job may have been submitted"
                error.hint = (FINDS if deploy.finds_job else "") + see_jobs(args)
            raise
        code, last = 0, done.job
        if done.job and deploy.stages[-1].state == DONE and shows:
            terminal.show(f"submitted {done.seconds:.1f} s after the start")
            sys.stdout.flush()
        if done.job and not args.no_follow:
            finish = _copy(deploy, done.job, args.follow) if args.follow else None
            code, last = (_follow_silently if args.json else _follow)(args, deploy, done)
            if finish and code != EXIT_INTERRUPTED:
                finish()
        elif done.job:
            if terminal.is_quiet() and not args.json:  # no stage has printed the result
                terminal.show(f"job {done.job} submitted as {done.job_id}")
            common.suggest(
                args, *(["jobs"] if args.array or args.sweep else ["logs", "-f"]), *site_options(args), done.job
            )
        if args.json:
            stages = [stage.record() for stage in deploy.stages]
            status = deploy.remote.site(["status", last]).record if done.job else None
            terminal.show_json({**done.record(), "stages": stages, "status": status})
    return code


def _request(args: argparse.Namespace) -> DeployRequest:
    """Return the request, with the job's options as the site's command line accepts them."""
    parser = common.Parser(add_help=False)
    jobs.add_job_options(parser)
    words = []
    for action in parser._actions:
        value, name = getattr(args, action.dest), action.option_strings[-1]
        if value == action.default:
            continue
        if isinstance(value, list):
            words += [f"{name}={item}" for item in value]
        else:
            words.append(name if value is True else f"{name}={value}")
    key, files = user_settings.path("key", args.key), settings.build_files()
    return common.from_options(DeployRequest, args, words=words, key=key, settings=files)


def _follow(args: argparse.Namespace, deploy: Deploy, done: Deployed) -> tuple[int, str]:
    """Print what the job prints until it ends, then how it ended. Return the exit code and the last job's name."""
    quiet, site = ["--quiet"] if terminal.is_quiet() else [], site_options(args)
    job, number = done.job, done.job_id
    while True:
        follow = ["logs", "--follow", job, *quiet]
        status = EXIT_DONE if args.array or args.sweep else deploy.remote.attach(follow, site).status
        after = deploy.continuation(job) if args.again and status != EXIT_INTERRUPTED else None
        if after is None:
            break
        job, number = after.text("job"), after.maybe_text("job_id") or "-"
        terminal.tell(f"deployer: job {job} continues it")
    if status != EXIT_INTERRUPTED:  # even without a log: only `status` has the outcome
        status = deploy.remote.attach(["status", job, "--wait", "--after-log", *quiet], site).status
    if status in _ENDED:
        deploy.followed(done.job)
    elif status == EXIT_INTERRUPTED:
        tell_of_job(args, job, number, "the same command follows it again; ")
    return status, job


def _copy(deploy: Deploy, job: str, target: Path) -> Callable[[], None]:
    """Begin to copy the job's files in a thread. Return a function that copies the last ones after the job's end."""
    copy, ended = following.JobCopy(job, target / job), threading.Event()

    def copy_all() -> None:
        try:
            # Silent between the lines of the job's log; `deploy` itself reports a lost connection.
            own = contextlib.nullcontext(deploy.remote)
            following.follow(lambda: own, [job], lambda _: copy, _COPY_SECONDS, lambda _: None, ended.wait)
            terminal.tell(f"copied to {target / job}")
        except DeployerError as error:
            terminal.complain(error.lines())

    thread = threading.Thread(target=copy_all, daemon=True)
    thread.start()

    def finish() -> None:
        ended.set()
        thread.join()

    return finish


def _follow_silently(args: argparse.Namespace, deploy: Deploy, done: Deployed) -> tuple[int, str]:
    """Wait until the job has ended, and with --again those that continue it. Return as ``_follow``."""
    job = done.job
    while True:
        error: DeployerError | None = None
        try:
            deploy.remote.site(["status", job, "--wait"], timeout=_LONGEST)
        except DeployerError as raised:
            # Other errors, and local ones such as a timeout, reveal nothing about the job's end.
            if raised.exit_code not in _ENDED or isinstance(raised, JobFailed):
                raise
            error = raised
        after = deploy.continuation(job) if args.again else None
        if after is None:
            break
        job = after.text("job")
    if error:
        terminal.complain(error.lines())
    deploy.followed(done.job)
    return (error.exit_code if error else EXIT_DONE), job


def _show(stage: DeployStage) -> None:
    state = terminal.word(f"{stage.state:<9}")
    progress.show_beside(f"{stage.name:<8} {state} {stage.seconds:6.1f} s  {stage.text}", sys.stdout)


def say(line: str) -> None:
    """Print the messages that the user waits for, and warnings."""
    warns = line.startswith("warning: ")
    if warns or (line.startswith(_SAID) and not terminal.is_quiet()):
        progress.show_beside(f"  {line}")
