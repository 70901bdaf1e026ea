"""Rules for Python programs: that their Python can parse them, and that the imported modules exist."""

import posixpath
from collections.abc import Iterator

from deployer.connected.check.rules.case import MISSING_FACTS
from deployer.connected.linker.package_imports import PACKAGED
from deployer.connected.linker.process import Process
from deployer.contract.rules.findings import ERROR, Finding


def syntax(process: Process) -> Iterator[Finding]:
    """python.syntax: a program reads a file that its Python cannot parse."""
    for file in process.unreadable:
        text = f"{process.name} cannot read this line, and ends with SyntaxError: {file.reason}"
        remedy = "write it for this Python (2to3 rewrites Python 2), or put the Python that it is for into the image"
        yield Finding("python.syntax", ERROR, file.place, text, remedy)


def modules(process: Process) -> Iterator[Finding]:
    """import.missing: a program imports a module that its Python does not find."""
    for module in process.missing:
        severity, end = ERROR, "it ends with ModuleNotFoundError"
        if module.doubt:
            severity, end = MISSING_FACTS, f"it may end with ModuleNotFoundError: {module.doubt}"
        text = f"it imports {module.name}, which is in none of the folders where {process.name} searches: {end}"
        if PACKAGED.match(module.elsewhere) or module.elsewhere.endswith((".py", ".so")):
            text += f"; {module.elsewhere} is not in them"
        yield Finding("import.missing", severity, module.place, text, _remedy(process, module.elsewhere))


def _remedy(process: Process, elsewhere: str) -> str:
    packaged = PACKAGED.match(elsewhere)
    if packaged:
        prefix = posixpath.dirname(posixpath.dirname(posixpath.dirname(packaged[1])))
        if process.view.resolve(f"{prefix}/pyvenv.cfg"):
            return f"start it with {prefix}/bin/python, or put {prefix}/bin first in PATH (ENV in the Dockerfile)"
        return f"set PYTHONPATH={packaged[1]} (ENV in the Dockerfile), or start the program by `env PYTHONPATH=...`"
    return (
        "add its package to python.requirements in bundle.yaml or to the Dockerfile, and build again; a module of your "
        "own goes into app/, beside the script"
    )
