"""Rules for wheels: that those in the bundle fit the Python and the C library of its image."""

import re
from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.image.wheelhouse.target import Target
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.manifest import VARIANTS, WHEELS
from deployer.contract.elf.machines import kernel_name
from deployer.contract.rules.findings import ERROR, Finding

_PYTHON = re.compile(r"/python3\.(\d+)$")
_GLIBC = re.compile(r"^GLIBC_2\.(\d+)$")


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
