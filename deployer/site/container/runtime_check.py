"""Check whether a runtime can be used on this host: its program or engine exists, and the kernel is suitable."""

import os
import shutil
from typing import Optional, Sequence

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.shell import plain
from deployer.contract.bundle import sif
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import NOT_STAGED, StartOption
from deployer.site.capture import apptainer, machine
from deployer.site.capture.software.modules import runtimes as by_module
from deployer.site.container import home
from deployer.site.container.container import user_environment
from deployer.site.container.runtimes.interface import Here, Runtime
from deployer.system import files, process

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
    if reason is None and here and needs_namespaces(runtime):
        reason = machine.namespaces_denied()
    if reason is None and runtime.asked and (path or runtime.known.carried) and runtime.asked not in by_module(modules):
        reason = _unusable(runtime.asked, plain(runtime.starter(engine)), runtime.known.carried)
    return reason


def needs_namespaces(runtime: Runtime) -> bool:
    """Return whether a runtime needs user namespaces here.

    Only programs that mount SquashFS files may be installed so (setuid) that they do not. So may those of modules,
    which are not loaded here.
    """
    path = shutil.which(runtime.program)
    return runtime.known.namespaces and not (runtime.known.mounts and (path is None or apptainer.starter(path)))


def refusal(option: StartOption, rootfs: str, packed: str) -> Optional[str]:
    """Return why the administrator's settings for a start option's runtime forbid the image; None also if unknown.

    Args:
        rootfs: the image's folder.
        packed: its SIF file, which need not exist.
    """
    known = runtime_table.RUNTIMES.get(option.runtime)
    program = shutil.which(known.program) if known and known.mounts else None
    if program is None:
        return None
    if option.staging == NOT_STAGED or not option.place:
        found, place = os.stat(rootfs), packed if option.sif else rootfs
        owner = found.st_uid, found.st_gid
    else:
        place, owner = option.place, (os.getuid(), os.getgid())
    return apptainer.refusal(program, place, option.form, owner, option.sif and _signed(packed))


def _signed(path: str) -> bool:
    """Return whether a SIF file has a signature, whoever made it."""
    if not files.is_file(path):
        return False
    with files.errors_named("read " + path), open(path, "rb") as stream:
        descriptor = stream.fileno()
        size = os.fstat(descriptor).st_size
        return bool(sif.find(lambda start, length: os.pread(descriptor, length, start), size).signers)


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
