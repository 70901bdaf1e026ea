"""Start, beside a rank, the proxy that answers the program's requests as `fetch` recorded them (``replay_proxy``).

It is forked before the payload starts, and loads nothing until the first connection: most ranks read nothing. It ends
with the rank, when the other end of its pipe is closed.
"""

import os
import select
import signal
import socket

from deployer.contract.site.replay import CA_READERS, CERTIFICATES, VARIABLE
from deployer.system import payload

_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
#: Launchers send these to all processes of a rank; the payload may still download when it saves its state.
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def start(environment: "dict[str, str]") -> "dict[str, str]":
    """Start the proxy, and return the environment that leads a program to it.

    A job with another proxy keeps that one. gRPC gets none: ranks use it among themselves.
    """
    if any(environment.get(name) for name in _PROXIES):
        return environment
    folder, token, (alive, held) = environment[VARIABLE], os.urandom(16).hex(), os.pipe()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        address = f"http://deployer:{token}@127.0.0.1:{listener.getsockname()[1]}"
        if os.fork() == 0:
            os.close(held)
            _serve(listener, alive, folder, token)
    os.close(alive)
    before = [environment[name] for name in ("no_proxy", "NO_PROXY") if name in environment]
    near = ",".join(["localhost,127.0.0.1,::1", os.uname().nodename, *before])
    own = {**dict.fromkeys(_PROXIES, address), "no_proxy": near, "NO_PROXY": near, "grpc_proxy": ""}
    return {**environment, **own, **dict.fromkeys(CA_READERS, os.path.join(folder, CERTIFICATES))}


def _serve(listener: socket.socket, alive: int, folder: str, token: str) -> None:
    """Wait for a connection, answer it and others until the rank ends, and end this process."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_US)
        if alive not in select.select([listener.fileno(), alive], [], [])[0]:
            from deployer.site.container import replay_proxy

            replay_proxy.ReplayProxy(folder, token).serve(listener, alive)
    except (ImportError, OSError) as error:  # for example, a Python without ssl
        payload.complain(f"deployer: the job runs without the answers that fetch recorded: {error}")
    finally:
        os._exit(0)
