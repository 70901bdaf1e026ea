"""The programs that a job's command certainly starts, through wrappers and scripts. Nothing is run."""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import own_data
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.starts import wrappers
from deployer.connected.linker.starts.python import python_command, python_packages
from deployer.connected.linker.starts.python.python_packages import Around, Packages
from deployer.connected.linker.starts.python.python_path import Runs
from deployer.connected.linker.starts.removed import Removed
from deployer.connected.linker.starts.shell import shell_syntax
from deployer.connected.linker.starts.shell.shell_script import MAX_STATEMENTS, Context, Reader, Script
from deployer.connected.linker.starts.shell.shell_state import NOT_FOUND, State
from deployer.connected.linker.starts.shell.shell_syntax import NotReadable
from deployer.connected.linker.starts.words import UnknownWord, known_or_none
from deployer.contract.base.text import printable
from deployer.contract.bundle import command
from deployer.contract.bundle.command import CommandSearch, Located, Unsure
from deployer.contract.site.mount_points import OF_THE_NODE

#: The maximum nesting of wrappers and scripts, and the maximum number of programs.
_MAX_DEPTH, _MAX_PROGRAMS = 16, 200
_MAX_SHOWN = 300  # characters of a reason

#: Small tools that start nothing, if they are in a system folder; programs that start others in ways that are not
#: followed.
_TOOLS, _STARTERS = map(frozenset, own_data.load_yaml(Path(__file__).with_suffix(".yaml")).values())
_OF_THE_NODE = tuple(f"{folder}/" for folder in OF_THE_NODE)
_SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib")
#: Shell options: letters, and long options without an effect on what starts.
_SHELL_FLAGS = "abcefhklmopsuvxBCEHOPT"
_SHELL_LONG = ("--norc", "--noprofile", "--posix", "--verbose", "--noediting")
_LITERAL_PATH = re.compile(r"""^\s*(?:export\s+)?PATH=["']?([/\w:.-]+)["']?\s*$""", re.MULTILINE | re.ASCII)
_SETS = re.compile(r"PATH|LD_|\bmodule\b|\balias\b|\bexec\b")


class StartedProgram(NamedTuple):
    """A program that starts.

    Attributes:
        path: the link-free path of the ELF file in the container; None if it does not exist.
        argv: its command line; the first word is the name by which it was started.
        via: the wrappers that start it, for messages ("env, run.sh line 3"); empty if the job starts it directly.
        certain: False if it starts only under a condition.
        script: the Python file, module ("-m NAME") or text ("-c ...") that it runs; None for other programs.
        packages: the Python packages that it imports; None for other programs.
        environment: the variables that it receives, as far as known; an unknown value is an UnknownWord.
        removed: variables that were removed, possibly including a launcher's (PMI, Slurm).
    """

    path: str | None
    argv: Sequence[str]
    via: str = ""
    certain: bool = True
    script: str | None = None
    packages: Packages | None = None
    environment: Mapping[str, str] = {}
    removed: frozenset[Removed] = frozenset()

    @property
    def key(self) -> tuple[str, str]:
        """Return a key that identifies it among the programs of the job."""
        return self.path or self.argv[0], self.via


class Started(NamedTuple):
    """Everything that a command starts.

    Attributes:
        programs: the programs started, in order, without wrappers, shells and small tools.
        unclear: reasons why the command may start other programs as well.
        status: the command's exit status; None if unknown.
        has_windows_lines: whether a script has carriage returns at its line ends. Such a script probably fails, because
            each line's last word has one, and is not followed.
    """

    programs: Sequence[StartedProgram]
    unclear: Sequence[str]
    status: int | None = None
    has_windows_lines: bool = False


class Surroundings(NamedTuple):
    """The surroundings in which a command is followed.

    Attributes:
        view: the files that the job sees.
        place: where commands are searched for, with the job's PATH and working folder.
        python: the image's Python, which runs the console scripts of the bundle's wheels.
        wheels: the names of those scripts.
        environment: the job's initial variables; an unknown value is an UnknownWord.
        around: facts about Python packages.
    """

    view: JobFilesystem
    place: CommandSearch
    python: str | None
    wheels: frozenset[str]
    environment: Mapping[str, str]
    around: Around = Around({})


def follow(
    words: Sequence[str], surroundings: Surroundings, stdin: str | None = None, failing: tuple[str, str] | None = None
) -> Started:
    """Return the programs that a job's command starts.

    Args:
        stdin: the file that it reads as standard input.
        failing: the key of a program that is assumed to fail; ``status`` is then the command's resulting status.
    """
    walk = _Walk(surroundings, failing)
    text = None if stdin is None else walk.text_or_unknown(stdin)
    place = surroundings.place
    status = walk.command(list(words), Context(surroundings.environment, place.path, place.workdir, stdin=text))
    return Started(walk.programs, list(walk.unclear), status, walk.has_windows_lines)


class _Walk:
    def __init__(self, surroundings: Surroundings, failing: tuple[str, str] | None) -> None:
        self._at = surroundings
        self._failing = failing
        self._budget = iter(range(MAX_STATEMENTS))
        self.programs: list[StartedProgram] = []
        self.unclear: dict[str, None] = {}
        self.has_windows_lines = False

    def command(self, words: list[str], context: Context) -> int | None:
        """Follow one command. Return its status, or None if unknown."""
        name = posixpath.basename(words[0]) if words else ""
        if words and isinstance(words[0], UnknownWord):
            return self._not_followed(f"the command {words[0]} is only known when it runs", context)
        if not name and context.via:
            return NOT_FOUND
        if len(context.via) > _MAX_DEPTH or len(self.programs) >= _MAX_PROGRAMS:
            return self._not_followed("too many scripts and wrappers in each other, or too many programs", context)
        if words[0] in self._at.wheels:
            python = self._at.python or "/usr/bin/python3"
            own = Located(python, self._at.view.resolve(python) or python, command.PathInfo(command.FILE))
            return self._python(own, [python, *words], context._replace(via=(*context.via, words[0])))
        try:
            located = self._located(words[0], context.folder, context.path)
        except Unsure:
            reason = f"{words[0]} is in a folder that is only known on the site, or that the job makes"
            return self._not_followed(reason, context)
        if located is not None:
            return self._file(located, words, name, context)
        if "/" in words[0] and context.via:
            return self._not_followed(f"{words[0]} is not in the image; perhaps it is made before", context)
        if name not in self._at.place.programs and (context.certain or not context.via):
            return self._add(None, words, context)
        return None

    def _file(self, located: Located, words: list[str], name: str, context: Context) -> int | None:
        """Follow a file that is run."""
        dialect = shell_syntax.DIALECTS.get(posixpath.basename(located.real)) if name in shell_syntax.DIALECTS else None
        inner = wrappers.inner(words)
        text = self._at.view.content(located.real)
        is_program = self._at.view.facts_or_none(located.real) is not None or not text
        if dialect and is_program:
            return self._shell(dialect, words, context)
        if inner is not None and is_program:
            return self._wrapped(inner, name, context)
        if name in _STARTERS or (name == "find" and any(word.startswith(("-exec", "-ok")) for word in words)):
            return self._not_followed(f"{name} starts programs in a way that is not followed", context)
        if posixpath.dirname(located.real) in _SYSTEM and (name in _TOOLS or name == "find"):
            return None
        if not is_program:
            return self._script(text, words[0] if "/" in words[0] else located.path, words, context)
        if python_command.is_python(name):
            return self._python(located, words, context)
        return self._add(located.real, words, context)

    def _add(
        self, path: str | None, words: Sequence[str], context: Context, script: str | None = None,
        packages: Packages | None = None,
    ) -> int | None:  # fmt: skip
        """Add a program. Return its status."""
        program = StartedProgram(
            path, tuple(words), _shown(", ".join(context.via)), context.certain, script, packages,
            environment=dict(context.environment), removed=context.removed,
        )  # fmt: skip
        if program not in self.programs:
            self.programs.append(program)
        if program.key != self._failing:
            return None
        return NOT_FOUND if path is None else 1

    def _not_followed(self, reason: str, context: Context) -> int | None:
        """Add a reason why the command may start more. Return its status, which is unknown."""
        text = ": ".join([", ".join(context.via), reason]) if context.via else reason
        self.unclear[_shown(text)] = None
        return None

    # ---------------------------------------------------------------------------------------------------- wrappers

    def _wrapped(self, inner: wrappers.Inner, name: str, context: Context) -> int | None:
        if inner.unclear:
            return self._not_followed(inner.unclear, context)
        changed = inner.environment
        environment = {} if inner.cleared else dict(context.environment)
        environment.update({variable: value for variable, value in changed.items() if value is not None})
        unset = [variable for variable, value in changed.items() if value is None]
        for variable in unset:
            environment.pop(variable, None)
        path = environment.get("PATH", command.DEFAULT_PATH)
        folder = context.folder
        if inner.folder:
            folder = posixpath.join(folder or "", inner.folder) if folder or inner.folder.startswith("/") else None
        removed = {Removed(variable, True, f"{name} -u {variable}") for variable in unset}
        removed |= {Removed("*", True, f"{name} -i")} if inner.cleared else set()
        within = context._replace(
            environment=environment,
            path=context.path if "PATH" not in changed and not inner.cleared else known_or_none(path),
            folder=folder,
            via=(*context.via, name),
            removed=context.removed | removed,
        )
        return self.command(list(inner.words), within)

    def _script(self, text: bytes, path: str, words: list[str], context: Context) -> int | None:
        """Follow a script by its first line, as the kernel does."""
        first = text.partition(b"\n")[0] if text.startswith(b"#!") else b""
        line = first[2:256].decode("utf-8", "surrogateescape").strip(" \t")
        program, _, argument = line.partition(" ")
        argument = argument.strip(" \t")
        more = [argument] if argument else []
        if posixpath.basename(program) == "env" and argument.startswith("-S"):
            more = ["-S", argument[2:].strip(" \t")]
        # Without an interpreter, execvp and shells start sh.
        return self.command([program or "/bin/sh", *more, path, *words[1:]], context._replace(stdin=None))

    # ------------------------------------------------------------------------------------------------------ shells

    def _shell(self, dialect: str, words: list[str], context: Context) -> int | None:
        """Follow a shell with its arguments."""
        rest = words[1:]
        text = reads = False
        options: set[str] = set()
        while rest and rest[0][:1] in ("-", "+") and len(rest[0]) > 1 and not isinstance(rest[0], UnknownWord):
            word = rest.pop(0)
            if word == "--":
                break
            if word in ("--login", *_SHELL_LONG):
                options |= {word} & {"--login"}
                continue
            if word.startswith("--") or word[1:].strip(_SHELL_FLAGS):
                return self._not_followed(f"{words[0]} with the option {word} is not followed", context)
            text, reads = text or "c" in word, reads or "s" in word
            names = rest[: word.count("o") + word.count("O")]
            rest = rest[len(names) :]
            changed = {*names, *({"errexit"} if "e" in word else ())}
            options = options | changed if word.startswith("-") else options - changed
            options |= {"--login"} if "l" in word else set()
        name = posixpath.basename(words[0])
        if rest and isinstance(rest[0], UnknownWord):
            return self._not_followed(f"{name} runs {rest[0]}, which is only known when it runs", context)
        if text and rest:
            return self._run(rest[0], dialect, rest[1:] or words[:1], f"{name} -c", context, options)
        if rest and not reads:
            return self._shell_file(rest, dialect, context, options)
        if context.stdin is None or isinstance(context.stdin, UnknownWord):
            return self._not_followed(f"{name} reads its commands from its input", context)
        return self._run(context.stdin, dialect, [words[0], *rest], f"the input of {name}", context, options)

    def _shell_file(self, words: list[str], dialect: str, context: Context, options: Collection[str]) -> int | None:
        try:
            path, text = self._content(words[0], context.folder, context.path)
        except NotReadable as error:
            return self._not_followed(f"{words[0]}: {error}", context)
        if text.partition("\n")[0].endswith("\r"):
            self.has_windows_lines = True
            reason = f"the lines of {words[0]} end with carriage returns, as on Windows: save it with Unix line ends"
            return self._not_followed(reason, context)
        return self._run(text, dialect, words, posixpath.basename(path), context, options, path)

    def _run(
        self, text: str, dialect: str, words: Sequence[str], shown: str, context: Context, options: Collection[str],
        file: str = "",
    ) -> int | None:  # fmt: skip
        """Follow a text that a shell runs; ``words`` are ``$0`` and the arguments."""
        environment = dict(context.environment)
        for variable in ("BASH_ENV", "ENV"):
            if variable in environment:
                self._not_followed(f"{variable} makes {shown} read another file first", context)
        login = "--login" in options
        path = self._login_path(context.path) if login else context.path
        environment["PATH"] = UnknownWord("$PATH") if path is None else path
        if path is None and login:
            self._not_followed("/etc/profile or a file of /etc/profile.d sets variables", context)
        state = State(
            words[0], file or words[0], tuple(words[1:]), context.folder, dict(environment), frozenset(environment),
            certain=context.certain, stops="errexit" in options, pipefail="pipefail" in options,
        )  # fmt: skip

        def start(words: list[str], within: Context, line: int) -> int | None:
            stdin = context.stdin if within.stdin is None else within.stdin
            via, removed = (*context.via, f"{shown} line {line}"), context.removed | within.removed
            return self.command(words, within._replace(via=via, stdin=stdin, removed=removed))

        def unclear(reason: str, line: int) -> None:
            self._not_followed(reason, context._replace(via=(*context.via, f"{shown} line {line}")))

        normal = self._failing is not None
        reader = Reader(start, unclear, self._content, self._real, self._budget, normal)
        if len(context.via) >= _MAX_DEPTH:
            return self._not_followed("too many scripts in each other", context)
        try:
            return Script(reader, dialect).run(text, state)
        except (NotReadable, RecursionError) as error:
            reason = str(error) if isinstance(error, NotReadable) else "it is nested too deeply"
            return self._not_followed(f"{shown}: {reason}", context)

    def _login_path(self, path: str | None) -> str | None:
        """Return PATH in a login shell; None if it is unknown."""
        folder = "/etc/profile.d"
        more = [f"{folder}/{name}" for name in self._at.view.names(folder) if name.endswith(".sh")]
        if any(_SETS.search(self._text(name)) for name in more):
            return None
        profile = self._text("/etc/profile")
        literal = _LITERAL_PATH.findall(profile)
        if "LD_" in profile or len(re.findall(r"(?<![\w$])PATH=", profile)) != len(literal):
            return None
        return literal[-1] if literal else path

    # ------------------------------------------------------------------------------------------------------ Python

    def _python(self, located: Located, words: list[str], context: Context) -> int | None:
        """Follow a Python with its arguments."""
        python = python_command.parse(words)
        if python.launcher:
            context = context._replace(via=(*context.via, python.launcher))
        if python.program:
            return self.command(list(python.program), context)
        if python.launcher and python.script == "":
            self._not_followed("it starts programs in a way that is not followed", context)
        script = python.script
        if script is None and context.stdin and not isinstance(context.stdin, UnknownWord):
            script = f"-c {context.stdin}"
        value = context.environment.get("PYTHONPATH", "")
        path = None if isinstance(value, UnknownWord) else value.split(":")
        runs = Runs(
            located.path, located.real, script, context.folder, [] if python.isolated else path, python.module,
            self._at.place, context.environment, context.alone,
        )  # fmt: skip
        packages = python_packages.find(runs, self._at.view, self._at.around)
        if "PYTHONHOME" in context.environment:
            packages = packages._replace(unclear="PYTHONHOME is set", extensions=(), missing=[])
        status = self._add(located.real, words, context, script, packages)
        shown = posixpath.basename(script or "python")[:40]
        within = context._replace(via=(*context.via, shown), certain=False)
        for reason in packages.starts:
            self._not_followed(reason, within)
        for started in packages.commands:
            self.command(list(started), within)
        return status

    # -------------------------------------------------------------------------------------------------------- files

    def _located(self, name: str, folder: str | None, path: str | None, script: bool = False) -> Located | None:
        """Return the file of a program, or of a script that a shell reads. Raises Unsure if it may be elsewhere."""
        if path is None and "/" not in name and not script:
            raise Unsure
        workdir = (self._at.view.resolve(folder) or folder) if folder else None
        place = self._at.place._replace(path=path or "", workdir=workdir, programs=())
        try:
            return command.there(name, place) if script else command.locate(name, place)
        except Unsure:  # the image may have it at a path that the site can hide with a bind
            names = [name] if "/" in name else [f"{top}/{name}" for top in place.path.split(":")]
            names += [f"./{name}"] if script else []
            for candidate in (
                path_or_name if path_or_name.startswith("/") else f"{workdir}/{path_or_name}" for path_or_name in names
            ):
                real = self._at.view.file(candidate) if candidate.startswith("/") else None
                if real and not candidate.startswith(_OF_THE_NODE):
                    return Located(candidate, real, command.PathInfo(command.FILE))
            raise

    def _real(self, name: str, folder: str | None, path: str | None) -> str | None:
        try:
            located = self._located(name, folder, path or "", script="/" in name)
        except Unsure:
            return None
        return None if located is None else located.real if "/" in name else located.path

    def _content(self, name: str, folder: str | None, path: str | None) -> tuple[str, str]:
        """Return the path and text of a script. Raises NotReadable."""
        try:
            located = self._located(name, folder, path, script=True)
            if located is None and "/" not in name and path is not None:
                located = self._located(name, folder, path)
        except Unsure:
            raise NotReadable("it is in a folder that is only known on the site, or that the job makes") from None
        if located is None:
            raise NotReadable("it is not in the image")
        if self._at.view.facts_or_none(located.real) is not None:
            raise NotReadable("it is not a script")
        data = self._at.view.content(located.real)
        if not data:
            raise NotReadable("its content is unknown")
        if len(data) > shell_syntax.MAX_SCRIPT:
            raise NotReadable(f"it has more than {shell_syntax.MAX_SCRIPT // 1024} KiB")
        return located.path, data.decode("utf-8", "surrogateescape")

    def _text(self, path: str) -> str:
        return self._at.view.content(path).decode("utf-8", "surrogateescape")

    def text_or_unknown(self, path: str) -> str:
        """Return the text of a file that a program reads as its input."""
        try:
            return self._content(path, None, None)[1]
        except NotReadable:
            return UnknownWord(path)


def _shown(text: str) -> str:
    """Return a text with words from a script in a form fit for messages."""
    return printable(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
