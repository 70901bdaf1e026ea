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
import socket
import sys
import time
from contextlib import suppress
from typing import Dict, Optional, Sequence

from deployer.contract.base import json_records
from deployer.contract.base.errors import JobFailed, Refused
from deployer.contract.base.json_records import Record
from deployer.contract.site import network, plan
from deployer.contract.site.network import LOOPBACK_ADDRESS, NodeAddress
from deployer.site.container import home, node_folder
from deployer.site.rank import interfaces
from deployer.system import afterwards, files, process

#: The private folder in the job's folder, where new notebooks are made; and its files.
NAME, SERVER, LOG = "notebook", "server.json", "jupyter.log"
_FOLDER = f"{plan.JOB}/{NAME}"
#: Seconds for Jupyter's start, from a slow file system, and between two looks.
_PATIENCE, _PAUSE = 300.0, 0.2


def address(login: Sequence[NodeAddress]) -> str:
    """Return this node's address for the login node with these addresses. Raises Refused if there is none."""
    own = interfaces.addresses()
    if {item.address for item in own} == {item.address for item in login}:
        return LOOPBACK_ADDRESS  # the same machine
    shared = network.common("node", {"node": own, "login": login})
    if shared:
        return shared.address
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = LOOPBACK_ADDRESS
    if named.startswith("127.") or named not in [item.address for item in own]:
        raise Refused("this node shares no network with the login node", "ask the site how to reach a node's port")
    return named


def config(at: str, port: int, token: str, idle: int) -> Record:
    """Return Jupyter's configuration, which overrides the image's own.

    Args:
        at: the address to listen on.
        idle: seconds without activity after which kernels, terminals and then Jupyter end.
    """
    often = max(1, min(60, idle // 4))
    server = {"ip": at, "port": port, "allow_remote_access": False, "allow_root": True, "open_browser": False}
    server.update(root_dir="/", preferred_dir=_FOLDER, shutdown_no_activity_timeout=idle, password="")
    culled = {"cull_idle_timeout": idle, "cull_interval": often, "cull_connected": True}
    return {
        "ServerApp": {**server, "token": token},  # Jupyter Server 1 reads it here, 2 below
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": ""},
        "KernelManager": {"transport": "ipc"},
        "MappingKernelManager": culled,
        "TerminalManager": {"cull_inactive_timeout": idle, "cull_interval": often},
    }


def serve(program: str, idle: int, login: Sequence[NodeAddress]) -> int:
    """Run Jupyter until it ends, and return its exit status.

    Args:
        program: one of Jupyter's programs in the image.
        idle: as in ``config``.
        login: the addresses of the login node.

    Raises:
        JobFailed: Jupyter did not start, or does not require the token.
        Refused: the login node cannot reach this node.
    """
    os.umask(0o077)
    at, port, token = address(login), interfaces.free_port() or 0, os.urandom(24).hex()
    # Short, for the names of sockets; and with the owner, so that the next home removes what a killed job left.
    pid = os.getpid()
    private = "%s%d-%s-%d.%s" % (home.BEGIN, os.getuid(), os.urandom(3).hex(), pid, afterwards.began(pid))
    node_folder.make(private, "Jupyter needs a private folder there")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        files.write_text(f"{private}/config.json", json_records.pretty(config(at, port, token, idle)), 0o600)
        server = process.Background([program, f"--config={private}/config.json"], _environment(private), _log())
        try:
            return _follow(server, program, private, token, at)
        finally:
            server.stop()
    finally:
        files.remove_tree(private)
        _forget(os.path.join(_FOLDER, SERVER))


def _log() -> str:
    return os.path.join(_FOLDER, LOG)


def _environment(private: str) -> Dict[str, str]:
    return {**os.environ, "JUPYTER_RUNTIME_DIR": private}


def _follow(server: process.Background, program: str, private: str, token: str, at: str) -> int:
    """Write where Jupyter listens, and wait for its end."""
    until: Optional[float] = time.monotonic() + _PATIENCE
    while server.poll() is None:
        known = _listening(private) if until else None
        if known:
            if known.get("token") != token:
                raise JobFailed("Jupyter does not require the token", "remove the identity provider from the image")
            record = {"address": at, "port": known["port"], "token": token}
            record["page"] = "lab" if program.endswith("lab") else "tree"
            files.write_text(os.path.join(_FOLDER, SERVER), json_records.pretty(record), 0o600)
            until = None
        if until and time.monotonic() > until:
            raise JobFailed("Jupyter did not start within %d s" % _PATIENCE, f"see {_log()}")
        time.sleep(_PAUSE)
    if until:
        raise JobFailed("Jupyter ended at its start: " + server.output().strip().rpartition("\n")[2], f"see {_log()}")
    return server.poll() or 0


def _listening(private: str) -> Optional[Record]:
    """Return Jupyter's own record, which it writes when it listens: another user may have taken the port before."""
    for path in glob.glob(f"{private}/jpserver-*.json"):
        with suppress(ValueError):  # it is being written
            record: Record = json.loads(files.read_text(path))
            return record
    return None


def _forget(path: str) -> None:
    with suppress(FileNotFoundError):  # the login node has read it
        os.unlink(path)
