"""Rules for the app folder and the built image: programs and imports of jobs must exist. Nothing is run.

Uncertain cases are not reported: imports in a function, a condition or a ``try``; modules with the name of a file in
app/; and a Python that finds packages in an unsupported way.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from deployer.connected.image.lint import finding
from deployer.connected.image.lint.source import DefinitionSource, text_of
from deployer.connected.linker import commands
from deployer.connected.linker.commands import ListedTree
from deployer.connected.linker.starts.python.python_path import may_be_built_in
from deployer.connected.rootfs import wheels
from deployer.contract.base.tarformat import FILE
from deployer.contract.bundle import command
from deployer.contract.bundle.manifest import LIB
from deployer.contract.rules.findings import WARNING, Finding
from deployer.contract.site.plan import APP


class BuiltImage(NamedTuple):
    """The image that was built from a definition.

    Attributes:
        tree: its root filesystem.
        env: its environment, as ``NAME=VALUE``.
        workdir: its working folder.
        wheels: the wheels of the definition's lock; None: not all of them are cached.
    """

    tree: ListedTree
    env: list[str]
    workdir: str
    wheels: Collection[Path] | None


#: The folders in which Python finds modules: those of its own library and of packages.
_PLACES = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib-dynload|lib/python3(?:\.\d+)?)(?=/([^/]+))")
_OWN_LIBRARY = re.compile(r"(?:^|/)lib/python3\.\d+/os\.py$")
_PTH = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+\.pth)$")
#: .pth files that add no modules beyond those in the file listing.
_KNOWN_PTH = re.compile(r"^(distutils-precedence|.*-nspkg)\.pth$")


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


def imports(source: DefinitionSource, built: BuiltImage) -> Iterator[Finding]:
    """Check app.import: an error in files that a job starts, a warning in other files."""
    provided = _provided(source, built)
    if provided is None:
        return
    scripts = {path: _imports(path) for path in source.app if path.suffix == ".py"}
    local = {part for path in source.app for part in (path.stem, path.parent.name)}
    searched = any(re.search(r"\bsys\.path\b|addsitedir|PYTHONPATH", text_of(path)) for path in source.app)
    jobs = source.definition.jobs.values()
    searched = searched or any("PYTHONPATH" in word for job in jobs for word in job.command)
    reached = set() if searched else _reached(source, scripts)
    for path, imported in scripts.items():
        reported: set[str] = set()
        for module, line in imported:
            top = module.partition(".")[0]
            if top not in provided | local | reported and not may_be_built_in(top):
                reported.add(top)
                item = finding("app.import", f"{path}:{line}", module=top)
                yield item if path in reached else item._replace(severity=WARNING)


def _imports(path: Path) -> list[tuple[str, int]]:
    """Return the modules that a file imports unconditionally, with their lines."""
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError):
        return []
    modules = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append((node.module, node.lineno))
    return modules


def _reached(source: DefinitionSource, scripts: dict[Path, list[tuple[str, int]]]) -> set[Path]:
    """Return the files that jobs start, and the files that those import."""
    app = source.definition.app_folder
    words = [word for job in source.definition.jobs.values() for word in job.command]
    todo = [app / word[len(APP) + 1 :] for word in words if app and word.startswith(APP + "/")]
    reached: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in reached or path not in scripts:
            continue
        reached.add(path)
        for module, _ in scripts[path]:
            place = path.parent.joinpath(*module.split("."))
            todo += [place.with_suffix(".py"), place / "__init__.py"]
    return reached


def _provided(source: DefinitionSource, built: BuiltImage) -> set[str] | None:
    """Return the names of the modules in the image and the wheels, or None if they cannot all be determined."""
    if built.wheels is None:
        return None
    provided = {"horovod"} if source.definition.horovod else set()
    for _, paths in wheels.added(built.wheels):
        provided |= {_module(path.split("/")[1]) for path in paths if path.startswith(LIB + "/")}
    settings = command.variables(built.env)
    folders = [folder.strip("/") for folder in settings.get("PYTHONPATH", "").split(":") if folder]
    known = False
    for entry in built.tree.entries():
        path = entry.path.decode("utf-8", "surrogateescape")
        known = known or _OWN_LIBRARY.search(path) is not None
        provided |= {_module(name) for name in _PLACES.findall(path)}
        provided |= {
            _module(path[len(folder) + 1 :].partition("/")[0]) for folder in folders if path.startswith(folder)
        }
        pth = _PTH.search(path)
        if pth and entry.kind == FILE and not _KNOWN_PTH.match(pth[1]):
            return None  # it may add any folder to the path
    if "setuptools" in provided:
        provided.add("distutils")
    outside = any(folder.split("/")[0] in ("data", "deployer", "scratch", "mnt") for folder in folders)
    return provided if known and not outside else None


def _module(name: str) -> str:
    """Return the module name of a file or folder."""
    return name.partition(".")[0]


def commands_missing(source: DefinitionSource, built: BuiltImage) -> Iterator[Finding]:
    """Check command.missing. Nothing is reported if the program may be in a wheel that is not cached."""
    if built.wheels is None:
        return
    look = commands.in_tree(built.tree, source.definition.app_folder)
    programs = set(wheels.programs(built.wheels))
    if source.definition.horovod:
        programs.add("horovodrun")  # its wheel is not part of the image
    yield from commands.findings(
        source.definition.own_jobs, commands.place(look, built.env, built.workdir, programs=programs)
    )
