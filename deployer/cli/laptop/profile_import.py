"""deployer profile import: draft a profile from Slurm's configuration files."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.importers.draft import Draft
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
        with files.published(str(args.output)) as stream:
            stream.write(draft.yaml().encode())
    if args.json:
        record = {
            "profile": draft.tree(),
            "sources": draft.sources(),
            "not_expressed": [each.record() for each in draft.unexpressed],
        }
        terminal.show_json(record)
        return
    if not args.output:
        terminal.show_text(draft.yaml())
    _summary(draft, args.output)
    if args.output:
        common.suggest(args, "profile", "validate", str(args.output))


def _summary(draft: Draft, output: Path | None) -> None:
    """Print what was imported and what was not, separate from a draft on stdout."""
    stream = sys.stdout if output else sys.stderr
    kinds = Counter(each.kind for each in draft.unexpressed)
    where = f" in {output}" if output else ""
    terminal.show(f"{counted(draft.count(), 'fact')}{where}; not expressed: {len(draft.unexpressed)}", stream=stream)
    if output:
        for each in draft.unexpressed:
            terminal.show(*common.wrapped(str(each), "  ", "    "), stream=stream)
    else:
        for kind, count in kinds.most_common():
            terminal.show(f"  {count:4} {kind}", stream=stream)
