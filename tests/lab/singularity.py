"""A site's SingularityCE, setuid, on the nodes of a lab.

No registry has packages of it, so the archive of an installation at ``PREFIX`` that $DEPLOYER_SINGULARITY names is
installed: a setuid installation does not allow to be moved.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.apptainer import LOOP
from tests.lab.software import admins_umask

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: Names the archive; how it is made: docs/development.md.
ARCHIVE = "DEPLOYER_SINGULARITY"
PREFIX = "/home/apps/singularity"
#: Every shell finds it, as in most sites.
_LINK = f"mount -t overlay -o lowerdir={PREFIX}/link:/usr/bin overlay /usr/bin || exit\n"


def install_setuid(lab: Lab) -> Path:
    """Install it on all nodes of a lab, until they are started again; return its configuration."""
    installed = lab.home / Path(PREFIX).relative_to("/home")
    # Its paths begin with home/.
    unpack = ["tar", "-x", "-p", "--numeric-owner", "--strip-components=1", "-C", str(lab.home), "-f"]
    with admins_umask():
        subprocess.run([*unpack, os.environ[ARCHIVE]], check=True, timeout=120)
        (installed / "link").mkdir()
        (installed / "link/singularity").symlink_to(f"{PREFIX}/bin/singularity")
    for node in lab.definition().site.slurm_nodes:
        lab.sh(node, "root", _LINK + LOOP).check(f"install SingularityCE on {node}")
    return installed / "etc/singularity/singularity.conf"
