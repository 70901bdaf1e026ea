"""Completion in real shells, from the parsers."""

import argparse
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.cli.laptop import completion
from deployer.cli.laptop.main import front, main
from deployer.cli.site.common import Front
from deployer.cli.site.main import front as site_front
from deployer.contract.base.errors import UsageError

_ASK = """source "$1"
while read -ra COMP_WORDS; do
    [ "${COMP_WORDS[-1]}" != . ] || COMP_WORDS[-1]=
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_deployer
    echo "${COMPREPLY[*]-}"
done"""
#: What is typed (a dot: nothing yet), and what is offered.
_TYPED = [
    ("deployer bu", "build"),
    ("deployer build --off", "--offline"),
    ("deployer build bundles/x --off", "--offline"),
    ("deployer run --site lab --staging .", "folder memory disk squashfs mounted"),
    ("deployer run --ssh-config .", "deployer.bash"),  # files
    ("deployer profile va", "validate"),
    ("deployer explain mpi.fam", "mpi.family"),
]


@pytest.mark.thorough
def test_a_real_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "deployer.bash"
    script.write_text(completion.script(front(), "bash"))
    typed = "".join(line + "\n" for line, _ in _TYPED)
    argv = ["bash", "-c", _ASK, "bash", str(script)]
    done = subprocess.run(argv, input=typed, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert list(zip([line for line, _ in _TYPED], done.stdout.splitlines(), strict=True)) == _TYPED


@pytest.mark.needs("fish")
def test_a_real_fish_completes(tmp_path: Path) -> None:
    script = tmp_path / "deployer.fish"
    script.write_text(completion.script(front(), "fish"))
    asked = "source $argv[1]; complete -C 'deployer bu'; complete -C 'deployer run --staging squ'"
    done = subprocess.run(["fish", "-N", "-c", asked, str(script)], capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["build", "squashfs"]


#: zsh completes only in a terminal: one is made, lines are typed, and Ctrl-G writes down what each has become.
_ZSH = """zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z '[ "$HOW" = source ] || fpath+=$HOW; autoload -Uz compinit; compinit -u -d "$DUMP"
    [ "$HOW" != source ] || eval "$(<"$SCRIPT")"; bindkey "^I" complete-word
    seen() { print -r -- "$BUFFER" >>"$SEEN"; zle kill-whole-line; }; zle -N seen; bindkey "^G" seen; print REA''DY'
zpty -r -m z said '*READY*'
while read -r line; do zpty -n -w z "$line"$'\\t\\a'; done
zpty -w z exit
while zpty -r z said; do :; done"""
#: What is typed before the tabulator, and what the line is after it.
_COMPLETED = [
    ("deployer bu", "deployer build "),
    ("deployer build --off", "deployer build --offline "),
    ("deployer run --site lab --staging sq", "deployer run --site lab --staging squashfs "),
    ("deployer profile va", "deployer profile validate "),
    ("deployer explain mpi.fam", "deployer explain mpi.family "),
    ("deployer nonsense x", "deployer nonsense x"),
]


@pytest.mark.thorough
@pytest.mark.needs("zsh")
@pytest.mark.parametrize("how", ["source", "fpath"])
def test_a_real_zsh_completes(tmp_path: Path, how: str) -> None:
    script, dump, seen = (tmp_path / name for name in ("_deployer", "dump", "seen"))
    script.write_text(completion.script(front(), "zsh"))
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "SCRIPT": script, "DUMP": dump, "SEEN": seen}
    environment["HOW"] = "source" if how == "source" else tmp_path
    typed = "".join(line + "\n" for line, _ in _COMPLETED)
    subprocess.run(["zsh", "-f", "-c", _ZSH], input=typed, env=environment, text=True, check=True, cwd=tmp_path)
    assert seen.read_text().splitlines() == [line for _, line in _COMPLETED]


#: A command line in a text of --help: a line of its own, or in backticks.
_LINE = re.compile(r"^ +((?:python3 )?deployer(?:\.pyz)? .*)$|`((?:python3 )?deployer(?:\.pyz)? [^`]*)`", re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.parametrize("made", [front, site_front])
def test_command_lines_in_help_are_accepted_as_they_are_written(made: Callable[[], Front]) -> None:
    parsers = dict(zip(made().table, made().command_parsers(), strict=True))
    examples = set()
    for command in made().table.values():
        example = parsers[command.name].example
        assert example.endswith(f" {command.name} {command.example}".rstrip())
        assert parsers[command.name].format_help().endswith(f"\nexample:\n  {example}\n")
        examples.add(example)
    texts = [made().format_help(), *(_all_help(parser) for parser in parsers.values())]
    lines = {"".join(found) for text in texts for found in _LINE.findall(text)}
    assert examples <= lines
    for line in lines:
        words = shlex.split(line.split(" > ")[0], comments=True)
        program, *words = words[1:] if words[0] == "python3" else words
        assert program in ("deployer", "deployer.pyz")
        parser = front() if program == "deployer" else site_front()
        if len(words) == 1 and words[0] in parser.table and line not in examples:
            continue  # the name of a command in a sentence
        words = words[: words.index("--")] if "--" in words else words
        parser.add_wanted(words)
        try:
            unknown = parser.parse_known_args(words)[1]
        except UsageError as error:
            pytest.fail(f"{line}: {error}")
        assert unknown == [], line


def _all_help(parser: argparse.ArgumentParser) -> str:
    """Return the help of a command and of its verbs, without line breaks in backticks."""
    verbs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    texts = [parser.format_help(), *(_all_help(verb) for action in verbs for verb in action.choices.values())]
    return "\n".join(re.sub(r"`[^`\n]*\n[^`]*`", lambda found: " ".join(found[0].split()), text) for text in texts)


def test_help_ends_with_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pack", "--help"])
    assert capsys.readouterr().out.endswith("example:\n  deployer pack bundles/trained --site lab -o trained.tar\n")
