"""enroot on the nodes of a lab: a stand-in (fake_enroot.py), because no package registry has enroot.

``DEPLOYER_ENROOT`` names the folder of a real one instead, built from its sources with the prefix ``PREFIX``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.software import admins_umask
from tests.lab.state import write_atomically

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

PREFIX = "/home/apps/enroot"
_FAKE = Path(__file__).with_name("fake_enroot.py")


def install(lab: Lab) -> None:
    """Put it into the PATH of a login shell on all nodes."""
    target = _place(lab)
    real = os.environ.get("DEPLOYER_ENROOT")
    with admins_umask():
        if real:
            shutil.copytree(real, target)
        else:
            (target / "bin").mkdir(parents=True)
            shutil.copy(_FAKE, target / "fake_enroot.py")
            start = target / "bin" / "enroot"
            start.write_text(f'#!/bin/sh\nexec python3 -I -S {PREFIX}/fake_enroot.py "$@"\n')
            start.chmod(0o755)
    write_atomically(lab.state.profile_d / "enroot.sh", f'PATH="$PATH:{PREFIX}/bin"\n')


def remove(lab: Lab) -> None:
    """Take it from the nodes."""
    (lab.state.profile_d / "enroot.sh").unlink(missing_ok=True)
    shutil.rmtree(_place(lab), ignore_errors=True)


def _place(lab: Lab) -> Path:
    return lab.home / Path(PREFIX).relative_to("/home")
