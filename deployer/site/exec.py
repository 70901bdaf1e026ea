"""exec and shell: one process in the container with the plan's binds and environment, in the user's own allocation.

This process becomes the runtime, which becomes the command: pid, signals, descriptors (PMI's) and exit code are the
command's own.
"""

import os
from typing import List, NoReturn, Optional, Sequence, Tuple

from deployer.contract.choose import choose
from deployer.contract.errors import UsageError
from deployer.contract.plan import Plan
from deployer.site import container, data, run
from deployer.site.runtimes import RUNTIMES
from deployer.site.runtimes.interface import Container, Runtime
from deployer.site.store import Installed, Store
from deployer.system import payload, process

#: Used where the bundle carries no plan: it was packed for no site.
_DEFAULT_RUNTIME = "charliecloud"
#: What an interactive shell may know of the user's terminal.
_TERMINAL = ("TERM", "COLORTERM", "LANG")


def execute(store: Store, image: str, plan: Optional[str], binds: Sequence[str], command: List[str]) -> NoReturn:
    """Become ``command`` in the container of ``image``. Raises UsageError, Refused and MissingTool before that."""
    if not command:
        raise UsageError("no command to run", "exec %s -- COMMAND [ARG...]" % image)
    runtime, made = prepare(store, image, plan, binds)
    payload.restore_signals()
    process.replace(runtime.argv(made, command), container.user_environment())


def shell(store: Store, image: str, plan: Optional[str], binds: Sequence[str]) -> NoReturn:
    """Become an interactive shell in the container of ``image``: bash where the image has it, else sh."""
    runtime, made = prepare(store, image, plan, binds)
    for name in _TERMINAL:
        if name in os.environ:
            made.environment.setdefault(name, os.environ[name])
    found = [path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(made.rootfs + path)]
    payload.restore_signals()
    process.replace(runtime.argv(made, [found[0] if found else "/bin/sh"]), container.user_environment())


def prepare(store: Store, image: str, site: Optional[str], binds: Sequence[str]) -> Tuple[Runtime, Container]:
    """Return the runtime and the container that a process in ``image`` has here, as the plan for ``site`` says."""
    installed = store.find(image)
    manifest = installed.manifest()
    found = data.resolve(store, manifest)
    plan = _plan(installed, site)
    name = choose(plan, 1, run.vetoes(plan)).variant.runtime if plan else _DEFAULT_RUNTIME
    abi = plan.abi if plan else next(iter(manifest.mpi), None)
    bound = data.binds(installed, found) + container.parse_binds(binds, installed.rootfs)
    variant = installed.variant(abi) if abi else None
    made = container.make(installed, manifest.image, plan, bound, {}, variant)
    return RUNTIMES[name], made


def _plan(installed: Installed, site: Optional[str]) -> Optional[Plan]:
    return installed.plan(site) if site is not None or installed.sites() else None
