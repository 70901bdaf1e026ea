"""podman as the engine of a machine without Docker: its service speaks Docker's API while this process needs it.

Source: podman-system-service(1).
"""

import atexit
import contextlib
import functools
import shutil
import socket
import time
from pathlib import Path

from deployer.connected.ground import this_machine
from deployer.connected.ground.locked_folder import BUILD, LockedFolder
from deployer.contract.base.errors import MissingTool
from deployer.system import process

_START_SECONDS = 30
#: Variables that lead podman to its settings and its images.
VARIABLES = (
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "BUILDAH_ISOLATION", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip


@functools.cache
def address() -> str | None:
    """Return the address of podman's service, started at the first call; None if this machine has no podman.

    The service ends with this process. Other processes of the user have services of their own, with the same images.

    Raises:
        MissingTool: it does not start.
    """
    if not this_machine.is_linux() or shutil.which("podman") is None:
        return None
    folder = LockedFolder(BUILD, this_machine.folder_for_sockets())
    path = Path(folder.name, "podman.sock")
    argv = ["podman", "system", "service", "--time=0", f"unix://{path}"]
    service = process.Background(argv, process.base_environment(*VARIABLES), str(path.with_name("log")))
    atexit.register(folder.cleanup)
    atexit.register(service.stop)  # the last registered is the first called
    until = time.monotonic() + _START_SECONDS
    while service.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(str(path))
            return f"unix://{path}"
        time.sleep(0.05)
    last = " / ".join(service.output().strip().splitlines()[-2:])
    raise MissingTool(f"podman's service does not start: {last or 'no answer'}", "try: podman info; or start Docker")
