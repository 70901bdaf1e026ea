"""deployer completion: shell scripts that complete deployer's commands, options and values."""

import argparse
from typing import Any

from deployer.cli.site import common
from deployer.cli.site.common import Front
from deployer.system import terminal

_SHELLS = ("bash", "fish", "tcsh", "zsh")


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "completion", _completion, has_record=False)
    command.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=f"one of {', '.join(_SHELLS)}")


def _completion(args: argparse.Namespace) -> None:
    terminal.show_text(script(args.front, args.shell))


def script(front: Front, shell: str) -> str:
    """Return the script for a shell."""
    import shtab  # only here: nothing else needs it

    whole = argparse.ArgumentParser(front.prog)
    whole.add_argument("--version", action="version", help="show the version and exit")
    commands = whole.add_subparsers()
    for command, parser in zip(front.table.values(), front.command_parsers(), strict=True):
        _complete_values(parser, shtab.FILE)
        commands.add_parser(command.name, parents=[parser], add_help=False, help=command.summary)
    return shtab.complete(whole, shell).rstrip()


def _complete_values(parser: argparse.ArgumentParser, files: object) -> None:
    """Let a shell complete argument values with known words, otherwise with files."""
    for verb in (verb for action in common.verbs(parser) for verb in action.choices.values()):
        _complete_values(verb, files)
    for action in parser._actions:
        if hasattr(action, "words"):
            action.choices = action.words()
        elif action.nargs != 0 and action.choices is None:
            vars(action)["complete"] = files  # shtab reads it
