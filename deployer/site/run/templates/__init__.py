"""The texts of job.sh, its staging step and the agent program: files in this folder, divided into sections."""

import functools
import pkgutil
import re
from typing import Dict

from deployer.contract.base import shell
from deployer.contract.base.shell import Code, Filling

#: The line before a section, with its name.
_SECTION = re.compile(r"^#= ([a-z-]+)\n", re.MULTILINE)


@functools.lru_cache(maxsize=None)
def _sections(file: str) -> Dict[str, str]:
    content = pkgutil.get_data(__name__, file)
    parts = _SECTION.split((content or b"").decode())[1:]
    # A condition at the end of a section has its own line ends.
    return {name: text[:-1] if text.endswith("@.@\n") else text for name, text in zip(parts[::2], parts[1::2])}


def fill(file: str, section: str, **values: Filling) -> Code:
    """Return a section of a file, filled with values; see ``shell.filled``."""
    return shell.filled(_sections(file)[section], values)
