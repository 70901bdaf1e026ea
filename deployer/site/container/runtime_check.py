"""Can a runtime be used on this host: its program or engine is there, and what it needs of the kernel."""

import shutil
from typing import Optional, Sequence

from deployer.site.capture import machine
from deployer.site.container.runtimes.interface import Here, Runtime


def objection(runtime: Runtime, modules: Sequence[str], engine: str, here: bool = True) -> Optional[str]:
    """Return why ``runtime`` cannot be used, None where it can; ``modules`` and ``engine`` are as in ``Here``.

    Whether user namespaces can be made is tried, unless it is known for where the process will be, which is not
    ``here``.
    """
    found = runtime.veto(Here(shutil.which(runtime.program), list(modules), engine))
    if found is None and runtime.namespaces and here:
        found = machine.namespaces_denied()
    return found
