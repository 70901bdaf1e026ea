"""The folders of a rehearsal: the audit hook for the job's Pythons, and the files that observers write.

The job can write anything there, so files are read with limits, and no link is followed.
"""

import os
import pkgutil
from typing import Iterator, Tuple

from deployer.contract import observation
from deployer.contract.errors import DeployerError
from deployer.system import audit_hook, files

#: Folders below the job's: observations, and the hook.
SEEN, HOOK = "rehearsal", "rehearsal-hook"
#: The variable for the folder of observations, in the job's environment.
VARIABLE = audit_hook.FOLDER


def prepare(folder: str) -> None:
    """Make both folders in ``folder``, with the hook, which Python imports at its start."""
    code = pkgutil.get_data("deployer.system", "audit_hook.py")
    if code is None:
        raise DeployerError("this deployer.pyz has no audit_hook.py", "make it again: deployer pyz")
    with files.errors_named("make the folders of a rehearsal in " + folder):
        os.mkdir(os.path.join(folder, SEEN), 0o700)
        os.mkdir(os.path.join(folder, HOOK), 0o700)
        with open(os.path.join(folder, HOOK, "sitecustomize.py"), "wb") as stream:
            stream.write(code)


def written(folder: str) -> Iterator[Tuple[str, bytes]]:
    """Yield name and first bytes of each file of observations below the job's folder."""
    seen = os.path.join(folder, SEEN)
    for name in files.names(seen):
        if name.endswith(observation.SUFFIX):
            yield name, _read(os.path.join(seen, name))


def _read(path: str) -> bytes:
    """Return the first bytes of a file; what cannot be read is a line that the report counts as unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            return stream.read(observation.MAX_FILE + 1)
    except OSError:
        return b"unreadable"
