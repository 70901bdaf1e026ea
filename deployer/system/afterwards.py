"""Actions after the end of this process, whatever program it has become by then."""

import os
import signal
import time
from contextlib import suppress
from typing import Callable, Optional

#: Seconds between two checks of a process that is not a child.
_PAUSE = 0.2


def run(action: Callable[[], None]) -> None:
    """Call ``action`` in another process when this process has ended.

    That process is not a child of this one, so a program that waits for all its children does not wait for it. It has
    no files of this process open and is in another session, so it blocks neither the reader of a pipe nor a terminal.
    """
    pid = os.getpid()
    start = began(pid)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _let_go()
            _await(pid, start)
            action()
    finally:
        os._exit(0)


def _let_go() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # a signal that ends the awaited process must not end this one
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in sorted(map(int, os.listdir("/proc/self/fd"))):
        if descriptor <= 2:
            os.dup2(null, descriptor)
        else:
            with suppress(OSError):  # the descriptor of the list itself
                os.close(descriptor)


def _await(pid: int, start: Optional[str]) -> None:
    """Return when the process ``pid`` that started at ``start`` has ended."""
    while start is not None and began(pid) == start:
        time.sleep(_PAUSE)


def began(pid: int) -> Optional[str]:
    """Return when a process was started, in clock ticks since boot; None if it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            # The second field is the program's name in brackets; the third is the state, the 22nd the start (proc(5)).
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
