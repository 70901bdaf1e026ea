"""Processes that are a copy of the test's own: a Python that imports all anew takes ten times as long."""

import os
import signal
import subprocess
import sys
import traceback


def start(function, env=None, **options):
    """Start ``function()`` in a process of its own and return it as ``subprocess.Popen`` does.

    The process has ``env`` in place of this one's environment, and what this one has imported and patched. Its exit
    code is what the function returns or leaves with. ``options`` are those of Popen.
    """

    kept = _opened()  # logs, for example

    def become():
        code = 1
        try:
            _be_new(env, kept)
            code = function() or 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException:  # noqa: BLE001 or the rest of the tests would go on here as well
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    return subprocess.Popen([sys.executable], preexec_fn=become, **options)  # noqa: PLW1509 nothing here uses threads


def _opened():
    found = map(int, os.listdir("/proc/self/fd"))
    return {each for each in found if os.path.exists(f"/proc/self/fd/{each}")}  # not that of the listing


def _be_new(env, kept):
    """Undo what pytest and this process's start have changed, as far as a program sees it."""
    for descriptor in _opened() - kept:
        os.close(descriptor)  # Popen's pipe among them, which waits for it
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)


def fork(function):
    """Call ``function`` in a forked process and return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid
