"""Check whether a runtime can be used on this host: its program or engine exists, and the kernel is suitable."""

import shutil
from typing import Optional, Sequence

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.shell import plain
from deployer.contract.site import runtime_table
from deployer.site.capture import apptainer, machine
from deployer.site.capture.software.modules import runtimes as by_module
from deployer.site.container import home
from deployer.site.container.container import user_environment
from deployer.site.container.runtimes.interface import Here, Runtime
from deployer.system import process

#: Seconds for a program to print its version, which takes a while on a cold shared file system.
_PATIENCE = 60.0


def objection(runtime: Runtime, modules: Sequence[str], engine: str, here: bool = True) -> Optional[str]:
    """Return why ``runtime`` cannot be used, or None.

    Args:
        modules: as in ``Here``.
        engine: as in ``Here``.
        here: whether the process will run on this host. If so, user namespaces are tested by making one.
    """
    path = None if runtime.known.carried else shutil.which(runtime.program)
    reason = runtime.veto(Here(path, list(modules), engine))
    # Only programs that mount SquashFS files may be installed so (setuid) that they need no user namespaces.
    if reason is None and runtime.known.namespaces and here and not (runtime.known.mounts and apptainer.starter(path)):
        reason = machine.namespaces_denied()
    if reason is None and runtime.asked and (path or runtime.known.carried) and runtime.asked not in by_module(modules):
        reason = _unusable(runtime.asked, plain(runtime.starter(engine)), runtime.known.carried)
    return reason


def _unusable(name: str, program: str, carried: bool) -> Optional[str]:
    """Return why a program cannot be used: its version is too old, or it is from the kit and does not start.

    If a site's own program does not start here, it may still start on the nodes.
    """
    try:
        with home.temporary() as folder:  # podman makes folders in /tmp at every call
            environment = dict(user_environment(), XDG_RUNTIME_DIR=folder)
            done = process.run([program, "--version"], _PATIENCE, environment, check=False)
    except DeployerError as error:
        return error.message if carried else None
    if done.returncode and carried:
        return f"{program} does not start: {done.last_words(1)}"
    return runtime_table.too_old(name, done.stdout + done.stderr)
