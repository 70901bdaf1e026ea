"""Start, beside a rank, the proxy that answers the program's requests as `fetch` recorded them (``replay_proxy``).

It is forked before the payload starts, and loads nothing until the first connection: most ranks read nothing. It ends
with the rank, when the other end of its pipe is closed. This module imports as little as ``rank``.
"""

import os
import select

from deployer.contract.site.replay import CA_READERS, CERTIFICATES, HOSTS, VARIABLE
from deployer.system import payload

MYPY = False
if MYPY:
    import signal
    import socket
else:
    import _signal as signal
    import _socket as socket

_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_BACKLOG = 128
#: Launchers send these to all processes of a rank; the payload may still download when it saves its state.
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def start(environment: "dict[str, str]") -> "dict[str, str]":
    """Start the proxy, and return the environment that leads a program to it.

    A job with another proxy keeps that one. gRPC gets none: ranks use it among themselves.
    """
    if any(environment.get(name) for name in _PROXIES):
        return environment
    folder, token = environment[VARIABLE], os.urandom(16).hex()
    try:
        with open(os.path.join(folder, HOSTS), encoding="utf-8") as stream:
            hosts = stream.read().split()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        alive, held = os.pipe()
        pid = os.fork()
    except OSError as error:
        payload.complain(f"deployer: the job runs without what fetch recorded: {error}")
        return environment
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_US)
            os.close(held)
            if alive not in select.select([listener.fileno(), alive], [], [])[0]:
                from deployer.site.container import replay_proxy

                replay_proxy.ReplayProxy(folder, hosts, token).serve(listener.detach(), alive)
        finally:
            os._exit(0)
    os.close(alive)
    address = f"http://deployer:{token}@127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    before = environment.get("no_proxy") or environment.get("NO_PROXY")
    near = ",".join(filter(None, ("localhost,127.0.0.1,::1", os.uname().nodename, before)))
    return {
        **environment,
        **dict.fromkeys(_PROXIES, address),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), near),
        **dict.fromkeys(CA_READERS, os.path.join(folder, CERTIFICATES)),
        "grpc_proxy": "",
    }
