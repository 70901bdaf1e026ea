"""Whether the login node reaches ports of compute nodes, as notebooks need: a node listens, and the survey connects."""

import os
import socket
import time
from contextlib import closing, suppress
from typing import Optional, Sequence

from deployer.contract.base import json_records
from deployer.contract.site import network
from deployer.contract.site.network import LOOPBACK_ADDRESS, NodeAddress
from deployer.system import files

#: Seconds for which a node listens, longer than the survey's pauses; and for a connection.
_LISTENS, _CONNECTS = 20.0, 3.0


def listen(path: str, own: Sequence[NodeAddress]) -> None:
    """Listen on a port of this node, named in the new file ``path``, until the login node has removed that.

    Args:
        own: this node's addresses.
    """
    with closing(socket.socket()) as server:
        server.bind(("", 0))
        server.listen(1)
        record = {"port": server.getsockname()[1], "node": own}
        files.write_text(path, json_records.pretty(record), 0o600)
        until = time.monotonic() + _LISTENS
        while time.monotonic() < until and os.path.basename(path) in os.listdir(os.path.dirname(path)):
            time.sleep(0.2)
    with suppress(FileNotFoundError):
        os.unlink(path)


def reached(path: str, own: Sequence[NodeAddress]) -> Optional[bool]:
    """Return whether the node that wrote ``path`` can be reached from here, and remove that file; None if too late.

    Args:
        own: the login node's addresses.
    """
    try:
        with files.open_regular(path) as stream:
            wanted = json_records.parse(stream.read(), path)
        nodes = {"node": [NodeAddress(*each) for each in wanted["node"]], "login": own}
        shared = network.common("node", nodes)
        address = shared.address if shared else LOOPBACK_ADDRESS  # where a notebook would listen
        try:
            socket.create_connection((address, wanted["port"]), _CONNECTS).close()
            connected = True
        except OSError:
            connected = False
        os.unlink(path)
    except FileNotFoundError:  # the node no longer listens
        return None
    return connected
