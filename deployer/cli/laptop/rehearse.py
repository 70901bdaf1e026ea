"""deployer rehearse: run a job on this machine as the site would, without a network."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deployer.cli.laptop import named_bundle, settings
from deployer.cli.site import common
from deployer.connected.rehearse.ask.request import RehearsalRequest, job_of
from deployer.connected.rehearse.ask.ways import WAYS, plan_of, rehearsed
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import limits
from deployer.contract.bundle.job import check_time, seconds
from deployer.contract.rehearsal.rehearsal import CODES, Rehearsal
from deployer.contract.rules.findings import refused
from deployer.contract.rules.verdict import RUN
from deployer.system import terminal
from deployer.system.trust.verify import begin, opened

if TYPE_CHECKING:
    from deployer.contract.site.plan import Plan


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "rehearse", run)
    common.add(command, "bundle", "B.tar", named_bundle.TEXT)
    common.add(command, "job", "JOB", "a job of the bundle (default: its first)", nargs="?")
    text = "use this site's memory, folders and variables: a profile's name or path, or ssh:HOST"
    command.add_argument("--site", help=text)
    command.add_argument("--partition", help="with --site: of this partition (default: the first)")
    common.add(command, "--ranks", "N", "number of ranks (default: 2, if the job has as many)", type=int)
    text = "end the job after this time, as the site does: 90s, 2m, 1h or [D-]HH:MM:SS (default: %(default)s)"
    common.add(command, "--time", "TIME", text, type=check_time, default="2m")
    text = "bind this folder or file into the container, as run does; may be repeated"
    common.repeated(command, "--bind", "SRC[:DST]", text)
    text = "install this bundle too, whose data the job needs; may be repeated"
    common.repeated(command, "--data", "BUNDLE.tar", text)
    common.repeated(command, "--accept", "CODE", "treat this rule as a warning; the record names it")
    text = "end with 3 for WARN and UNKNOWN too, for instance after a network error that the program swallowed"
    common.flag(command, "--strict", text)
    text = "where the simulated site is made (default: namespaces if this machine can make them, else docker)"
    command.add_argument("--engine", choices=WAYS, help=text)
    command.epilog = (
        "Words after -- are added to the end of the job's command. "
        "Exit: 0 RUN, WARN or UNKNOWN (with --strict: RUN alone), else 3. `deployer explain` lists the rules."
    )
    command.set_defaults(after_dashes="arguments of the job's command")


def run(args: argparse.Namespace) -> int:
    """Rehearse the job and print what it tried to access."""
    known = [*CODES, *limits.CODES]
    unknown = sorted(set(args.accept) - set(known))
    if unknown:
        raise UsageError(f"no rule of a rehearsal has the code {', '.join(unknown)}", f"codes: {', '.join(known)}")
    if args.site:
        from deployer.connected.transfer.published import profile_of

        site = profile_of(args.site).selected([], None, None)
        bundle = named_bundle.path_of(args, site)
        plan: Plan | None = plan_of(bundle, site, args.partition)
    else:
        bundle, plan = named_bundle.path_of(args, None), None
    time = seconds(check_time(args.time))
    request = RehearsalRequest(bundle, args.job, plan, args.ranks, time, args.bind, args.rest, args.data)
    _foresee(request, args.accept)
    accepted = [code for code in args.accept if code in CODES]
    done = rehearsed(request, accepted, args.engine, (lambda _: None) if args.json else terminal.tell)
    outcome = done.outcome
    if not common.as_json(args, {**outcome.record(), "folder": str(done.folder), "engine": done.way}):
        show(outcome)
        terminal.show(f"simulated by: {done.way}", f"log: {done.folder}/output.log")
    sys.stdout.flush()  # print the report before any later error
    if args.strict and outcome.checked.verdict != RUN:
        return Refused.exit_code
    if not outcome.exit_code:
        name, send = settings.site_for_hint(args.site), "push" if bundle == args.bundle else "deploy"
        common.suggest(args, *((send, args.bundle, name) if args.site else ("check", args.bundle, "--site", name)))
    return outcome.exit_code


def show(outcome: Rehearsal) -> None:
    """Print the report of a rehearsal."""
    terminal.show(*outcome.lines())
    if outcome.findings and not terminal.is_quiet():
        terminal.show(common.more(item.finding.code for item in outcome.findings))


def _foresee(request: RehearsalRequest, accepted: Sequence[str]) -> None:
    """Raise UsageError for an unknown job, and Refused for a job whose numbers the site does not permit."""
    with opened(request.bundle) as stream:
        job = job_of(begin(stream, request.bundle).manifest, request)
    for against in limits.of_job(request.site, job) if request.site else ():
        if against.code not in accepted:
            raise refused(against)
        terminal.warn(f"{against} (accepted)")
