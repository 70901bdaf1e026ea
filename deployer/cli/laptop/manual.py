"""deployer man: man pages for both command lines, generated from their parsers."""

import argparse
import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deployer import __version__
from deployer.cli.laptop import variables
from deployer.cli.laptop.command_tree import Described, commands
from deployer.cli.site import common
from deployer.cli.site import main as site
from deployer.cli.site.common import Front
from deployer.contract.base import pages
from deployer.contract.base.shell import quoted
from deployer.system import files, terminal
from deployer.system.tool import documents


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "man", _man, has_record=False)
    common.add(command, "folder", "DIR", "where to write them, such as ~/.local/share/man/man1", type=Path)


def _man(args: argparse.Namespace) -> None:
    found = pages_of(args.front, site.front())
    with files.errors_named(f"write {args.folder}"):
        os.makedirs(args.folder, exist_ok=True)
    for name, text in found.items():
        files.write_text(str(args.folder / name), text)
    terminal.show(f"wrote {len(found)} pages: {args.folder}")
    terminal.hint("next", f"man -l {quoted([str(args.folder / 'deployer.1')])}")  # maybe not in the path of `man`


def pages_of(*fronts: Front) -> dict[str, str]:
    """Return man pages by file name: one per command line and one per command."""
    made = {}
    for front in fronts:
        found = commands(front)
        made[front.prog] = _overview(front, found)
        for each in found:
            name = "-".join([front.prog, *each.words])
            made[name] = _page(name, front.prog, each)
    return {f"{name}.1": "\n".join(lines) + "\n" for name, lines in made.items()}


def _overview(front: Front, found: list[Described]) -> Iterator[str]:
    yield from _head(front.prog, " ".join(front.text.split()).rstrip("."))
    yield from (".SH SYNOPSIS", f".B {_roff(front.prog)}", "COMMAND ...", ".SH COMMANDS")
    examples = {each.words: each.example for each in found}
    for title, listed in front.groups.items():
        yield f".SS {_roff(title)}"
        for command in listed:
            yield from (".TP", f".B {_roff(command.name)}", _roff(command.summary) + ".")
            yield from (".br", f"Example: {_roff(examples[(command.name,)])}")
    yield ".SH ENVIRONMENT"
    for variable in variables.read_by(
        variables.BOTH, variables.SITE if front.prog == "deployer.pyz" else variables.LAPTOP
    ):
        yield from (".TP", f".B {_roff(', '.join(variable.names))}", _roff(variable.text))
    yield ".SH EXIT STATUS"
    for page in pages.pages(documents.read()):
        if page.topic == "exit codes":
            yield from (".TP", f".B {page.code}", _roff(page.summary))
    yield from (".SH SEE ALSO", ", ".join(f"{_roff(front.prog)}\\-{_roff(each.words[0])}(1)" for each in found))


def _page(name: str, prog: str, each: Described) -> Iterator[str]:
    yield from _head(name, each.summary)
    yield from (".SH SYNOPSIS", _roff(each.usage), ".SH OPTIONS")
    for argument in each.arguments:
        yield from (
            ".TP",
            f".B {_roff(', '.join(argument.names) + ' ' + argument.value).strip()}",
            _roff(argument.text),
        )
    if each.subcommands:
        yield from (".SH COMMANDS", ", ".join(map(_roff, each.subcommands)))
    if each.example:
        yield from (".SH EXAMPLE", ".nf", _roff(each.example), ".fi")
    yield from (".SH SEE ALSO", f"{_roff(prog)}(1)")


def _head(name: str, summary: str) -> Iterator[str]:
    today = dt.datetime.now(dt.timezone.utc).date()
    yield f'.TH "{_roff(name.upper())}" 1 "{today}" "deployer {__version__}"'
    yield from (".SH NAME", f"{_roff(name)} \\- {_roff(summary)}")


def _roff(text: str) -> str:
    """Return one line of text in the form that roff prints unchanged."""
    shown = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + shown if shown.startswith((".", "'")) else shown
