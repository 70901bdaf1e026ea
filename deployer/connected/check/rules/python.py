"""Rules for Python: that it can parse the programs, that the imported modules exist, and that the wheels fit it."""

import posixpath
import re
from collections.abc import Iterator

from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.image.wheelhouse.target import Target
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.package_imports import PACKAGED
from deployer.connected.linker.process import Process
from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.manifest import VARIANTS, WHEELS
from deployer.contract.elf.machines import kernel_name
from deployer.contract.rules.findings import ERROR, Finding

_PYTHON = re.compile(r"/python3\.(\d+)$")
_GLIBC = re.compile(r"^GLIBC_2\.(\d+)$")


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


def tags(case: Case) -> Iterator[Finding]:
    """wheel.tags: a wheel's name shows that it is not for this image."""
    used = (WHEELS, f"{VARIANTS}/{case.plan.abi}")
    names = [name for overlay in case.manifest.overlays if overlay.name in used for name in overlay.wheels]
    target = target_of(case) if names else None
    for name in names:
        try:
            if target:
                target.check(name)
        except (DeployerError, ValueError) as error:
            hint = error.hint if isinstance(error, DeployerError) else "this is not a valid wheel name: build again"
            yield Finding("wheel.tags", ERROR, name, str(error), hint)


def target_of(case: Case) -> Target | None:
    """Return the target that wheels for the image must fit; None if the image's files do not show it."""
    image = case.manifest.image
    python = JobFilesystem(case.image).resolve(image.python) if image.python else None
    minor = _PYTHON.search(python or "")
    libraries = [entry.facts for path, entry in case.image.entries.items() if path.endswith("/libc.so.6")]
    defines = [_GLIBC.match(version) for facts in libraries if facts for version in facts.dynamic.defines]
    glibc = max((int(version[1]) for version in defines if version), default=None)
    machine = kernel_name(image.architecture)
    if minor is None or glibc is None or machine is None:
        return None
    return Target((3, int(minor[1])), (2, glibc), machine, {})
