"""explain: print the page on a finding's code or an exit code, from the documents in the program."""

import argparse
from typing import Any, List

from deployer.cli.site import common
from deployer.contract.base import pages
from deployer.contract.base.errors import UsageError
from deployer.contract.base.guess import guess
from deployer.system import terminal
from deployer.system.tool import documents


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "explain", _explain)
    text = "the code of a finding, or an exit code; none: list all"
    code = command.add_argument("code", metavar="CODE", nargs="?", help=text)
    code.words = lambda: sorted({page.code for page in documents.every_page()})  # for shell completion


def _explain(args: argparse.Namespace) -> None:
    every = documents.every_page()
    pages_shown = pages.find(every, args.code) if args.code else every
    if not pages_shown:
        near = guess(args.code, {page.code for page in every})
        raise UsageError(f"no page explains {args.code!r}{near}", "without CODE, explain lists all codes")
    lines = _list(pages_shown) if args.code is None else []
    for page in pages_shown if args.code else ():
        lines += [""] * bool(lines) + page.lines(common.wrapped, common.table)
    common.show_result(args, [page.record() for page in pages_shown], *lines)


def _list(shown: List[pages.Page]) -> List[str]:
    """Return a line per code, by topic."""
    width = max(len(page.code) for page in shown)
    lines: List[str] = []
    for name, what in pages.TOPICS.items():
        of_topic = [page for page in shown if page.topic == name]
        if not of_topic:
            continue
        lines += [""] * bool(lines) + common.wrapped(f"{name}: {what}")
        for page in of_topic:
            summary = common.shortened(page.summary, width + 4, is_name=False)
            lines.append(f"  {terminal.heading(page.code.ljust(width))}  {summary}")
    return lines
