"""The folders of a rehearsal: the audit hook for the job's Pythons, and the files that observers write.

The job can write anything there, so files are read with limits, and no link is followed.
"""

import os
import pkgutil
from typing import Iterator, Optional, Tuple

from deployer.contract.base.errors import DeployerError
from deployer.contract.rehearsal import observation
from deployer.system import files
from deployer.system.observe import audit_hook

#: Folders below the job's: observations, and the hook.
SEEN, HOOK = "rehearsal", "rehearsal-hook"
#: The job's environment variable for the folder of observations. The second variable specifies the hook's folder in a
#: plan; in the container's environment, that folder is first in PYTHONPATH instead.
VARIABLE = audit_hook.FOLDER
HOOK_VARIABLE = VARIABLE + "_HOOK"
#: In place of a file that cannot be read: a line that the report counts as unreadable.
_UNREADABLE = b"unreadable"


def prepare(folder: str) -> None:
    """Make both folders in ``folder``, with the hook, which Python imports at its start."""
    code = pkgutil.get_data("deployer.system.observe", "audit_hook.py")
    if code is None:
        raise DeployerError("this deployer.pyz has no audit_hook.py", "make it again on the laptop: deployer pyz")
    with files.errors_named("make the folders of a rehearsal in " + folder):
        os.mkdir(os.path.join(folder, SEEN), 0o700)
        os.mkdir(os.path.join(folder, HOOK), 0o700)
        with open(os.path.join(folder, HOOK, "sitecustomize.py"), "wb") as stream:
            stream.write(code)


def before(hook: str, path: str) -> str:
    """Return a PYTHONPATH that begins with the hook's folder: Python imports the first sitecustomize that it finds."""
    return f"{hook}:{path}" if path else hook


def written(folder: str) -> Iterator[Tuple[str, bytes]]:
    """Yield name and first bytes of each file of observations in a folder; none if that is a link."""
    for name in [] if files.is_link(folder) else files.names(folder):
        if name.endswith(observation.SUFFIX):
            data = first_bytes(os.path.join(folder, name), observation.MAX_FILE + 1)
            yield name, _UNREADABLE if data is None else data


def first_bytes(path: str, limit: int) -> Optional[bytes]:
    """Return the first bytes of a file that a job or its observer wrote; None if it is not a regular file."""
    try:
        with files.open_regular(path, follow=False) as stream:
            return stream.read(limit)
    except OSError:
        return None
