"""The choice of the site's Python that runs deployer in jobs."""

import os
import shutil
import sys
from typing import Sequence

from deployer.contract.base.errors import MissingTool


def choose(candidates: Sequence[str]) -> str:
    """Return the first of the plan's Pythons that exists here, or else the running one. Raises MissingTool."""
    path = next(filter(None, (shutil.which(os.path.expanduser(each)) for each in candidates)), sys.executable)
    if not path:
        raise MissingTool("none of the plan's Pythons is here: {}".format(", ".join(candidates)))
    return path
