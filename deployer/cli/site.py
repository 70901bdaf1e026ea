"""``python3 deployer.pyz``: the site half's front end."""

import os
import sys
from typing import List, Optional

from deployer import __version__
from deployer.cli import common, jobs
from deployer.contract.errors import UsageError
from deployer.site import store


def main(argv: Optional[List[str]] = None) -> int:
    """Run one command and return its exit code."""
    if argv is None:
        common.show_anything()
    words = sys.argv[1:] if argv is None else argv
    parser = common.Parser(prog="deployer.pyz", description="Install and run deployer's bundles on this site.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=common.Parser)
    if not (words[:1] and words[0] in jobs.INTERNAL):
        # Each rank of a job starts this file anew and compiles what it imports: it gets no more than it needs.
        from deployer.cli import capture, doctor, images, transfers

        capture.add_parsers(subparsers)
        doctor.add_parsers(subparsers)
        images.add_parsers(subparsers)
        transfers.add_parsers(subparsers)
    jobs.add_parsers(subparsers)
    return common.run(parser, words, _log_folder(words))


def _log_folder(words: List[str]) -> Optional[str]:
    """Return ROOT/logs where a root is known; without one there is no place of the user's to write to.

    What job.sh calls on every node keeps no log file: its output is the job's, and many would meet in one folder.
    """
    if words[:1] and words[0] in jobs.INTERNAL:
        return None
    option = words[words.index("--root") + 1] if "--root" in words[:-1] else None
    try:
        root = store.locate(option).root
    except UsageError:
        return None
    return os.path.join(root, "logs") if os.path.isdir(root) else None
