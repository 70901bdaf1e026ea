"""deployer notebook: JupyterLab of an image in a job, in a browser here, through the login node.

The job lives while the command at the site does, and that command while this process does.
"""

import argparse
import contextlib
import http.client
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from deployer.cli.site import common
from deployer.contract.base import dialogue, json_records
from deployer.contract.base.errors import BY_EXIT_CODE, TransferError
from deployer.contract.base.json_records import Fields
from deployer.system import terminal

if TYPE_CHECKING:
    from deployer.connected.transfer.remote import Remote

#: Jupyter's usual port.
_PORT = 8888
#: Seconds for an answer through the tunnel, and between two attempts.
_PATIENCE, _PAUSE = 30.0, 0.5
_ADDRESS, _TOKEN = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}"), re.compile(r"[0-9a-f]{48}")


def add_port(parser: Any) -> None:
    """Add the option of this side."""
    text = f"the port of this machine for the browser (default: {_PORT}, or another if it is in use)"
    common.add(parser, "--port", "PORT", text, type=int)


def show(args: argparse.Namespace, remote: "Remote", words: Sequence[str], site: Sequence[str]) -> int:
    """Start the notebook, print its address, and wait until its job or this command ends.

    Raises:
        TransferError: the login node cannot reach the notebook, or the connection broke.
    """
    held, begun = remote.hold(words, site), False
    try:
        with ExitStack() as cleanup:
            for answer in _answers(held.lines(1.0)):
                begun = True
                if "state" in answer.record:
                    terminal.tell(f"deployer: job {answer.text('job')}: {answer.text('state')}")
                if "server" in answer.record:
                    _open(args, remote, answer.child("server"), cleanup)
        code = held.end()
    except BaseException:
        held.end()  # the site sees the end of its input, and cancels the job
        raise
    if begun and code not in BY_EXIT_CODE and code:
        raise TransferError(f"the connection to {remote.host} broke", "the site cancels the job; see `deployer jobs`")
    if not code:
        terminal.tell("deployer: the notebook has ended")
    return code


def _answers(lines: Iterator[str]) -> Iterator[Fields]:
    for line in lines:
        if line.startswith(dialogue.ANSWER):
            what = "the site's answer"
            data = line[len(dialogue.ANSWER) :].encode()
            yield Fields(json_records.parse(data, what, TransferError), what, TransferError)


def _open(args: argparse.Namespace, remote: "Remote", server: Fields, cleanup: ExitStack) -> None:
    """Open the tunnel, check that the notebook answers, and print its address."""
    address, there, token = server.text("address"), server.number("port"), server.text("token")
    if not (_ADDRESS.fullmatch(address) and 0 < there < 65536 and _TOKEN.fullmatch(token)):
        raise TransferError("the site's answer has no address", "update deployer on both sides")
    port = args.port or _free_port()
    cleanup.enter_context(remote.tunnel(port, address, there))
    until = time.monotonic() + _PATIENCE
    while not _replies(port, token):
        if time.monotonic() > until:
            raise TransferError(
                f"{remote.host} cannot reach port {there} of the node {address}, or its ssh forwards no ports",
                "ask the site whether login nodes may reach ports of jobs, and for AllowTcpForwarding; "
                "`deployer shell` needs no port",
            )
        time.sleep(_PAUSE)
    page = "lab" if server.text("page") == "lab" else "tree"
    terminal.show(f"http://127.0.0.1:{port}/{page}?token={token}")
    terminal.hint("next", "open this address in a browser here; Ctrl-C ends the notebook and its job")


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for port in (_PORT, 0):
            with contextlib.suppress(OSError):
                trial.bind(("127.0.0.1", port))
                break
        return int(trial.getsockname()[1])


def _replies(port: int, token: str) -> bool:
    """Return whether our notebook, which knows the token, answers on this port."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", "/api/status", headers={"Authorization": f"token {token}"})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
