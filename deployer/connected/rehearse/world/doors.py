"""The doors of a simulated node to a program outside, which answers for the internet: for `fetch`.

The node has no network. All outside names have one address of the node itself, on which two sockets listen. They are
made in the node's network namespace and given to the program outside, which accepts connections from there.
"""

import socket
import struct

#: The address of all outside names: PCP's anycast (RFC 7723), which no host has for files. It counts as an address of
#: the internet: NLTK 3.10 refuses private and reserved ones.
ADDRESS = "192.0.0.9"
#: The ports of the doors, in the order in which their sockets are sent.
PORTS = (443, 80)
_BACKLOG = 128


def interface() -> str:
    """Return the command for `ip` that gives the node the address."""
    return f"address add {ADDRESS}/32 dev lo"


def open_for(doors: str) -> list[int]:
    """Listen on the ports, and send the sockets to the socket ``doors``. Return the ports. Raises OSError."""
    made: list[socket.socket] = []
    for port in PORTS:
        listener = socket.socket()
        listener.bind((ADDRESS, port))
        listener.listen(_BACKLOG)
        made.append(listener)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(doors)
        socket.send_fds(connection, [struct.pack("!B", len(made))], [listener.fileno() for listener in made])
    ports = [int(listener.getsockname()[1]) for listener in made]
    for listener in made:
        listener.close()
    return ports
