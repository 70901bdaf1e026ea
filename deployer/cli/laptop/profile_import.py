"""deployer profile import: draft a profile from Slurm's configuration files."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.connected.site_profile.importers import files as importers
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.system import files, terminal

_EPILOG = (
    "Formats: slurm.conf with gres.conf and included files. Several files of one cluster make one draft. The files are "
    "read, never run. The draft has only what is certain, with the line of each fact as a comment. The rest of the "
    "files is in its notes."
)


def add_parser(verbs: Any) -> None:
    """Register ``profile import``."""
    verb = common.add_command(verbs, "import", _import, "draft a profile from Slurm's configuration files")
    verb.epilog = _EPILOG
    common.add(verb, "files", "FILE", "a configuration file of the site", nargs="+", type=Path)
    common.add(verb, "-o", "--output", "FILE", "write the draft to this file instead of standard output", type=Path)
    verb.add_argument("--name", help="the profile's name (default: the cluster's or the file's)")
    verb.example = "deployer profile import slurm.conf -o draft.yaml"


def _import(args: argparse.Namespace) -> None:
    if args.output and files.lexists(str(args.output)):
        raise UsageError(f"{args.output} exists", "remove it, or select another file with -o")
    draft = importers.draft(args.files, args.name)
    if args.output:
        files.write_text(str(args.output), draft.yaml())
    left_out = [item.record() for item in draft.unexpressed]
    if common.as_json(args, {"profile": draft.tree(), "sources": draft.sources(), "not_expressed": left_out}):
        return
    if not args.output:
        terminal.show_text(draft.yaml())
    # The summary is separate from a draft on standard output.
    stream = sys.stdout if args.output else sys.stderr
    where = f" in {args.output}" if args.output else ""
    terminal.show(f"{counted(draft.count(), 'fact')}{where}; not expressed: {len(draft.unexpressed)}", stream=stream)
    if args.output:
        for item in draft.unexpressed:
            terminal.show(*common.wrapped(str(item), "  ", "    "), stream=stream)
        common.suggest(args, "profile", "validate", str(args.output))
    else:
        for kind, count in Counter(item.kind for item in draft.unexpressed).most_common():
            terminal.show(f"  {count:4} {kind}", stream=stream)
