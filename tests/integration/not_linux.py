"""Run deployer's command line as on macOS: functions that Python has only on Linux are removed first. It is not a test.

python -m tests.integration.not_linux BASE WORDS...: BASE is an image in the engine, used in place of Debian's; in
place of the command line, `imports` loads each module of the laptop's half.
"""

import ctypes
import fcntl
import importlib
import os
import pkgutil
import resource
import select
import selectors
import shutil
import signal
import socket
import sys
import sysconfig
import time
import types
from typing import Any

_ONLY_LINUX = {
    os: "copy_file_range eventfd eventfd_read eventfd_write fdatasync getrandom getresgid getresuid getxattr listxattr"
    " memfd_create O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE pidfd_open pipe2 posix_fadvise"
    " POSIX_FADV_DONTNEED posix_fallocate removexattr sched_getaffinity sched_getparam sched_getscheduler"
    " sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler setns setresgid setresuid setxattr"
    " splice unshare",
    fcntl: "F_ADD_SEALS F_GETPIPE_SZ F_NOTIFY F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_SETLEASE F_SETPIPE_SZ F_SETSIG",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_SIGPENDING RUSAGE_THREAD",
    select: "epoll",
    signal: "pidfd_send_signal SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT sigtimedwait sigwaitinfo",
    socket: "AF_ALG AF_NETLINK AF_PACKET AF_VSOCK MSG_CMSG_CLOEXEC SO_DOMAIN SO_MARK SO_PASSCRED SO_PEERCRED"
    " SOCK_CLOEXEC SOCK_NONBLOCK TCP_QUICKACK TCP_USER_TIMEOUT",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
}
#: Functions of Linux's C library that macOS lacks.
_NOT_IN_C = "capget capset epoll_create mallopt memfd_create pidfd_open prctl setns unshare"
_MODULES = ("deployer.cli.laptop", "deployer.connected", "deployer.contract", "deployer.system")


class _Library(ctypes.CDLL):
    """A C library as macOS has it."""

    def __init__(self, name: Any, *words: Any, **settings: Any) -> None:
        if name and ".so" in str(name) and os.sep not in str(name):
            raise OSError(f"dlopen({name}, 0x0006): tried: '{name}' (no such file)")
        super().__init__(name, *words, **settings)

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_IN_C.split():
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def _become_macos() -> None:
    """Take away from Python what macOS lacks."""
    sysconfig.get_config_vars()  # read from a file that is named by the platform
    proxies: Any = types.ModuleType("_scproxy")  # Python's own module on macOS
    proxies._get_proxies = dict
    proxies._get_proxy_settings = lambda: {"exclude_simple": False}
    sys.modules["_scproxy"] = proxies
    for module, names in _ONLY_LINUX.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for module in (selectors, shutil):  # they have chosen already
        importlib.reload(module)
    ctypes.CDLL = _Library  # type: ignore[misc]
    words = ("Darwin", "Janes-MacBook-Air.local", "24.6.0", "Darwin Kernel Version 24.6.0", "arm64")
    os.uname = lambda: os.uname_result(words)
    sys.platform = "darwin"


def _imports() -> int:
    """Import each module of the laptop's half."""
    for top in _MODULES:
        package = importlib.import_module(top)
        for module in pkgutil.walk_packages(package.__path__, f"{top}."):
            if not module.name.startswith("deployer.connected.image.recipes") and ".templates" not in module.name:
                importlib.import_module(module.name)
    return 0


def main() -> int:
    """Become macOS, and run the command line."""
    _become_macos()
    base = sys.argv.pop(1)
    if sys.argv[1:] == ["imports"]:
        return _imports()
    from deployer.cli.laptop.main import main as command_line
    from deployer.connected.bundle import seal
    from deployer.connected.image.bases import helper

    helper.DEBIAN = base
    seal._FLUSH_EVERY = 4096  # as often as in a large bundle
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
