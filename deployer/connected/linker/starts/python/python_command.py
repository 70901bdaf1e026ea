"""The script that a Python command line runs, also through a launcher such as torchrun. Pure."""

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

from deployer.connected.linker.starts.words import UnknownWord

_PYTHON = re.compile(r"^(python|pypy)[0-9.]*[a-z]?$")
_FLAGS = "bBdEhiIOPqsSuvx"
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: Launchers whose command line is known: their options without a value.
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_TORCHRUN_FLAGS = ("standalone", "use-env", "virtual-local-rank")
_TORCHRUN_OPTION = re.compile(r"--(nnodes|nproc|node|master|rdzv|max|monitor|start|role|log|local|redirects|tee|numa)")
#: Launchers and runners that may start any program.
_UNCLEAR = ("accelerate", "deepspeed", "horovodrun", "horovod.runner", "ray", "coverage", "cProfile", "profile", "pdb",
            "trace", "runpy", "pytest", "dask-mpi", "jupyter", "ipython", "conda", "spack", "poetry", "uv",
            "accelerate.commands.launch", "scalene", "kernprof", "poe", "invoke", "snakemake")  # fmt: skip


class PythonCommand(NamedTuple):
    """The result of parsing a Python command line.

    Attributes:
        script: the file, ``-m NAME`` or ``-c TEXT``; empty if unknown, None if there is no script.
        launcher: the launcher that starts it; empty if there is none.
        program: the command line of a program other than Python that a launcher starts.
        isolated: whether PYTHONPATH is ignored.
        module: a package that the launcher imports first.
    """

    script: str | None
    launcher: str = ""
    program: Sequence[str] = ()
    isolated: bool = False
    module: str = ""


def is_python(name: str) -> bool:
    """Return whether a program is a Python according to its name, which may include a version."""
    return _PYTHON.match(name) is not None


def parse(words: Sequence[str]) -> PythonCommand:
    """Return what a Python command line runs; the first word is the Python itself."""
    rest = list(words[1:])
    isolated = False
    while rest and rest[0].startswith("-") and not isinstance(rest[0], UnknownWord):
        word = rest.pop(0)
        if word in ("-", "--version", "-V", "-h", "--help"):
            return PythonCommand(None if word == "-" else "-c pass")
        match = re.fullmatch(rf"-([{_FLAGS}]*)([cm]?)", word)
        if word in _WITH_VALUE:
            rest = rest[1:]
        elif match:
            isolated = isolated or "E" in match[1] or "I" in match[1]
            if match[2]:
                return _option(match[2], rest, isolated)
        elif not re.fullmatch(r"-[WX].+", word):
            return PythonCommand("")
    return _option("", rest, isolated) if rest else PythonCommand(None)


def _option(letter: str, rest: list[str], isolated: bool) -> PythonCommand:
    """Return what runs after ``-c`` or ``-m``, or without these options."""
    if not rest or isinstance(rest[0], UnknownWord):
        return PythonCommand("")
    name = rest[0] if letter else posixpath.basename(rest[0])
    if letter != "c" and name in _TORCHRUN:
        return _torchrun(name, rest[1:], isolated)
    if letter == "m" and name == "mpi4py":
        return _mpi4py(rest[1:], isolated)
    if letter != "c" and name in _UNCLEAR:
        return PythonCommand("", name)
    return PythonCommand(f"-{letter} {name}" if letter else rest[0], isolated=isolated)


def _mpi4py(rest: list[str], isolated: bool) -> PythonCommand:
    """Return what ``python -m mpi4py`` runs."""
    while rest and rest[0].startswith("-") and not isinstance(rest[0], UnknownWord):
        word = rest.pop(0)
        if word in ("-m", "-c") and rest:
            return _option(word[1], rest, isolated)._replace(launcher="mpi4py", module="mpi4py")
        if word == "-rc" or (word in ("--rc", "-profile", "--profile") and rest):
            rest = rest[1:]
        elif not word.startswith(("-rc=", "--rc=", "--mpe", "--vt")):
            return PythonCommand("", "mpi4py")
    if not rest or isinstance(rest[0], UnknownWord):
        return PythonCommand("", "mpi4py")
    return PythonCommand(rest[0], "mpi4py", isolated=isolated, module="mpi4py")


def _torchrun(name: str, rest: list[str], isolated: bool) -> PythonCommand:
    """Return what ``torchrun`` starts."""
    module = plain = False
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        text = (word.prefix if isinstance(word, UnknownWord) else word).replace("_", "-")
        if isinstance(word, UnknownWord) and ("=" not in text or not word.single):
            return PythonCommand("", name)
        if text in ("-m", "--module"):
            module = True
        elif text == "--no-python":
            plain = True
        elif text[2:] in _TORCHRUN_FLAGS:
            continue
        elif not (_TORCHRUN_OPTION.match(text) or text in ("-r", "-t")):
            return PythonCommand("", name)
        elif "=" not in text:
            if not rest or (isinstance(rest[0], UnknownWord) and not rest[0].single):
                return PythonCommand("", name)
            rest = rest[1:]
    if not rest or isinstance(rest[0], UnknownWord):
        return PythonCommand("", name)
    if plain:
        return PythonCommand(None, name, rest)
    return PythonCommand(f"-m {rest[0]}" if module else rest[0], name, isolated=isolated, module="torch")
