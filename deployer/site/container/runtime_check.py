"""Whether a runtime can be used on this host: its program or engine exists, and the kernel has what it needs."""

import shutil
from typing import Optional, Sequence

from deployer.site.capture import machine
from deployer.site.container.runtimes.interface import Here, Runtime


def objection(runtime: Runtime, modules: Sequence[str], engine: str, here: bool = True) -> Optional[str]:
    """Return why ``runtime`` cannot be used, or None.

    Args:
        modules: as in ``Here``.
        engine: as in ``Here``.
        here: the process runs on this host. If so, user namespaces are tested by making them.
    """
    found = runtime.veto(Here(shutil.which(runtime.program), list(modules), engine))
    if found is None and runtime.namespaces and here:
        found = machine.namespaces_denied()
    return found
