"""The site's commands on the laptop with ``--site``: run, status, logs, cancel, doctor, ... over one ssh connection.

The parsers are those of the site's deployer, so ``--help`` lists all options, and wrong arguments are reported before
connecting. The arguments are passed on unchanged.
"""

import argparse
import contextlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployer.cli.laptop import settings
from deployer.cli.site import common
from deployer.connected.ground import user_settings
from deployer.contract.base.errors import EXIT_INTERRUPTED, DeployerError, Refused
from deployer.contract.base.shell import quoted
from deployer.contract.base.text import is_label
from deployer.system import terminal

if TYPE_CHECKING:
    from deployer.connected.transfer.remote import Remote

#: The commands that run on the site, and the modules of ``cli.site`` with their parsers, which are slow to import.
_COMMANDS = {
    **dict.fromkeys(("run", "retry", "jobs", "status", "logs", "cancel", "notebook", "shell"), "jobs"),
    "doctor": "doctor", "squash": "installs", **dict.fromkeys(("list", "remove", "gc"), "images"),
}  # fmt: skip
#: Options of `run` that do not change the job.
_OF_THIS_SIDE = ("--wait", "--json", "-q", "--quiet")
#: The start of a hint after an unanswered submission.
FINDS = "the same command again follows it if there is one; "


def add_parsers(subparsers: Any) -> None:
    """Register the commands that run on the site."""
    theirs = common.Parser(prog="deployer").add_subparsers(parser_class=common.Parser, prog="deployer")
    for module in dict.fromkeys(_COMMANDS.values()):
        importlib.import_module(f"deployer.cli.site.{module}").add_parsers(theirs)
    for name in _COMMANDS:
        command = subparsers.choices[name] = theirs.choices[name]
        add_site(command.add_argument_group("the site"))
        command.set_defaults(run=_forward)


def add_site(parser: Any, here: str = "") -> None:
    """Add the options that select a site. ``here`` describes the default without settings."""
    text = "a profile's name or path, or ssh:HOST for what that site publishes"
    common.add(parser, "--site", "SITE", f"{text} (default: {here or 'that of the settings'})")
    common.add(parser, "--ssh-config", "F", "use this ssh configuration instead of ~/.ssh/config", type=Path)


def _forward(args: argparse.Namespace) -> int:
    from deployer.connected.transfer.published import profile_of
    from deployer.connected.transfer.remote import Remote

    settings.fill(args)
    profile = profile_of(args.site, args.ssh_config)
    if args.command == "run":
        from deployer.cli.laptop import foresight

        foresight.read_sweep(args)
        foresight.of_run(args, profile)
    if args.command == "notebook" and profile.login.reaches_nodes is False:
        hint = "`shell` needs no port; after a change at the site, capture it again"
        raise Refused(f"{profile.name}: its login node cannot connect to ports of nodes, which a notebook needs", hint)
    ours = common.Parser(add_help=False)
    add_site(ours)
    ours.add_argument("--sweep")
    behind = args.words[args.words.index(args.command) + 1 :]
    words = [args.command, *map(str, ours.parse_known_args(behind)[1])]  # without the laptop's options
    if terminal.is_quiet() and not {"-q", "--quiet"} & {*words}:
        words.insert(1, "--quiet")  # it was given before the command
    if hasattr(args, "plan") and not args.plan:
        words += ["--plan", profile.name]  # the bundle may also have plans for other sites
    if getattr(args, "sweep", None):
        words.append(f"--sweep={args.sweep}")
    if args.rest:
        words += ["--", *args.rest]
    with Remote(profile, args.ssh_config) as remote:
        remote.prepare()
        if args.command == "run" and not args.dry_run:
            return _submit(args, remote, profile.name, words)
        if args.command == "notebook":
            from deployer.cli.laptop import notebook

            return notebook.show(remote, words, site_options(args), args.port)
        if args.command == "shell":
            return remote.on_terminal([*words, "--in-job"])
        # doctor checks what a job would find, and jobs start as after a login.
        return remote.attach(words, site_options(args), login=args.command == "doctor").status


def _submit(args: argparse.Namespace, remote: "Remote", site: str, words: Sequence[str]) -> int:
    """Submit a job, or continue with the job of the same command if the site has not answered it before."""
    from deployer.connected.transfer.submission import Submission, is_active

    name = args.image.partition("@")[0].partition(":")[0]
    if not is_label(name):  # the site has no such image
        return remote.attach(words, site_options(args)).status
    end = words.index("--") if "--" in words else len(words)
    command = [word for word in words[:end] if word not in _OF_THIS_SIDE] + list(words[end:])
    with contextlib.closing(Submission("run", name, site, command)) as earlier:
        if earlier.is_reported and not is_active(remote, earlier.job):  # the user may have observed that
            earlier.answered()
    with contextlib.closing(Submission("run", name, site, command)) as submission:
        try:
            submission.record()
        except DeployerError as error:
            terminal.warn(f"not recorded, so the same command again may submit a second job: {error.message}")
        words = [words[0], "--token", submission.token, *words[1:]]
        options = site_options(args)
        done = remote.attach(words, options, recorded=submission.recorded, reported=submission.reported)
        if done.status == EXIT_INTERRUPTED:
            tell_of_job(args, done.job, done.number, FINDS if submission.recorded and not done.job else "")
        if done.job:
            submission.answered()
        elif done.status != EXIT_INTERRUPTED:
            submission.ended(done.status, remote)
        return done.status


def tell_of_job(args: argparse.Namespace, job: str = "", number: str = "", also: str = "") -> None:
    """After Ctrl-C, print that the job continues, and the command that ends it.

    Args:
        job: the job's name; empty: the site has not reported one.
        number: the scheduler's job number.
        also: a hint to print before the command.
    """
    if job:
        message = f"interrupted: job {job} ({number}) continues on the site"
        hint = f"to end it: {quoted(['deployer', 'cancel', *site_options(args), job])}"
    else:
        message, hint = "interrupted before the site reported a job; it may have been submitted", see_jobs(args)
    terminal.complain([f"deployer: {message}", f"hint: {also}{hint}"])


def see_jobs(args: argparse.Namespace) -> str:
    """Return the hint for checking whether a job was submitted."""
    return f"see: {quoted(['deployer', 'jobs', *site_options(args)])}"


def site_options(args: argparse.Namespace) -> list[str]:
    """Return the options that select the site in another command; empty if the settings select it."""
    return ["--site", args.site, *ssh_options(args)]


def ssh_options(args: argparse.Namespace) -> list[str]:
    """Return the option that selects the ssh configuration in another command."""
    config = args.ssh_config and str(args.ssh_config)
    return ["--ssh-config", config] if config and config != user_settings.setting("ssh_config") else []
