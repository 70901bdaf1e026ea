"""Test whether this machine can make the namespaces of a simulated site. It makes them, so it is a separate program.

``python -m deployer.connected.rehearse.world.namespaces`` prints the reason if it cannot, otherwise nothing.
"""

import errno
import os
import shutil
import sys
from pathlib import Path

import deployer
from deployer.connected.ground import this_machine
from deployer.contract.base.errors import DeployerError
from deployer.system import process

#: Seconds allowed for making namespaces.
_TIMEOUT = 30.0
#: Settings that forbid user namespaces: those of Ubuntu 24.04 and older Debian, and the kernel's limit.
_FORBIDS = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/user/max_user_namespaces": "0",
}
#: The command that allows user namespaces where Ubuntu forbids them.
SYSCTL = "Ubuntu: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"


def forbidden() -> str:
    """Return why this machine cannot simulate a site, or an empty text if it can."""
    if not this_machine.is_linux():
        return "namespaces need Linux"
    if shutil.which("ip") is None:
        return "the program ip (package iproute2) is missing"
    own = process.base_environment()
    own["PYTHONPATH"] = str(Path(deployer.__file__).resolve().parent.parent)
    try:
        done = process.run([sys.executable, "-S", "-m", __name__], _TIMEOUT, own, check=False)
    except DeployerError as error:
        return error.message
    return "" if done.returncode == 0 else done.last_words(1) or "namespaces cannot be made"


def explained(error: OSError) -> str:
    """Return why namespaces cannot be made here, and which setting forbids them."""
    said = f"{error.filename or 'user namespaces'}: {error.strerror}"
    forbids = [name for name, value in _FORBIDS.items() if _read(name) == value]
    if forbids:
        return f"{said} ({forbids[0].removeprefix('/proc/sys/')} is {_FORBIDS[forbids[0]]})"
    if error.errno == errno.EPERM:
        return f"{said} (a container's security profile or the system's settings forbid it)"
    return said


def _read(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read(64).strip()
    except OSError:
        return ""


def main() -> int:
    """Make namespaces and mount /proc in them, as a simulated site does."""
    from deployer.connected.rehearse.world import kernel

    try:
        kernel.leave_namespaces()
        if os.fork():
            return os.waitstatus_to_exitcode(os.wait()[1])
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    except OSError as error:
        sys.stderr.write(explained(error) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
