"""The doors of a simulated node to a program outside, which answers for the internet: for `fetch`.

The node has no network. All outside names have one address of the node itself, on which two sockets listen. They are
made in the node's network namespace and given to the program outside, which accepts connections from there.
"""

import socket
import struct
from collections.abc import Sequence

#: The address of all outside names: of the block for tests of networks (RFC 2544), which no host on the internet has.
ADDRESS = "198.18.0.1"
#: The ports of the doors, in the order in which their sockets are sent.
PORTS = (443, 80)
_BACKLOG = 128


def interface(doors: str) -> Sequence[str]:
    """Return the commands for `ip` that give the node the address; none without ``doors``."""
    return [f"address add {ADDRESS}/32 dev lo"] if doors else []


def open_for(doors: str) -> None:
    """Listen on the ports, and send the sockets to the socket ``doors``; empty: do nothing. Raises OSError."""
    if not doors:
        return
    made = []
    for port in PORTS:
        listener = socket.socket()
        listener.bind((ADDRESS, port))
        listener.listen(_BACKLOG)
        made.append(listener)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(doors)
        socket.send_fds(connection, [struct.pack("!B", len(made))], [listener.fileno() for listener in made])
    for listener in made:
        listener.close()
