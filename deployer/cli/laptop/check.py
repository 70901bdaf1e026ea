"""deployer check: the verdict on a bundle at a site."""

import argparse
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any

from deployer.cli.laptop import named_bundle, settings
from deployer.cli.laptop.remote import ssh_options
from deployer.cli.site import common
from deployer.connected.check import check as checking
from deployer.connected.check.checking import Checking
from deployer.connected.ground import caches
from deployer.connected.image.lint import is_own
from deployer.connected.transfer.published import profile_of
from deployer.connected.transfer.push import plans_in
from deployer.contract.base.errors import Refused, Unknown
from deployer.contract.rules.verdict import REFUSE, UNKNOWN
from deployer.contract.site.choose import explained
from deployer.system import terminal
from deployer.system.trust.verify import begin, opened

_EXIT = {REFUSE: Refused.exit_code, UNKNOWN: Unknown.exit_code}


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "check", run)
    common.add(command, "bundle", "B.tar", named_bundle.TEXT)
    common.add(command, "job", "JOB", "judge only this job of the bundle (default: all jobs)", nargs="?")
    command.add_argument("--site", help=settings.SITE)
    common.add(command, "--ssh-config", "F", "with ssh:HOST: use this ssh configuration", type=Path)
    text = "judge only this partition (default: each; the first decides the exit code)"
    command.add_argument("--partition", help=text)
    common.add_plan_choice(command)
    common.repeated(command, "--accept", "CODE", "treat this rule as a warning")
    common.flag(command, "--no-cache", "do not read or write the cache of file facts")
    command.epilog = "Exit: 0 RUN or WARN, 3 REFUSE, 8 UNKNOWN (facts missing). `deployer explain` lists the rules."


def run(args: argparse.Namespace) -> int:
    """Print the verdict and its reasons."""
    settings.fill(args)
    today = date.today()  # noqa: DTZ011  facts have a date, no time
    site = profile_of(args.site, args.ssh_config)
    profile = site.selected([args.partition] if args.partition else [], args.mpi, args.launch)
    bundle = named_bundle.path_of(args, site.selected([], args.mpi, args.launch), args.accept)
    accepted = args.accept if bundle == args.bundle else [code for code in args.accept if not is_own(code)]
    rules = Checking(accepted, None if args.no_cache else caches.LINK.folder, today)
    verdict, *others = checking.check_all(bundle, profile, rules, args.job)
    exit_code = _EXIT.get(verdict.checked.verdict, 0)
    if common.as_json(args, {**verdict.record(), "others": [other.record() for other in others]}):
        return exit_code
    for judged in (verdict, *others):
        partition = f", partition {judged.partition}" if judged.partition else ""
        terminal.show(f"{judged.checked.said}: {judged.bundle} on {judged.site}{partition}")
        common.show(judged.checked, explained(judged.plan) if judged.plan else ())
    if verdict.checked.verdict != REFUSE:
        codes = {finding.code for finding in verdict.checked.findings}
        if bundle == args.bundle:
            suggest_push(args, bundle, args.site, site.name, [code for code in args.accept if code in codes])
        else:
            options = [f"--accept={code}" for code in args.accept]
            common.suggest(args, "deploy", args.bundle, args.site, *ssh_options(args), *options)
    return exit_code


def suggest_push(
    args: argparse.Namespace, bundle: str, site: str, name: str = "", accepted: Collection[str] = ()
) -> None:
    """Print the command that sends a checked bundle, or one that packs it with a plan that ``push`` accepts.

    Args:
        site: the site as the user wrote it.
        name: the name in the site's profile; empty: the profile is read again.
        accepted: codes that the plan must accept: ``push`` uses only the codes in the plan.
    """
    with opened(bundle) as stream:
        begun = begin(stream, bundle)
        manifest = begun.manifest
        name = name or profile_of(site, args.ssh_config).name
        may_go = manifest.is_data or (name in plans_in(manifest) and not {*accepted} - checking.accepted(begun, name))
    if may_go:
        common.suggest(args, "push", bundle, site, *ssh_options(args))
    else:
        options = [f"--accept={code}" for code in dict.fromkeys(accepted)]
        common.suggest(args, "pack", "DEF", "--site", site, *options, "-o", bundle)
