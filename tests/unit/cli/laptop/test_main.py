"""Interrupts of the laptop's program."""

import subprocess
import sys

import pytest

START = """
import _imp, os, signal, sys, time, weakref
from concurrent.futures import ThreadPoolExecutor
from deployer.cli.laptop import main
signal.signal(signal.SIGTERM, main._interrupt)
sys.unraisablehook = main._interrupt_again
def interrupt(_):
    os.kill(os.getpid(), signal.SIGTERM)
item = {1}
"""
#: The interrupt comes in a callback, where Python ignores exceptions.
LOST = """
watched = weakref.ref(item, interrupt)
try:
    del item
    time.sleep(20)
except KeyboardInterrupt:
    sys.exit(130)
"""
#: The interrupt comes when a callback of an import holds the import lock; then another thread imports.
LOCKED = """
text = "def callback(_):\\n _imp.acquire_lock()\\n os.kill(os.getpid(), signal.SIGTERM)\\n _imp.release_lock()"
exec(compile(text, main._IMPORTS, "exec"))
watched = weakref.ref(item, callback)
try:
    with ThreadPoolExecutor(1) as pool:
        del item
        pool.submit(__import__, "xmlrpc.server").result()
        time.sleep(20)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("text", [LOST, LOCKED], ids=["lost", "locked"])
def test_an_interrupt_ends_the_program_wherever_it_comes(text: str) -> None:
    argv = [sys.executable, "-c", START + text]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "")
