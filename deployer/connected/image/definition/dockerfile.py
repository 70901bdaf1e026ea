"""A parser of Dockerfiles for lint rules: stages, and instructions with their line numbers.

Source: Docker, "Dockerfile reference": format, parser directives, line continuation, FROM, here-documents.
"""

import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_DIRECTIVE = re.compile(r"^#\s*([A-Za-z]+)\s*=\s*(\S+)\s*$")
_FROM = re.compile(r"^(?:--platform=\S+\s+)?(\S+)(?:\s+[Aa][Ss]\s+(\S+))?$")
_FLAG = re.compile(r"^(--[a-z]+(?:=\S*)?)\s+")
_HEREDOC = re.compile(r"(?<!<)<<-?\s*([\"']?)([A-Za-z_]\w*)\1")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?([-+])([^}]*))?\}|(\w+))")

#: Words of the shell before, between and after commands.
_BETWEEN = ("{", "}", "then", "do", "else", "if", "while", "!", "time")
#: Programs that run the command in their arguments.
_BEFORE = ("env", "sudo", "exec", "command", "nohup", "time")


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        name: its name in upper case.
        value: its arguments without flags. Continuation lines are joined with a space.
        line: its first line, from 1.
        flags: its flags, like ``--from=STAGE``.
        heredoc: it has a here-document.
    """

    name: str
    value: str
    line: int
    flags: tuple[str, ...] = ()
    heredoc: bool = False

    def words(self) -> list[str]:
        """Return the words of the exec form (JSON), or the words that a shell would read."""
        listed = self.exec_form()
        return listed if listed is not None else shell_words(self.value)

    def flag(self, name: str) -> str:
        """Return the value of a flag, empty without it."""
        return next((flag.partition("=")[2] for flag in self.flags if flag.startswith(f"--{name}=")), "")

    def sources(self) -> list[str]:
        """Return the images and stages in ``--from`` and ``--mount``, empty for the build context."""
        mounts = [flag.split(",") for flag in self.flags if flag.startswith("--mount=")]
        mounted = [option.removeprefix("from=") for mount in mounts for option in mount if option.startswith("from=")]
        return [self.flag("from"), *mounted]

    def exec_form(self) -> list[str] | None:
        """Return the words of the exec form, or None for the shell form."""
        if not self.value.startswith("["):
            return None
        try:
            found = json.loads(self.value)
        except ValueError:
            return None
        return [str(word) for word in found] if isinstance(found, list) else None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the names and values of an ENV, ARG or LABEL. The value of an ARG without a default is empty."""
        words = shell_words(self.value)
        if self.name == "ENV" and words and "=" not in words[0]:  # the old form, ENV NAME VALUE
            return [(words[0], " ".join(words[1:]))]
        return [(name, value) for name, _, value in (word.partition("=") for word in words)]


class Stage(NamedTuple):
    """A build stage.

    Attributes:
        base: the image or stage that it starts from.
        name: its name, empty if none.
        instructions: its instructions. The first is its FROM.
    """

    base: str
    name: str
    instructions: list[Instruction]


class Dockerfile(NamedTuple):
    """A Dockerfile.

    Attributes:
        directives: parser directives: name to line and value, in order of appearance.
        arguments: the ARGs before the first FROM.
        stages: the stages in order.
    """

    directives: dict[str, tuple[int, str]]
    arguments: list[Instruction]
    stages: list[Stage]

    def instructions(self) -> Iterator[Instruction]:
        """Yield all instructions in order."""
        yield from self.arguments
        for stage in self.stages:
            yield from stage.instructions

    def defaults(self) -> dict[str, str]:
        """Return the names and default values of the ARGs before the first FROM."""
        return dict(pair for argument in self.arguments for pair in argument.pairs())

    def images(self, arguments: Mapping[str, str]) -> Iterator[tuple[Instruction, str]]:
        """Yield each FROM, ``--from`` and mount of an image, not of a stage, with the name that variables give it.

        Args:
            arguments: values given to the build. They take precedence over the defaults of ARG.
        """
        values = {**self.defaults(), **arguments}
        stages = {"scratch", ""}
        for number, stage in enumerate(self.stages):
            first, *others = stage.instructions
            copied = [(step, source) for step in others for source in step.sources()]
            for step, written in [(first, stage.base), *copied]:
                image = _VARIABLE.sub(lambda found: _value(found, values), written)
                if image.lower() not in stages:
                    yield step, image
            stages |= {stage.name, str(number)}

    def image(self) -> list[Instruction]:
        """Return the instructions for the final image: those of the base stages, then those of the last stage."""
        stages = self.lineage(self.stages[-1]) if self.stages else []
        return [instruction for stage in stages for instruction in stage.instructions]

    def lineage(self, stage: Stage) -> list[Stage]:
        """Return a stage, preceded by the stages that it is built on, the lowest first."""
        found = [stage]
        while True:
            # A name refers to the last earlier stage of that name. A number also identifies a stage.
            before = self.stages[: self.stages.index(found[0])]
            wanted = found[0].base.lower()
            named = [stage for number, stage in enumerate(before) if wanted in (stage.name, str(number)) and wanted]
            if not named:
                return found
            found.insert(0, named[-1])


@functools.lru_cache(maxsize=8)
def parse(text: str) -> Dockerfile:
    """Return a parsed Dockerfile. Lines that are not instructions are ignored here, because the engine refuses them."""
    lines = text.removeprefix("\ufeff").splitlines()
    directives = _directives(lines)
    escape = directives.get("escape", (0, "\\"))[1]
    read = Dockerfile(directives, [], [])
    for instruction in _instructions(lines, escape):
        if instruction.name == "FROM":
            match = _FROM.match(instruction.value)
            base, name = (match[1], match[2] or "") if match else (instruction.value, "")
            read.stages.append(Stage(base, name.lower(), [instruction]))
        elif read.stages:
            read.stages[-1].instructions.append(instruction)
        else:
            read.arguments.append(instruction)
    return read


def variables(value: str) -> set[str]:
    """Return the names of the variables in a value."""
    return {match[1] or match[4] for match in _VARIABLE.finditer(value)}


def _value(variable: re.Match[str], values: Mapping[str, str]) -> str:
    """Return the value of ``$NAME``, ``${NAME:-DEFAULT}`` or ``${NAME:+OTHER}``. An unset variable is empty."""
    value = values.get(variable[1] or variable[4], "")
    if variable[2] == "+":
        return variable[3] if value else ""
    return value or variable[3] or ""


def shell_words(text: str) -> list[str]:
    """Return the words of a shell command. Separators are separate words. Stop at an unclosed quote."""
    reader = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    reader.commenters = ""
    words: list[str] = []
    try:
        words.extend(reader)
    except ValueError:
        words.extend(text.split()[len(words) :])
    return words


def commands(words: list[str]) -> Iterator[list[str]]:
    """Yield the simple commands of a shell line, without preceding assignments, env, sudo and exec."""
    command: list[str] = []
    for word in [*words, ";"]:
        if (word and not set(word) - set(";&|()")) or word in _BETWEEN:
            if command:
                yield command
            command = []
        elif command or not (re.match(r"^\w+=", word) or word in _BEFORE):
            command.append(word)


def _directives(lines: list[str]) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line.strip())
        if match is None:
            break
        found.setdefault(match[1].lower(), (number, match[2]))
    return found


def _instructions(lines: list[str], escape: str) -> Iterator[Instruction]:
    number = 0
    while number < len(lines):
        start = number
        text = lines[number].strip()
        number += 1
        if not text or text.startswith("#"):
            continue
        while text.endswith(escape) and number < len(lines):
            more = lines[number].strip()
            number += 1
            if more and not more.startswith("#"):  # comments and empty lines in between are skipped
                text = text[:-1].rstrip() + " " + more
        name, *rest = text.removesuffix(escape).split(maxsplit=1) or [""]  # a tab is also a separator
        value, flags = "".join(rest).strip(), []
        while flag := _FLAG.match(value):
            flags.append(flag[1])
            value = value[flag.end() :]
        heredocs = [found[2] for found in _HEREDOC.finditer(value)] if name.upper() in ("RUN", "COPY", "ADD") else []
        for word in heredocs:
            number = next((at + 1 for at in range(number, len(lines)) if lines[at].strip() == word), number)
        yield Instruction(name.upper(), value, start + 1, tuple(flags), bool(heredocs))
