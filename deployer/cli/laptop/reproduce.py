"""deployer reproduce: build a bundle's image again, and compare."""

import argparse
from pathlib import Path
from typing import Any

from deployer.cli.laptop import build, settings
from deployer.cli.site import common
from deployer.connected.ground import caches, progress
from deployer.contract.base.errors import Refused
from deployer.contract.base.text import counted
from deployer.system import terminal

#: The most files that are listed without --files.
_LISTED = 20


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "reproduce", run)
    common.add(command, "bundle", "B.tar", "a bundle that `pack` wrote of a definition; its Dockerfile will be run")
    text = "the bundle's definition, for files that the bundle does not carry"
    common.add(command, "definition", "DEF", text, nargs="?", type=Path)
    build.add_settings(command)
    common.flag(command, "--files", f"list every file that differs, not only {_LISTED}")


def run(args: argparse.Namespace) -> int:
    """Build again, and print what differs. Returns 3 if anything does."""
    from deployer.connected.deploy.reproduce import reproduce
    from deployer.connected.image.build import BuildOptions

    options = BuildOptions(**settings.build_files(args), builder=args.builder)
    with caches.in_use():
        made = reproduce(
            args.bundle,
            args.definition,
            options,
            lambda line: None if terminal.is_quiet() else progress.show_beside(line),
        )
    code = 0 if made.reproduced else Refused.exit_code
    if common.as_json(args, made.record()):
        return code
    if made.reproduced:
        terminal.show(f"reproduced: the new build has the same layer sha256:{made.layer}, settings and wheels")
        return code
    terminal.show(f"not reproduced: {counted(len(made.files), 'file')} differ", f"layer sha256:{made.layer}")
    terminal.show(f"again sha256:{made.layer_again}", *(f"the image's {name} differs" for name in made.settings))
    terminal.show(*(package.line() for package in made.packages))
    for file in made.files if args.files else made.files[:_LISTED]:
        terminal.show(f"{file.change} {file.path}: {file.reason}")
    if len(made.files) > _LISTED and not args.files:
        terminal.show(f"  ... and {len(made.files) - _LISTED} more (--files lists all)")
    return code
