"""Rules for commands: they need no network when the job runs, because sites may have none, and do not start in app/."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from deployer.connected.ground import own_data
from deployer.connected.image.definition.dockerfile import commands, shell_words
from deployer.connected.image.lint import finding
from deployer.connected.image.lint.source import DefinitionSource, text_of
from deployer.contract.bundle.command import operand
from deployer.contract.rules.findings import WARNING, Finding
from deployer.contract.site.plan import APP

_SHELLS = re.compile(r"(ba|da|z|k)?sh")
_SHEBANG = re.compile(r"#!.*\b(ba|da|z|k)?sh\b")
_LOCAL = re.compile(r"(\w+://)?(localhost|127\.|\[::1\]|\$|file:)")

#: Programs that use the network, with the words that make them do so; empty: they always use it.
_PROGRAMS = {
    program: frozenset(words.split())
    for programs, words in own_data.load_yaml(Path(__file__).with_suffix(".yaml")).items()
    for program in programs.split()
}
_VERBS = ("install", "download", "wheel")
_OFFLINE = ("--offline", "--no-index", "--no-download")


def at_run_time(source: DefinitionSource) -> Iterator[Finding]:
    """Check network.run-time in ENTRYPOINT and CMD, the jobs' commands, and the shell scripts that they start."""
    for name in ("ENTRYPOINT", "CMD"):
        for instruction in source.last(name):
            yield from _in_words(source, instruction.words(), name, source.at(instruction))
    for job, settings in source.definition.jobs.items():
        yield from _in_words(source, settings.command, f"job {job}", source.bundle)


def _in_words(source: DefinitionSource, words: list[str], what: str, where: str) -> Iterator[Finding]:
    yield from _in_commands(words, what, where)
    for command in commands(words):
        for word in command[:3]:  # a script, or a script after a shell and an option
            path = source.find(word) if "/" in word or word.endswith(".sh") else None
            if path is not None:
                yield from _in_script(path, what)


def _in_script(path: Path, what: str) -> Iterator[Finding]:
    text = text_of(path)
    if not (_SHEBANG.match(text) or path.suffix == ".sh"):
        return
    number = 1
    for line in re.split(r"(?<!\\)\n", text):
        if not line.lstrip().startswith("#"):
            words = shell_words(line.replace("\\\n", " "))
            yield from _in_commands(words, f"{what} by {path.name}", f"{path}:{number}")
        number += line.count("\n") + 1


def _in_commands(words: list[str], what: str, where: str) -> Iterator[Finding]:
    for shown in filter(None, map(downloads, commands(words))):
        yield finding("network.run-time", where, what=what, command=shown)


def downloads(command: list[str]) -> str:
    """Return a simple command, shortened, if it uses the network; otherwise an empty text."""
    program = posixpath.basename(command[0])
    if _SHELLS.fullmatch(program) and len(command) > 2 and re.fullmatch(r"-\w*c", command[1]):
        return next(filter(None, map(downloads, commands(shell_words(command[2])))), "")
    if program in ("curl", "wget"):
        addresses = [word for word in command[1:] if "://" in word or "." in word or word.startswith("$")]
        used = any(not _LOCAL.match(word) for word in addresses if not word.startswith("-"))
    elif program in _PROGRAMS:
        words, named = _PROGRAMS[program], [word for word in command[1:] if not word.startswith("-")]
        used = not words or bool(words & set(named[:2])) or _is_pip(command)
    else:
        used = _is_pip(command)
    return " ".join(command)[:80] if used and not set(_OFFLINE) & set(command) else ""


def _is_pip(command: list[str]) -> bool:
    """Return whether a command is ``pip install`` (or download, wheel), also by python -m or uv."""
    words = list(command)
    if re.fullmatch(r"(.*/)?python[0-9.]*", words[0]) and "-m" in words[:-1]:
        words = words[words.index("-m") + 1 :]
    if words[0] == "uv":
        words = words[1:]
    return bool(words and re.fullmatch(r"(.*/)?pip[0-9.]*", words[0])) and any(word in _VERBS for word in words)


def relative(source: DefinitionSource) -> Iterator[Finding]:
    """Check command.relative: a job starts a file with a path relative to its working folder."""
    app, base = source.definition.app_folder, source.definition.base
    if any(instruction.name == "WORKDIR" for instruction in source.dockerfile.image()):
        return
    for name, job in source.definition.jobs.items():
        if job.workdir:
            continue
        words = job.command
        started = words[0] if "/" in words[0] else operand(words)
        for word in words:
            inner = _in_app(app, word)
            if word.startswith(("/", "-")) or (word != started and inner is None):
                continue
            relative_word = finding("command.relative", f"job {name}", word=word, absolute=f"{APP}/{inner or word}")
            certain = word == started and inner is not None and base is not None and base.debian is not None
            yield relative_word if certain else relative_word._replace(severity=WARNING)


def _in_app(app: Path | None, word: str) -> PurePosixPath | None:
    """Return the file in app/ that a relative path seems to mean."""
    inner = PurePosixPath(word)
    for path in (inner, PurePosixPath(*inner.parts[1:]) if inner.parts[:1] == ("app",) else None):
        if app and path and path.suffix and not path.is_absolute() and (app / path).is_file():
            return path
    return None
