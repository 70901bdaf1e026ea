"""``deployer``: the connected side's front end."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deployer import __version__
from deployer.cli import build, bundles, common, images, remote


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    text = "Build, pack and push deep-learning images to sites without internet, and run them there."
    parser = common.Parser(prog="deployer", description=text)
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=common.Parser)
    build.add_parser(subparsers)
    bundles.add_parsers(subparsers)
    images.add_verify(subparsers)
    remote.add_parsers(subparsers)
    return common.run(parser, words, str(log_folder()))


def log_folder() -> Path:
    """Return where each command's log file goes, by the XDG base directory specification."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "deployer" / "logs"
