"""What a job's command starts, followed through wrappers as far as that is certain."""

import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.wrappers import inner
from deployer.contract import command
from deployer.contract.command import CommandSearch, Unsure

#: Wrappers and scripts in each other.
_MAX_DEPTH = 16


class StartedProgram(NamedTuple):
    """A program that is started.

    Attributes:
        path: the ELF file in the container, without links; None if it is not there.
        argv: its words; the first is the name that it was started by.
        via: the wrappers that start it, for messages ("env, sh run.sh line 3"); empty if the job starts it itself.
        certain: False if it is started under a condition only.
    """

    path: str | None
    argv: Sequence[str]
    via: str = ""
    certain: bool = True


class Started(NamedTuple):
    """All that a command starts.

    Attributes:
        programs: what is started, in order; wrappers, shells and small tools are left out.
        unclear: reasons why the command may start other programs as well.
    """

    programs: Sequence[StartedProgram]
    unclear: Sequence[str]


class Surroundings(NamedTuple):
    """Where a command is followed.

    Attributes:
        view: the files that the job sees.
        place: where commands are looked up, with the job's PATH and working folder.
        python: the image's Python, which runs the console scripts of the bundle's wheels.
        wheels: the names of those scripts.
    """

    view: JobFilesystem
    place: CommandSearch
    python: str | None
    wheels: frozenset[str]


def follow(words: Sequence[str], surroundings: Surroundings) -> Started:
    """Return what a job's command starts."""
    walk = _Walk(surroundings)
    walk.words(list(words), [])
    return Started(list(dict.fromkeys(walk.programs)), list(dict.fromkeys(walk.unclear)))


class _Walk:
    def __init__(self, surroundings: Surroundings) -> None:
        self.at = surroundings
        self.programs: list[StartedProgram] = []
        self.unclear: list[str] = []

    def words(self, words: Sequence[str], via: Sequence[str]) -> None:
        """Follow one command."""
        name = posixpath.basename(words[0]) if words else ""
        if not name:
            self.unclear.append("an empty command")
        elif len(via) > _MAX_DEPTH:
            self.unclear.append(f"{via[0]}: more than {_MAX_DEPTH} wrappers in each other")
        elif words[0] in self.at.wheels:
            self.words([self.at.python or "python3", *words], via)
        else:
            self._file(words, via)

    def _file(self, words: Sequence[str], via: Sequence[str]) -> None:
        path = self._find(words[0])
        name = posixpath.basename(words[0])
        found = inner(words)
        if found is None:
            self._program(path, words, via)
        elif found.unclear:
            self.unclear.append(found.unclear)
        else:
            self.words(found.words, [*via, name])

    def _program(self, path: str | None, words: Sequence[str], via: Sequence[str]) -> None:
        self.programs.append(StartedProgram(path, tuple(words), ", ".join(via)))

    def _find(self, name: str) -> str | None:
        """Return the file of a program, links resolved; None if there is none."""
        try:
            found = command.locate(name, self.at.place)
        except Unsure:  # the image may have it where the site can bind something else
            names = [name] if "/" in name else [f"{folder}/{name}" for folder in self.at.place.path.split(":")]
            paths = (self.at.view.resolve(path) for path in names if path.startswith("/"))
            return next((path for path in paths if path and self.at.view.is_file(path)), None)
        return found.real if found else None
