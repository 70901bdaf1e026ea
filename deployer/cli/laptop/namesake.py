"""Detect another program named deployer from the package index: in one environment, both packages damage each other.

Our distribution is named deployer-hpc.
"""

import contextlib
import re
import sys
from pathlib import Path

_OWN_FILES = re.compile(r"^deployer(/|$)", re.MULTILINE)


def version() -> str:
    """Return the version of the other program, or of a deployer from before the rename; empty if not found."""
    for folder in (Path(path) for path in sys.path if path.endswith("-packages")):
        with contextlib.suppress(OSError):
            for metadata in folder.glob("deployer-[0-9]*-info"):
                listed = metadata / ("RECORD" if metadata.suffix == ".dist-info" else "top_level.txt")
                if _OWN_FILES.search(listed.read_text(errors="replace")):  # an editable install lists none
                    return metadata.name.split("-")[1].removesuffix(".dist").removesuffix(".egg")
    return ""
