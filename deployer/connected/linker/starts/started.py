"""The programs that a job's command certainly starts, through wrappers and scripts. Nothing is run."""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.starts import wrappers
from deployer.connected.linker.starts.python import python_command, python_packages
from deployer.connected.linker.starts.python.python_packages import Around, MissingModule, Packages
from deployer.connected.linker.starts.python.python_path import Runs
from deployer.connected.linker.starts.python.python_syntax import Unreadable
from deployer.connected.linker.starts.removed import Removed
from deployer.connected.linker.starts.shell import shell_syntax
from deployer.connected.linker.starts.shell.shell_script import Budget, Reader, Script, Seen
from deployer.connected.linker.starts.shell.shell_state import NOT_FOUND, State
from deployer.connected.linker.starts.shell.shell_syntax import NotReadable
from deployer.connected.linker.starts.words import UnknownWord
from deployer.contract.base.text import printable
from deployer.contract.bundle import command
from deployer.contract.bundle.command import CommandSearch, Located, Unsure
from deployer.contract.site.mount_points import OF_THE_NODE

#: The maximum nesting of wrappers and scripts, and the maximum number of programs.
_MAX_DEPTH, _MAX_PROGRAMS = 16, 200
_MAX_SHOWN = 300  # characters of a reason

#: Small tools that start nothing, if they are in a system folder.
_TOOLS = frozenset((
    "arch", "awk", "gawk", "mawk", "basename", "base64", "bc", "bunzip2", "bzip2", "cat", "chgrp", "chmod", "chown",
    "cksum", "clear", "cmp", "comm", "cp", "cut", "date", "dd", "df", "diff", "dircolors", "dirname", "du", "echo",
    "egrep", "expand", "expr", "factor", "false", "fgrep", "file", "fmt", "fold", "free", "getconf", "getent", "getopt",
    "grep", "groups", "gunzip", "gzip", "head", "hostid", "hostname", "id", "install", "ip", "join", "ldd", "link",
    "ln", "locale", "logname", "ls", "lscpu", "lspci", "md5sum", "mkdir", "mkfifo", "mknod", "mktemp", "more", "mount",
    "mv", "nl", "nproc", "nvidia-smi", "od", "paste", "patch", "pathchk", "pgrep", "pr", "printenv", "printf", "ps",
    "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "seq", "sha1sum", "sha256sum", "sha512sum", "shuf", "sleep",
    "sort", "split", "stat", "stty", "sum", "sync", "tac", "tail", "tar", "tee", "test", "touch", "tput", "tr", "true",
    "truncate", "tsort", "tty", "uname", "unexpand", "uniq", "unlink", "unxz", "unzip", "uptime", "vdir", "wc",
    "which", "who", "whoami", "xz", "yes", "zcat", "[",
))  # fmt: skip
_OF_THE_NODE = tuple(f"{folder}/" for folder in OF_THE_NODE)
_SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib")
#: Programs that start others in ways that are not followed.
_STARTERS = frozenset((
    "apptainer", "aprun", "at", "batch", "busybox", "chroot", "conda", "docker", "expect", "flux", "gdb",
    "ibrun", "jsrun", "make", "mamba", "micromamba", "mpiexec", "mpiexec.hydra", "mpirun", "nsenter", "orterun",
    "parallel", "perf", "pdsh", "prterun", "runuser", "sbatch", "screen", "script", "singularity", "srun", "ssh", "su",
    "sudo", "systemd-run", "tmux", "unshare", "valgrind", "watch", "xargs",
))  # fmt: skip
#: The reason why such a script is not followed: it probably fails, as each line's last word has a carriage return.
WINDOWS = "end with carriage returns, as on Windows"
#: Shell options: letters without a value, and letters after which nothing is followed.
_SHELL_FLAGS, _LOGIN = "abefhkmpuvxBCEHPT", "l"
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
        missing: missing Python modules that make it fail.
        unreadable: files that it needs to read but its Python cannot parse.
    """

    path: str | None
    argv: Sequence[str]
    via: str = ""
    certain: bool = True
    script: str | None = None
    packages: Packages | None = None
    environment: Mapping[str, str] = {}
    removed: frozenset[Removed] = frozenset()
    missing: Sequence[MissingModule] = ()
    unreadable: Sequence[Unreadable] = ()

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
    """

    programs: Sequence[StartedProgram]
    unclear: Sequence[str]
    status: int | None = None


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


class _ShellOptions(NamedTuple):
    """Options of a shell: whether it is a login shell, ``set -e``, ``set -o pipefail``."""

    login: bool = False
    stops: bool = False
    pipefail: bool = False

    def after(self, word: str, names: Sequence[str]) -> "_ShellOptions":
        """Return the options after one more word; ``names`` are the option names that follow its letters ``o``."""
        sets, letters = word.startswith("-"), word[1:]
        return _ShellOptions(
            self.login or _LOGIN in letters,
            sets if "e" in letters or "errexit" in names else self.stops,
            sets if "pipefail" in names else self.pipefail,
        )


class _Context(NamedTuple):
    """The state that the surrounding shell or wrapper has set for a command.

    ``alone``: whether no script runs before it.
    """

    environment: Mapping[str, str]
    path: str | None
    folder: str | None
    via: tuple[str, ...] = ()
    certain: bool = True
    stdin: str | None = None
    removed: frozenset[Removed] = frozenset()
    alone: bool = True


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
    status = walk.command(list(words), _Context(surroundings.environment, place.path, place.workdir, stdin=text))
    return walk.found()._replace(status=status)


class _Walk:
    def __init__(self, surroundings: Surroundings, failing: tuple[str, str] | None) -> None:
        self._at = surroundings
        self._failing = failing
        self._budget = Budget()
        self._programs: list[StartedProgram] = []
        self._unclear: dict[str, None] = {}

    def found(self) -> Started:
        """Return the programs found so far."""
        return Started(self._programs, list(self._unclear))

    def command(self, words: list[str], context: _Context) -> int | None:
        """Follow one command. Return its status, or None if unknown."""
        name = posixpath.basename(words[0]) if words else ""
        if words and isinstance(words[0], UnknownWord):
            self._not_followed(f"the command {words[0]} is only known when it runs", context)
        elif not name and context.via:
            return NOT_FOUND
        elif len(context.via) > _MAX_DEPTH or len(self._programs) >= _MAX_PROGRAMS:
            self._not_followed("too many scripts and wrappers in each other, or too many programs", context)
        elif words[0] in self._at.wheels:
            python = self._at.python or "/usr/bin/python3"
            real = self._at.view.resolve(python) or python
            found = Located(python, real, command.PathInfo(command.FILE))
            return self._python(found, [python, *words], context._replace(via=(*context.via, words[0])))
        else:
            return self._search(words, name, context)
        return None

    def _search(self, words: list[str], name: str, context: _Context) -> int | None:
        try:
            found = self._locate(words[0], context)
        except Unsure:
            self._not_followed(
                f"{words[0]} is in a folder that is only known on the site, or that the job makes", context
            )
            return None
        if found is not None:
            return self._file(found, words, name, context)
        if "/" in words[0] and context.via:
            self._not_followed(f"{words[0]} is not in the image; perhaps it is made before", context)
        elif name not in self._at.place.programs and (context.certain or not context.via):
            return self._add(None, words, context)
        return None

    def _file(self, found: Located, words: list[str], name: str, context: _Context) -> int | None:
        """Follow a file that is run."""
        shell = shell_syntax.DIALECTS.get(posixpath.basename(found.real)) if name in shell_syntax.DIALECTS else None
        inner = wrappers.inner(words)
        in_system = posixpath.dirname(found.real) in _SYSTEM
        if shell and self._facts(found.real):
            return self._shell(shell, words, context)
        if inner is not None and self._facts(found.real):
            return self._wrapped(inner, name, context)
        if name in _STARTERS or (name == "find" and any(word.startswith(("-exec", "-ok")) for word in words)):
            self._not_followed(f"{name} starts programs in a way that is not followed", context)
            return None
        if in_system and (name in _TOOLS or name == "find"):
            return None
        if not self._facts(found.real):
            return self._script(found, words, context)
        if python_command.is_python(name):
            return self._python(found, words, context)
        return self._add(found.real, words, context)

    def _facts(self, path: str) -> bool:
        """Return whether a file is a program, not a script."""
        return self._at.view.facts_or_none(path) is not None or not self._text(path)

    def _add(self, path: str | None, words: Sequence[str], context: _Context, **of_python: Any) -> int | None:
        """Add a program; ``of_python`` are fields of StartedProgram. Return its status."""
        program = StartedProgram(
            path, tuple(words), _shown(", ".join(context.via)), context.certain, environment=dict(context.environment),
            removed=context.removed, **of_python,
        )  # fmt: skip
        if program not in self._programs:
            self._programs.append(program)
        if program.key != self._failing:
            return None
        return NOT_FOUND if path is None else 1

    def _not_followed(self, reason: str, context: _Context) -> None:
        text = ": ".join([", ".join(context.via), reason]) if context.via else reason
        self._unclear[_shown(text)] = None

    # ---------------------------------------------------------------------------------------------------- wrappers

    def _wrapped(self, inner: wrappers.Inner, name: str, context: _Context) -> int | None:
        if inner.unclear:
            self._not_followed(inner.unclear, context)
            return None
        environment = {} if inner.cleared else dict(context.environment)
        for variable, value in inner.environment.items():
            if value is None:
                environment.pop(variable, None)
            else:
                environment[variable] = value
        path = environment.get("PATH", command.DEFAULT_PATH)
        folder = context.folder
        if inner.folder:
            folder = posixpath.join(folder or "", inner.folder) if folder or inner.folder.startswith("/") else None
        within = context._replace(
            environment=environment,
            path=context.path if "PATH" not in inner.environment and not inner.cleared else _plain(path),
            folder=folder,
            via=(*context.via, name),
            removed=context.removed | _removed(inner, name),
        )
        return self.command(list(inner.words), within)

    def _script(self, found: Located, words: list[str], context: _Context) -> int | None:
        """Follow a script by its first line, as the kernel does."""
        text = self._text(found.real)
        first = text.partition(b"\n")[0] if text.startswith(b"#!") else b""
        line = first[2:256].decode("utf-8", "surrogateescape").strip(" \t")
        program, _, argument = line.partition(" ")
        argument = argument.strip(" \t")
        if not program:  # execvp and shells then start sh
            program = "/bin/sh"
        path = words[0] if "/" in words[0] else found.path
        more = [argument] if argument else []
        if posixpath.basename(program) == "env" and argument.startswith("-S"):
            more = ["-S", argument[2:].strip(" \t")]
        return self.command([program, *more, path, *words[1:]], context._replace(stdin=None))

    # ------------------------------------------------------------------------------------------------------ shells

    def _shell(self, dialect: str, words: list[str], context: _Context) -> int | None:
        """Follow a shell with its arguments."""
        rest, text, reads, how = words[1:], False, False, _ShellOptions()
        while rest and rest[0][:1] in ("-", "+") and len(rest[0]) > 1 and not isinstance(rest[0], UnknownWord):
            word = rest.pop(0)
            if word == "--":
                break
            letters = word[1:].replace("c", "").replace(_LOGIN, "").replace("s", "").replace("o", "").replace("O", "")
            if word in ("--login", *_SHELL_LONG):
                how = how._replace(login=how.login or word == "--login")
                continue
            if word.startswith("--") or letters.strip(_SHELL_FLAGS):
                self._not_followed(f"{words[0]} with the option {word} is not followed", context)
                return None
            text, reads = text or "c" in word, reads or "s" in word[1:]
            names = rest[: word.count("o") + word.count("O")]
            rest = rest[len(names) :]
            how = how.after(word, names)
        name = posixpath.basename(words[0])
        if rest and isinstance(rest[0], UnknownWord):
            self._not_followed(f"{name} runs {rest[0]}, which is only known when it runs", context)
        elif text and rest:
            arguments = tuple(rest[2:])
            return self._run(rest[0], dialect, rest[1] if rest[1:] else words[0], arguments, f"{name} -c", context, how)
        elif rest and not reads:
            return self._shell_file(rest, dialect, context, how)
        elif context.stdin is None or isinstance(context.stdin, UnknownWord):
            self._not_followed(f"{name} reads its commands from its input", context)
        else:
            return self._run(context.stdin, dialect, words[0], tuple(rest), f"the input of {name}", context, how)
        return None

    def _shell_file(self, words: list[str], dialect: str, context: _Context, how: _ShellOptions) -> int | None:
        try:
            path, text = self._content(words[0], context.folder, context.path)
        except NotReadable as error:
            self._not_followed(f"{words[0]}: {error}", context)
            return None
        if text.partition("\n")[0].endswith("\r"):
            self._not_followed(f"the lines of {words[0]} {WINDOWS}: save it with Unix line ends", context)
            return None
        return self._run(text, dialect, words[0], tuple(words[1:]), posixpath.basename(path), context, how, path)

    def _run(
        self, text: str, dialect: str, name: str, arguments: tuple[str, ...], shown: str, context: _Context,
        how: _ShellOptions, file: str = "",
    ) -> int | None:  # fmt: skip
        """Follow a text that a shell runs."""
        environment = dict(context.environment)
        for variable in ("BASH_ENV", "ENV"):
            if variable in environment:
                self._not_followed(f"{variable} makes {shown} read another file first", context)
        path = self._login(context.path) if how.login else context.path
        environment["PATH"] = UnknownWord("$PATH") if path is None else path
        if path is None and how.login:
            self._not_followed("/etc/profile or a file of /etc/profile.d sets variables", context)
        state = State(
            name, file or name, arguments, context.folder, dict(environment), frozenset(environment), {},
            context.certain, stops=how.stops, pipefail=how.pipefail,
        )  # fmt: skip
        before = (*context.via, shown)
        reader = Reader(
            lambda words, seen: self.command(words, _of_shell(seen, shown, context)),
            lambda reason, line: self._not_followed(
                reason, context._replace(via=(*context.via, f"{shown} line {line}"))
            ),
            self._content,
            self._real,
            normal=self._failing is not None,
        )
        if len(before) > _MAX_DEPTH:
            self._not_followed("too many scripts in each other", context)
            return None
        try:
            return Script(reader, self._budget, dialect).run(text, state)
        except (NotReadable, RecursionError) as error:
            reason = str(error) if isinstance(error, NotReadable) else "it is nested too deeply"
            self._not_followed(f"{shown}: {reason}", context)
            return None

    def _login(self, path: str | None) -> str | None:
        """Return PATH in a login shell; None if it is unknown."""
        profile = self._text("/etc/profile").decode("utf-8", "surrogateescape")
        folder = "/etc/profile.d"
        more = [name for name in self._at.view.names(folder) if name.endswith(".sh")]
        if any(_SETS.search(self._text(f"{folder}/{name}").decode("utf-8", "surrogateescape")) for name in more):
            return None
        literal = _LITERAL_PATH.findall(profile)
        if "LD_" in profile or len(re.findall(r"(?<![\w$])PATH=", profile)) != len(literal):
            return None
        return literal[-1] if literal else path

    # ------------------------------------------------------------------------------------------------------ Python

    def _python(self, found: Located, words: list[str], context: _Context) -> int | None:
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
            found.path, found.real, script, context.folder, [] if python.isolated else path, python.module,
            self._at.place, context.environment, context.alone,
        )  # fmt: skip
        result = python_packages.find(runs, self._at.view, self._at.around)
        packages, missing = result.packages, result.missing
        if "PYTHONHOME" in context.environment:
            packages, missing = packages._replace(unclear="PYTHONHOME is set", extensions=()), []
        status = self._add(
            found.real, words, context, script=script, packages=packages, missing=missing, unreadable=result.unreadable
        )
        shown = posixpath.basename(script or "python")[:40]
        within = context._replace(via=(*context.via, shown), certain=False)
        for reason in result.unclear:
            self._not_followed(reason, within)
        for started in result.commands:
            self.command(list(started), within)
        return status

    # -------------------------------------------------------------------------------------------------------- files

    def _locate(self, name: str, context: _Context) -> Located | None:
        """Return the file of a program. Raises Unsure."""
        if context.path is None and "/" not in name:
            raise Unsure
        return self._looked_up(command.locate, name, self._place(context.folder, context.path))

    def _looked_up(
        self, look: Callable[[str, CommandSearch], Located | None], name: str, place: CommandSearch
    ) -> Located | None:
        """Return the result of ``look``. Raises Unsure if not even the image has the file."""
        try:
            return look(name, place)
        except Unsure:  # the image may have it at a path that the site can hide with a bind
            names = [name] if "/" in name else [f"{folder}/{name}" for folder in place.path.split(":")]
            names += [f"./{name}"] if look is command.there else []
            for path in (each if each.startswith("/") else f"{place.workdir}/{each}" for each in names):
                if path.startswith(_OF_THE_NODE):
                    continue
                real = self._at.view.file(path) if path.startswith("/") else None
                if real:
                    return Located(path, real, command.PathInfo(command.FILE))
            raise

    def _place(self, folder: str | None, path: str | None) -> CommandSearch:
        real = self._at.view.resolve(folder) if folder else None
        return self._at.place._replace(path=path or "", workdir=real or folder, programs=())

    def _real(self, name: str, folder: str | None, path: str | None) -> str | None:
        try:
            place = self._place(folder, path)
            found = self._looked_up(command.there if "/" in name else command.locate, name, place)
        except Unsure:
            return None
        return None if found is None else found.real if "/" in name else found.path

    def _content(self, name: str, folder: str | None, path: str | None) -> tuple[str, str]:
        """Return the path and text of a script. Raises NotReadable."""
        place = self._place(folder, path)
        try:
            found = self._looked_up(command.there, name, place)
            if found is None and "/" not in name and path is not None:
                found = self._looked_up(command.locate, name, place)
        except Unsure:
            raise NotReadable("it is in a folder that is only known on the site, or that the job makes") from None
        if found is None:
            raise NotReadable("it is not in the image")
        if self._at.view.facts_or_none(found.real) is not None:
            raise NotReadable("it is not a script")
        data = self._text(found.real)
        if not data:
            raise NotReadable("its content is unknown")
        if len(data) > shell_syntax.MAX_SCRIPT:
            raise NotReadable(f"it has more than {shell_syntax.MAX_SCRIPT // 1024} KiB")
        return found.path, data.decode("utf-8", "surrogateescape")

    def _text(self, path: str) -> bytes:
        return self._at.view.content(path)

    def text_or_unknown(self, path: str) -> str:
        """Return the text of a file that a program reads as its input."""
        try:
            return self._content(path, None, None)[1]
        except NotReadable:
            return UnknownWord(path)


def _shown(text: str) -> str:
    """Return a text with words from a script in a form fit for messages."""
    return printable(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _plain(value: str) -> str | None:
    return None if isinstance(value, UnknownWord) else value


def _removed(inner: wrappers.Inner, name: str) -> set[Removed]:
    """Return the variables that a wrapper removes."""
    names = [each for each, value in inner.environment.items() if value is None]
    return {Removed(each, True, f"{name} -u {each}") for each in names} | (
        {Removed("*", True, f"{name} -i")} if inner.cleared else set()
    )


def _of_shell(seen: Seen, shown: str, context: _Context) -> _Context:
    """Return the context in which a script's command starts."""
    stdin = context.stdin if seen.stdin is None else seen.stdin
    via, removed = (*context.via, f"{shown} line {seen.line}"), context.removed | seen.removed
    return _Context(seen.environment, seen.path, seen.folder, via, seen.certain, stdin, removed, alone=False)
