"""The node's side of a notebook: Jupyter in the job's container, which only its user can reach and which ends if idle.

Other users share the node and the network. So Jupyter listens on one address of the node and requires a random token.
Its kernels use sockets in a private folder, because anybody on the node could read their output from TCP ports. The
token is in files that only this user can read: in that folder, and in the job's folder until the login node has read
it. It is on no command line and in no log.
"""

import glob
import json
import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from typing import Optional

from deployer.contract.base.errors import JobFailed
from deployer.contract.site import network, plan
from deployer.contract.site.network import LOOPBACK_ADDRESS, NodeAddress
from deployer.site.container import home, node_folder
from deployer.site.rank import interfaces
from deployer.system import afterwards, files, process

#: The private folder in the job's folder, where new notebooks are made; and its files.
NAME, REQUEST, SERVER, LOG = "notebook", "request.json", "server", "jupyter.log"
_FOLDER = f"{plan.JOB}/{NAME}"
#: Seconds between two looks at Jupyter's start, and between its own looks for what is idle.
_PAUSE, _OFTEN = 0.2, 15
#: Jupyter's configuration, which overrides the image's own: an open page asks for news, even if nobody is there, so
#: only kernels and terminals count as activity.
_CONFIG = """\
import jupyter_server.base.handlers, traitlets.config
jupyter_server.base.handlers.APIHandler._track_activity = False
c.update(traitlets.config.Config(%r))
"""


def config(at: str, port: int, token: str, idle: int) -> str:
    """Return Jupyter's configuration.

    Args:
        at: the address to listen on.
        idle: seconds without activity after which kernels and terminals end, and then Jupyter.
    """
    server = {"ip": at, "port": port, "allow_remote_access": False, "allow_root": True, "open_browser": False}
    server.update(base_url="/", root_dir="/", preferred_dir=_FOLDER, password="", shutdown_no_activity_timeout=idle)
    return _CONFIG % {
        "ServerApp": {**server, "token": token},  # Jupyter Server 1 reads it here, 2 below
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": ""},
        "KernelManager": {"transport": "ipc"},
        "MappingKernelManager": {"cull_idle_timeout": idle, "cull_interval": _OFTEN, "cull_connected": True},
        "TerminalManager": {"cull_inactive_timeout": idle, "cull_interval": _OFTEN},
    }


def serve() -> int:
    """Run Jupyter until it ends, and return its exit status.

    The request has its program, the addresses of the login node, and ``idle`` as for ``config``.

    Raises:
        JobFailed: Jupyter did not start, or does not require the token.
    """
    os.umask(0o077)
    request, token, pid = json.loads(files.read_text(f"{_FOLDER}/{REQUEST}")), os.urandom(24).hex(), os.getpid()
    program, idle, login = request["program"], request["idle"], [NodeAddress(*each) for each in request["login"]]
    # If they share no network, the login node may be this machine.
    shared = network.common("node", {"node": interfaces.addresses(), "login": login})
    at = shared.address if shared else LOOPBACK_ADDRESS
    # Short, for the names of sockets; and with the owner, so that the next home removes what a killed job left.
    private = "%s%d-%s-%d.%s" % (home.BEGIN, os.getuid(), os.urandom(3).hex(), pid, afterwards.began(pid))
    node_folder.make(private, "Jupyter needs a private folder there")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as cleanup:
        cleanup.callback(files.remove_tree, private)
        cleanup.callback(_forget)
        files.write_text(f"{private}/config.py", config(at, interfaces.free_port() or 0, token, idle), 0o600)
        environment = {**os.environ, "JUPYTER_RUNTIME_DIR": private}
        server = process.Background([program, f"--config={private}/config.py"], environment, f"{_FOLDER}/{LOG}")
        cleanup.callback(server.stop)
        return _follow(server, private, "lab" if program.endswith("lab") else "tree", token)


def _forget() -> None:
    with suppress(FileNotFoundError):  # usually the login node has read it
        os.unlink(f"{_FOLDER}/{SERVER}")


def _follow(server: process.Background, private: str, page: str, token: str) -> int:
    """Write where Jupyter listens, and wait until it ends."""
    known = None
    while server.poll() is None:
        time.sleep(_PAUSE)
        known = known or _listening(private, page, token)
    if known is None:
        last = server.output().strip().rpartition("\n")[2]
        raise JobFailed(f"Jupyter did not start: {last}", f"see {NAME}/{LOG} in the job's folder")
    return server.poll() or 0


def _listening(private: str, page: str, token: str) -> Optional[str]:
    """Write and return where Jupyter listens, from its own record: another user may have taken the port before."""
    for path in glob.glob(f"{private}/jpserver-*.json"):
        with suppress(ValueError):  # it is being written
            known = json.loads(files.read_text(path))
            if known["token"] != token:
                raise JobFailed("Jupyter does not require the token", "remove the identity provider from the image")
            line = "{hostname} {port} {page} {token}".format(page=page, **known)
            files.write_text(f"{_FOLDER}/{SERVER}", line, 0o600)
            return line
    return None
