"""The program `ssh` of a rehearsal: `ssh [OPTION...] NODE WORDS...` passes WORDS to a shell on the node.

It runs as a standalone file and needs only Python's standard library.
"""

import os
import socket
import sys

#: The folder of the nodes' sockets, on each machine. It is outside the folders that a container shares with its node,
#: such as /tmp.
SOCKETS = "/.nodes"
#: The ssh options that have a value.
_WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"
#: The first byte of a request: whether the command receives SIGTERM when this program ends. Then the last byte.
TIED, LOOSE, END = b"t", b"l", b"\0"


def main() -> int:
    """Run the command on the node and return its exit code."""
    words = sys.argv[1:]
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if len(option) == 2 and option[1] in _WITH_VALUE:
            words = words[1:]
    if not words:
        sys.stderr.write("ssh: no node was named\n")
        return 255
    os.chdir(SOCKETS)
    node = words.pop(0).rpartition("@")[2]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            if "/" in node:
                raise FileNotFoundError
            connection.connect(node)
        except OSError as error:
            sys.stderr.write(f"ssh: {node} is not a node of this rehearsal: {error}\n")
            return 255
        socket.send_fds(connection, [TIED if "REHEARSAL_TIED" in os.environ else LOOSE], [0, 1, 2])
        connection.sendall(os.fsencode(" ".join(words)))
        connection.sendall(END)
        said = b"".join(iter(lambda: connection.recv(64), b""))
    return int(said) if said.isdigit() else 255


if __name__ == "__main__":
    sys.exit(main())
