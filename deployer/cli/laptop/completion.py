"""deployer completion: what shells need to complete deployer's commands, options and their values."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from deployer.cli.laptop.command_tree import Argument, Described, commands
from deployer.contract.shell import quoted
from deployer.system import terminal


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = subparsers.add_parser("completion")
    command.add_argument("shell", metavar="SHELL", choices=sorted(_SHELLS), help=f"one of {', '.join(sorted(_SHELLS))}")
    command.set_defaults(run=_completion)


def _completion(args: argparse.Namespace) -> int:
    terminal.show_text("\n".join(_SHELLS[args.shell](commands(args.front))))
    return 0


def bash(found: Sequence[Described]) -> Iterator[str]:
    """Yield the lines of a script for bash. What has no words of its own is completed as a file."""
    yield "# Completion of deployer for bash, made by `deployer completion bash`."
    yield "_deployer() {"
    yield "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= options="
    yield '    case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in'
    for each in sorted(found, key=lambda each: -len(each.words)):
        yield f"        {quoted([' '.join(each.words)])}' '*)"
        yield f"            words={quoted([' '.join(_words(each))])}"
        yield f"            options={quoted([' '.join(_options(each))])}"
        values = [argument for argument in each.arguments if argument.names and argument.value]
        if values:
            yield '            case "$before" in'
            for argument in values:
                one = quoted([" ".join(argument.words)])
                yield f"                {'|'.join(argument.names)}) words={one} options= ;;"
            yield "            esac"
        yield "            ;;"
    top = [each.words[0] for each in found if len(each.words) == 1]
    yield f"        ' ') words={quoted([' '.join(top)])} options='--help --version' ;;"
    yield "    esac"
    yield "    case $current in -*) words=$options ;; esac"
    yield '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")'
    yield "}"
    yield "complete -o default -F _deployer deployer"


def zsh(found: Sequence[Described]) -> Iterator[str]:
    """Yield the lines of a script for zsh."""
    yield "#compdef deployer"
    yield "# Completion of deployer for zsh, made by `deployer completion zsh`."
    yield "_deployer() {"
    yield "    local context state line"
    yield "    if (( CURRENT == 2 )); then"
    yield "        local -a commands=("
    yield from (f"            {quoted([_colons(each.words[0]) + ':' + each.summary])}" for each in _top(found))
    yield "        )"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    for depth in (2, 1):
        yield f'    case "${{words[2,{depth + 1}]}}" in'
        for each in [each for each in found if len(each.words) == depth]:
            yield f"        {quoted([' '.join(each.words)])})"
            yield f"            shift {depth} words; (( CURRENT -= {depth} ))"
            arguments = [word for argument in each.arguments if argument.names for word in _zsh_option(argument)]
            if each.subcommands:
                arguments.append(f"1:command:({' '.join(each.subcommands)})")
            arguments += _zsh_positionals([argument for argument in each.arguments if not argument.names])
            yield "            _arguments " + " ".join(quoted([word]) for word in arguments)
            yield "            return ;;"
        yield "    esac"
    yield "}"
    # A file _deployer in fpath is run at the first completion, as that function. Sourced, it only defines it.
    yield 'if [[ $funcstack[1] = _deployer ]]; then _deployer "$@"; else compdef _deployer deployer; fi'


def fish(found: Sequence[Described]) -> Iterator[str]:
    """Yield the lines of a script for fish."""
    yield "# Completion of deployer for fish, made by `deployer completion fish`."
    for each in _top(found):
        yield f"complete -c deployer -n __fish_use_subcommand -f -a {each.words[0]} -d {_fish(each.summary)}"
    for each in found:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in each.words)
        for name in each.subcommands:
            yield f"complete -c deployer -n {_fish(seen)} -f -a {name}"
        for argument in each.arguments:
            words = [f"complete -c deployer -n {_fish(seen)}"]
            words += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in argument.names]
            words += [f"-a {_fish(' '.join(argument.words))}"] if argument.words else []
            words += ["-x" if argument.words else "-r"] if argument.value and argument.names else []
            if argument.names or argument.words:
                yield " ".join([*words, f"-d {_fish(argument.text)}"])


_SHELLS = {"bash": bash, "fish": fish, "zsh": zsh}


def _top(found: Sequence[Described]) -> list[Described]:
    return [each for each in found if len(each.words) == 1]


def _words(each: Described) -> list[str]:
    """Return what may be in the place of a positional argument, as far as it is known."""
    return [*each.subcommands, *(word for argument in each.arguments if not argument.names for word in argument.words)]


def _options(each: Described) -> list[str]:
    return [name for argument in each.arguments for name in argument.names]


def _colons(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_option(argument: Argument) -> list[str]:
    """Return an option as the specifications of zsh's _arguments: one per name."""
    text = _colons(argument.text).replace("[", "\\[").replace("]", "\\]")
    value = f":{_zsh_value(argument)}" if argument.value else ""
    return [f"*{name}[{text}]{value}" for name in argument.names]


def _zsh_positionals(arguments: Sequence[Argument]) -> Iterator[str]:
    """Yield positional arguments as such specifications; only the last may stand for several words."""
    for number, argument in enumerate(arguments, 1):
        yield f"{'*' if argument is arguments[-1] else number}:{_zsh_value(argument)}"


def _zsh_value(argument: Argument) -> str:
    return f"{_colons(argument.value)}:" + (f"({' '.join(argument.words)})" if argument.words else "_files")


def _fish(text: str) -> str:
    """Return a text in fish's single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
