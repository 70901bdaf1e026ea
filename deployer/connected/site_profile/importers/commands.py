"""Shell commands that prepare a job (``module load x``), read as facts. They are never executed."""

import re
import shlex
from collections.abc import Iterator

from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.values import is_known
from deployer.contract.runtime_table import NAMED

_ENDS = re.compile(r"(&&|[;\n])\s*")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
#: Parts of a text that are computed, and commands whose output is a part of a command.
_HOLES = re.compile(r"\$\{[^{}]*\}|\$\([^()\n;&|]*\)")
#: Signs and first words of a program: which of its commands run, and where, is not known.
_PROGRAM = re.compile(r"<<|\|\||[()]|(?:^|\s)\{(?:\s|$)")
_PROGRAM_WORDS = ("if", "case", "for", "while", "until", "select", "function", "do", "exit", "return")
_LOADS = ("load", "add")
#: Names of modules and paths that are text, not a part of a program.
_PLAIN = re.compile(r"[\w/][\w./+@:=,-]*")
#: Modules of the program that wrote the file, which deployer's jobs do not need.
_TOOLS = ("nextflow", "java", "openjdk", "jdk", "graphviz", "nf-core")
#: Variables of the runtimes' own caches, and of Nextflow: nothing that a job of deployer reads.
_NOT_OURS = re.compile(r"(NXF|SINGULARITY|APPTAINER|SINGULARITYENV|APPTAINERENV)_|_JAVA_OPTIONS$|JAVA_")


def is_program(script: str) -> bool:
    """Return whether it is not certain that all commands of a script run: it has conditions, loops or functions."""
    if _PROGRAM.search(_HOLES.sub("", _without_comments(script))):
        return True
    for _, text in _commands(script):
        try:
            words = shlex.split(text)
        except ValueError:  # a text of several lines or commands
            return True
        if words and words[0] in _PROGRAM_WORDS:
            return True
    return False


def _without_comments(script: str) -> str:
    return _COMMENT.sub("", script.replace("\\\n", " "))


def _commands(script: str) -> Iterator[tuple[str, str]]:
    """Yield each command with the sign that ends the one before it."""
    first, *rest = _ENDS.split(_without_comments(script))
    for end, command in [("", first), *zip(rest[::2], rest[1::2], strict=True)]:
        if text := command.strip():
            yield end, text


class Commands:
    """Commands of one place of a file, written to a draft."""

    def __init__(self, draft: Draft, origin: FileLine, partition: str | None = None) -> None:
        """Read for a partition of the draft; None: for all partitions."""
        self._draft = draft
        self._origin = origin
        self._at: KeyPath = ("partitions", partition) if partition else ()

    def read(self, script: str, certain: bool = True) -> None:
        """Write what a script says to the draft.

        Args:
            certain: False if the script is a part of a program, whose commands are only noted.
        """
        certain = certain and not is_program(script)
        fact = False
        for end, text in _commands(script):
            known = certain and is_known(text) and (end != "&&" or fact)
            fact = known and self._command(shlex.split(text))
            if not fact:
                self._draft.note("a command before each job", text, self._origin)

    def modules(self, names: list[str]) -> None:
        """Write modules that jobs load, in their order. Those up to a runtime's own belong to that runtime."""
        needed: list[str] = []
        for name in names:
            if not _PLAIN.fullmatch(name):
                self._draft.note("a module with an unusual name", name, self._origin)
                continue
            parts = re.split(r"[/-]", name.lower())
            if parts[0] in _TOOLS:
                self._draft.note("a module of the workflow's own tools", name, self._origin)
                continue
            needed.append(name)
            runtime = next((part for part in parts if part in NAMED), None)
            if runtime:
                self._draft.set(("runtimes", runtime, "module"), needed if len(needed) > 1 else name, self._origin)
                needed = []
        if needed:
            self._draft.add((*self._at, "modules"), needed, self._origin)

    def variable(self, name: str, value: str) -> bool:
        """Write a variable of the jobs' environment. Return False if it is not one that a profile can have."""
        if _NOT_OURS.match(name):
            self._draft.note("a variable of a runtime's cache, or of the workflow", f"{name}={value}", self._origin)
            return True
        if not is_known(value) or "$" in value:
            return False
        if self._at:
            self._draft.set((*self._at, "environment", name), value, self._origin)
        else:
            self._draft.for_all(("environment", name), value, self._origin)
        return True

    def _command(self, words: list[str]) -> bool:
        """Write one command to the draft. Return whether it can be expressed."""
        first, rest = (words[0], words[1:]) if words else ("", [])
        if first != "export" and not all(map(_PLAIN.fullmatch, rest)):
            return False
        if first in ("module", "ml") and rest:
            verb = rest[0]
            if verb == "use" and len(rest) > 1:
                self._draft.add((*self._at, "module_paths"), rest[1:], self._origin)
                return True
            if verb in _LOADS and len(rest) > 1:
                self.modules(rest[1:])
                return True
            if first == "ml" and verb not in ("purge", "unload", "swap", "restore"):
                self.modules(rest)
                return True
            return False
        if first in ("source", ".") and len(rest) == 1 and rest[0].startswith("/"):
            self._draft.add((*self._at, "scripts"), rest, self._origin)
            return True
        if first == "export" and len(rest) == 1 and "=" in rest[0]:
            name, _, value = rest[0].partition("=")
            return self.variable(name, value)
        return False
