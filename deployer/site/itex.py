"""Is Intel's extension active in TensorFlow: import it once, in a process of its own, and see what it has mapped.

The one proof of the probe that needs a package of the image, and is asked for only where the bundle has the extension.
TensorFlow goes on without it when it does not fit, and nobody notices; its API says nothing that proves anything
(``get_backend()`` says GPU on a CPU). Its library of kernels, one for each instruction set, is mapped when it is used.
"""

import os
import re
import shutil
import sys

from deployer.contract.errors import DeployerError
from deployer.contract.measures import Itex
from deployer.system import process

#: Seconds; an import takes 2 to 5, from a cold shared file system many more.
_PATIENCE = 90.0
_LIBRARY = re.compile(r"/(libitex_[cg]pu_internal\w*\.so)$", re.MULTILINE)

_IMPORT = """
import tensorflow
with open("/proc/self/maps") as stream:
    print("\\n".join(sorted({"maps " + line.split(None, 5)[5].strip() for line in stream if "libitex" in line})))
print("imported tensorflow", tensorflow.__version__)
"""


def look() -> Itex:
    """Import TensorFlow as the payload would, by the Python that PATH finds, and say whether the extension is in it."""
    python = shutil.which("python3") or sys.executable
    try:
        done = process.glance([python, "-c", _IMPORT], _PATIENCE, env=dict(os.environ))
    except DeployerError:
        return Itex(None, "import tensorflow did not end within %d s" % _PATIENCE)
    if done.returncode:
        return Itex(None, "import tensorflow failed: %s" % done.last_words(1))
    return judge(done.stdout, done.stderr)


def judge(said: str, complained: str) -> Itex:
    """Return the verdict on what the import printed and logged."""
    found = _LIBRARY.search(said)
    if found:
        return Itex(found.group(1), None)
    version = re.search(r"^imported tensorflow (\S+)", said, re.MULTILINE)
    reason = "TensorFlow %s maps no libitex_*_internal*.so" % (version.group(1) if version else "(unknown)")
    words = [line for line in complained.splitlines() if re.search(r"itex|plugin|extension", line, re.IGNORECASE)]
    return Itex(None, reason + (": " + words[-1].strip()[:300] if words else ""))
