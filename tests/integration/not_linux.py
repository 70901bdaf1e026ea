"""Run deployer's command line as on macOS: what Python has on Linux only is taken away first. It is no test itself.

python -m tests.integration.not_linux BASE WORDS...: BASE is the engine's image that stands in for Debian's own.
"""

import os
import select
import signal
import socket
import sys
import sysconfig
import types

_ONLY_LINUX = {
    os: "copy_file_range eventfd getrandom getxattr listxattr memfd_create O_PATH pidfd_open posix_fadvise"
    " sched_getaffinity sched_setaffinity setns setresgid setresuid splice unshare",
    select: "epoll",
    signal: "pidfd_send_signal",
    socket: "AF_NETLINK AF_PACKET SO_PEERCRED",
}


def main() -> int:
    """Take it away, and run the command line."""
    sysconfig.get_config_vars()  # read from a file that is named by the platform
    proxies = types.ModuleType("_scproxy")  # Python's own module on macOS
    setattr(proxies, "_get_proxy_settings", dict)  # noqa: B010  a module has no such attribute for mypy
    setattr(proxies, "_get_proxies", dict)  # noqa: B010
    sys.modules["_scproxy"] = proxies
    for module, names in _ONLY_LINUX.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "darwin"
    from deployer.cli.laptop.main import main as command_line
    from deployer.connected.rehearse.ask import container_image

    container_image.built.__defaults__ = (sys.argv[1],)
    sys.argv[1:2] = []
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
