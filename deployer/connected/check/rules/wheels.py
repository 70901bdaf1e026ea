"""Rules for wheels: that those in the bundle fit the Python and the C library of its image."""

import re
from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.check.rules.cpu import MACHINES
from deployer.connected.image.wheelhouse.target import Target
from deployer.connected.linker.index import Index
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.manifest import VARIANTS_PREFIX, WHEELS_PREFIX
from deployer.contract.rules.findings import ERROR, Finding

_PYTHON = re.compile(r"/python3\.(\d+)$")
_GLIBC = re.compile(r"^GLIBC_2\.(\d+)$")


def tags(case: Case) -> Iterator[Finding]:
    """wheel.tags: a wheel's name shows that it is not for this image."""
    prefixes = [WHEELS_PREFIX, *([f"{VARIANTS_PREFIX}{case.plan.abi}/"] if case.plan.abi else [])]
    names = [
        member.name.rpartition("/")[2]
        for member in case.manifest.members
        if member.name.endswith(".whl") and member.name.startswith(tuple(prefixes))
    ]
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
    libraries = [path for path in case.image.entries if path.endswith("/libc.so.6")]
    glibc = _glibc(case.image, libraries)
    machine = MACHINES.get(image.architecture)
    if minor is None or glibc is None or machine is None:
        return None
    return Target((3, int(minor[1])), (2, glibc), machine, {})


def _glibc(index: Index, paths: list[str]) -> int | None:
    """Return the newest version that the image's C library defines."""
    found = []
    for path in paths:
        facts = index.entries[path].facts
        found += [int(match[1]) for match in map(_GLIBC.match, facts.dynamic.defines if facts else ()) if match]
    return max(found, default=None)
