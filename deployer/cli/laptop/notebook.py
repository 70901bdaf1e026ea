"""deployer notebook: JupyterLab of an image in a job, in a browser here, through the login node.

The job ends with the command at the site, and that command ends with the connection.
"""

import http.client
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

from deployer.connected.transfer.remote import Remote
from deployer.contract.base import dialogue
from deployer.contract.base.errors import TransferError
from deployer.system import terminal

#: Attempts to get an answer through the tunnel, and seconds between two.
_ATTEMPTS, _PAUSE = 40, 0.5
#: The site's line: where the notebook listens, its page, and its token.
_SERVER = re.compile(rf"{dialogue.ANSWER}([0-9.]+) ([0-9]+) (lab|tree) ([0-9a-f]+)")


def show(remote: Remote, words: Sequence[str], site: Sequence[str], port: int) -> int:
    """Start the notebook, print its address, and wait until its job or this command ends.

    Args:
        words: the site's command.
        site: the options that select the site.
        port: the port of this machine for the browser.

    Raises:
        TransferError: the login node cannot reach the notebook, or the connection broke.
    """
    with ExitStack() as cleanup:

        def hear(line: bytes) -> bool:
            server = _SERVER.fullmatch(line.decode("utf-8", "replace"))
            if server:
                address, there, page, token = server.groups()
                cleanup.enter_context(remote.tunnel(port, address, there))
                _wait(port, token, f"{remote.host} cannot reach port {there} of the node {address}")
                terminal.show(f"http://127.0.0.1:{port}/{page}?token={token}")
                terminal.hint("next", "open this address in a browser here; Ctrl-C ends the notebook and its job")
            return server is not None

        return remote.attach(words, site, heard=hear).status


def _wait(port: int, token: str, problem: str) -> None:
    """Return when our notebook, which knows the token, answers on this port. Raises TransferError."""
    for _ in range(_ATTEMPTS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/api/status", headers={"Authorization": f"token {token}"})
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(_PAUSE)
    hint = "ask whether its ssh forwards ports (AllowTcpForwarding) and nodes accept them; `shell` needs no port"
    raise TransferError(f"{problem}, or its ssh forwards none", hint)
