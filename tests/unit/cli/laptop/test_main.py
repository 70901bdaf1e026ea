"""Interrupts of the laptop's program."""

import subprocess
import sys

#: The first interrupt comes in a callback, where Python ignores exceptions.
LOST = """
import signal, sys, time, weakref
from deployer.cli.laptop import main
signal.signal(signal.SIGTERM, main._interrupt)
sys.unraisablehook = main._interrupt_again
item = {1}
watched = weakref.ref(item, main._interrupt)
try:
    del item
    time.sleep(20)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_that_python_ignores_is_repeated() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")
