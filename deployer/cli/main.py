"""``deployer``: the connected side's front end."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from deployer import __version__
from deployer.cli import common
from deployer.connected import xdg

#: The commands of each module of ``deployer.cli``. Only the one that is asked for is imported: some take a while.
COMMANDS = {
    "definitions": ("init", "lint", "schema"),
    "build": ("build",),
    "pack": ("pack",),
    "inspection": ("inspect",),
    "bundles": ("plan", "sign", "push", "diff", "pyz"),
    "profiles": ("profile",),
    "cache": ("cache",),
    "check": ("check",),
    "images": ("verify",),
    "remote": ("run", "status", "logs", "cancel", "doctor", "squash", "list", "remove"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    text = "Build, pack and push deep-learning images to sites without internet, and run them there."
    parser = common.Parser(prog="deployer", description=text)
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=common.Parser)
    add_parsers(subparsers, words[0] if words else "")
    return common.run(parser, words, str(xdg.state_folder("logs")))


def add_parsers(subparsers: Any, wanted: str) -> None:
    """Register the commands of the module that has ``wanted``; of all of them where none has, to list them."""
    modules = [name for name, commands in COMMANDS.items() if wanted in commands] or list(COMMANDS)
    for name in modules:
        module = importlib.import_module(f"deployer.cli.{name}")
        (module.add_verify if name == "images" else module.add_parsers)(subparsers)
