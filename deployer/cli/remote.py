"""The site's commands from the laptop: run, status, logs, cancel, doctor with ``--site``, over one ssh connection.

The words after the site's options are the site half's own: they go there as they are, so there is one front end.
"""

import argparse
from pathlib import Path
from typing import Any

from deployer.connected import profile as profiles
from deployer.connected.remote import Remote

_COMMANDS = {
    "run": "submit a job on the site",
    "status": "show a job of the site",
    "logs": "show what a job printed",
    "cancel": "cancel a job of the site",
    "doctor": "climb from the site's kernel to Horovod on two nodes, and stop at what is broken",
    "squash": "make the SquashFS file of an image that is installed on the site",
    "list": "show the images that are installed on the site",
    "remove": "remove an installed image from the site",
}


def add_parsers(subparsers: Any) -> None:
    """Register the commands that are carried out over there."""
    for name, text in _COMMANDS.items():
        command = subparsers.add_parser(name, help=text, description=text + "; further words are the site's own")
        command.add_argument("--site", required=True, help="a curated profile's name, or a profile's path")
        command.add_argument("--ssh-config", metavar="F", type=Path, help="in place of ~/.ssh/config")
        command.set_defaults(run=_forward, forwards=True)


def _forward(args: argparse.Namespace) -> int:
    profile = profiles.load(args.site)
    words = [args.command, *args.unknown]
    if args.command in ("run", "doctor") and not any(word.partition("=")[0] == "--plan" for word in args.unknown):
        words += ["--plan", profile.name]  # the bundle may have plans for other sites as well
    if args.rest:
        words += ["--", *args.rest]
    with Remote(profile, args.ssh_config) as remote:
        remote.prepare()
        return remote.attach(words)
