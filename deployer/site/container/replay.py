"""Start, beside a rank, the proxy that answers the program's requests as `fetch` recorded them (``replay_proxy``).

It is forked before the payload starts, and loads nothing until the first connection: most ranks read nothing. It ends
with the rank, when the other end of its pipe is closed. This module imports as little as ``rank``.
"""

import _socket
import os
import select

from deployer.contract.site.replay import CA_READERS, CERTIFICATES, VARIABLE
from deployer.system import payload

_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def start(environment: "dict[str, str]") -> "dict[str, str]":
    """Start the proxy, and return the environment that leads a program to it.

    A job with another proxy keeps that one. gRPC gets none: ranks use it among themselves.
    """
    if any(environment.get(name) for name in _PROXIES):
        return environment
    folder, token, (alive, held) = environment[VARIABLE], os.urandom(16).hex(), os.pipe()
    listener = _socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    address = f"http://deployer:{token}@127.0.0.1:{listener.getsockname()[1]}"
    child = os.fork()
    if child == 0:
        os.close(held)
        _serve(listener, alive, folder, token)
    os.setpgid(child, child)  # launchers signal a rank's group, and the payload may download when it saves its state
    listener.close()
    os.close(alive)
    before = [environment[name] for name in ("no_proxy", "NO_PROXY") if name in environment]
    near = ",".join(["localhost,127.0.0.1,::1", os.uname().nodename, *before])
    own = {**dict.fromkeys(_PROXIES, address), "no_proxy": near, "NO_PROXY": near, "grpc_proxy": ""}
    return {**environment, **own, **dict.fromkeys(CA_READERS, os.path.join(folder, CERTIFICATES))}


def _serve(listener: _socket.socket, alive: int, folder: str, token: str) -> None:
    """Wait for a connection, answer it and others until the rank ends, and end this process."""
    try:
        os.setpgid(0, 0)
        if alive not in select.select([listener.fileno(), alive], [], [])[0]:
            from deployer.site.container import replay_proxy

            replay_proxy.ReplayProxy(folder, token).serve(listener.detach(), alive)
    except (ImportError, OSError) as error:  # for example, a Python without ssl
        payload.complain(f"deployer: the job runs without the answers that fetch recorded: {error}")
    finally:
        os._exit(0)
