"""The rule for paths in commands: jobs do not start in app/."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from deployer.connected.image.lint import finding
from deployer.connected.image.lint.source import DefinitionSource
from deployer.contract.bundle import command
from deployer.contract.rules.findings import WARNING, Finding
from deployer.contract.site.plan import APP


def relative(source: DefinitionSource) -> Iterator[Finding]:
    """Check command.relative: a job starts a file with a path relative to its working folder."""
    app, base = source.definition.app_folder, source.definition.base
    if any(instruction.name == "WORKDIR" for instruction in source.dockerfile.image()):
        return
    for name, job in source.definition.jobs.items():
        if job.workdir:
            continue
        words = job.command
        started = words[0] if "/" in words[0] else command.operand(words)
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
