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
from deployer.contract.base.shell import quoted
from deployer.system import files, terminal
from deployer.system.tool import documents


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "man", _man, has_record=False)
    common.add(command, "folder", "DIR", "where to write them, such as ~/.local/share/man/man1", type=Path)


def _man(args: argparse.Namespace) -> None:
    texts = pages_of(args.front, site.front())
    with files.errors_named(f"write {args.folder}"):
        os.makedirs(args.folder, exist_ok=True)
    for name, text in texts.items():
        files.write_text(str(args.folder / name), text)
    terminal.show(f"wrote {len(texts)} pages: {args.folder}")
    terminal.hint("next", f"man -l {quoted([str(args.folder / 'deployer.1')])}")  # maybe not in the path of `man`


def pages_of(*fronts: Front) -> dict[str, str]:
    """Return man pages by file name: one per command line and one per command."""
    written = {}
    for front in fronts:
        described = commands(front)
        written[front.prog] = _overview(front, described)
        for command in described:
            name = "-".join([front.prog, *command.words])
            written[name] = _page(name, front.prog, command)
    return {f"{name}.1": "\n".join(lines) + "\n" for name, lines in written.items()}


def _overview(front: Front, described: list[Described]) -> Iterator[str]:
    yield from _head(front.prog, " ".join(front.text.split()).rstrip("."))
    yield from (".SH SYNOPSIS", f".B {_roff(front.prog)}", "COMMAND ...", ".SH COMMANDS")
    examples = {command.words: command.example for command in described}
    for title, listed in front.groups.items():
        yield f".SS {_roff(title)}"
        for command in listed:
            yield from (".TP", f".B {_roff(command.name)}", _roff(command.summary) + ".")
            yield from (".br", f"Example: {_roff(examples[(command.name,)])}")
    yield ".SH ENVIRONMENT"
    reader = variables.SITE if front.prog == "deployer.pyz" else variables.LAPTOP
    for variable in variables.read_by(variables.BOTH, reader):
        yield from (".TP", f".B {_roff(', '.join(variable.names))}", _roff(variable.text))
    yield ".SH EXIT STATUS"
    for page in documents.every_page():
        if page.topic == "exit codes":
            yield from (".TP", f".B {page.code}", _roff(page.summary))
    yield from (
        ".SH SEE ALSO",
        ", ".join(f"{_roff(front.prog)}\\-{_roff(command.words[0])}(1)" for command in described),
    )


def _page(name: str, prog: str, command: Described) -> Iterator[str]:
    yield from _head(name, command.summary)
    yield from (".SH SYNOPSIS", _roff(command.usage), ".SH OPTIONS")
    for argument in command.arguments:
        yield from (".TP", f".B {_roff(argument.shown)}", _roff(argument.text))
    if command.subcommands:
        yield from (".SH COMMANDS", ", ".join(map(_roff, command.subcommands)))
    if command.example:
        yield from (".SH EXAMPLE", ".nf", _roff(command.example), ".fi")
    yield from (".SH SEE ALSO", f"{_roff(prog)}(1)")


def _head(name: str, summary: str) -> Iterator[str]:
    today = dt.datetime.now(dt.timezone.utc).date()
    yield f'.TH "{_roff(name.upper())}" 1 "{today}" "deployer {__version__}"'
    yield from (".SH NAME", f"{_roff(name)} \\- {_roff(summary)}")


def _roff(text: str) -> str:
    """Return one line of text in the form that roff prints unchanged."""
    shown = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + shown if shown.startswith((".", "'")) else shown
