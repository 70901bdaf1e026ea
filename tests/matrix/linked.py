"""Copies of trees that cost nothing: hard links."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_tree(source: Path, target: Path) -> None:
    """Copy a tree by hard links, into a folder that may be there: nobody may write into the files of either."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
