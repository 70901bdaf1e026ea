"""The commands of a command line with their arguments, read from its parsers: for the reference."""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from deployer.cli.site.common import Front, Parser, verbs


class Argument(NamedTuple):
    """An option, or a positional argument.

    Attributes:
        names: ``-o``, ``--output``; empty for a positional argument.
        value: the name of its value; empty if it has none.
        words: its possible values, if known.
        text: its help, in one line.
        required: it must not be left out.
    """

    names: tuple[str, ...]
    value: str
    words: tuple[str, ...]
    text: str
    required: bool

    @property
    def shown(self) -> str:
        return f"{', '.join(self.names)} {self.value}".strip()


class Described(NamedTuple):
    """A command.

    Attributes:
        words: its name, or the names of a command and its subcommand.
        summary: one line.
        usage: its synopsis.
        example: a command line; may be empty.
        arguments: options and positional arguments, without subcommands.
        subcommands: the names of its subcommands.
    """

    words: tuple[str, ...]
    summary: str
    usage: str
    example: str
    arguments: tuple[Argument, ...]
    subcommands: tuple[str, ...]


def commands(front: Front) -> list[Described]:
    """Return all commands that ``--help`` lists, each followed by its subcommands."""
    summaries = {command.name: command.summary for command in front.table.values()}
    parsers = zip(front.table, front.command_parsers(), strict=True)
    return [item for name, parser in parsers for item in _described((name,), summaries[name], parser)]


def _described(words: tuple[str, ...], summary: str, parser: argparse.ArgumentParser) -> Iterator[Described]:
    subs = verbs(parser)
    names = tuple(str(name) for action in subs for name in action.choices)
    formatter = parser._get_formatter()
    shown = [action for action in parser._actions if action not in subs and action.help != argparse.SUPPRESS]
    arguments = tuple(_argument(action, formatter) for action in shown)
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    yield Described(words, summary, usage, parser.example if isinstance(parser, Parser) else "", arguments, names)
    for action in subs:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, child in action.choices.items():
            yield from _described((*words, str(name)), helps.get(str(name), child.description or ""), child)


def _argument(action: argparse.Action, formatter: argparse.HelpFormatter) -> Argument:
    more = getattr(action, "words", tuple)  # a function that returns known words; others are possible
    words = tuple(map(str, action.choices or more()))
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or (action.dest if not action.option_strings else action.dest.upper()))
    text = " ".join(formatter._expand_help(action).split()) if action.help else ""
    required = action.required if action.option_strings else action.nargs not in ("?", "*")
    return Argument(tuple(action.option_strings), value, words, text, required)
