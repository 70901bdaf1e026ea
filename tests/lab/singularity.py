"""A site's SingularityCE, setuid, on the nodes of a lab.

No registry has packages of it, so the archive of an installation at ``PREFIX`` that $DEPLOYER_SINGULARITY names is
installed: a setuid installation does not allow to be moved.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.apptainer import LOOP
from tests.lab.software import admins_umask, unpack

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: The variable that names the archive. docs/development.md says how to make the archive.
ARCHIVE = "DEPLOYER_SINGULARITY"
PREFIX = "/home/apps/singularity"
#: Every shell finds it, as in most sites.
_LINK = f"mount -t overlay -o lowerdir={PREFIX}/link:/usr/bin overlay /usr/bin || exit\n"


def install_setuid(lab: Lab) -> Path:
    """Install it on all nodes of a lab, until they are started again; return its configuration."""
    installed = unpack(lab.home, ARCHIVE, PREFIX)
    with admins_umask():
        (installed / "link").mkdir()
        (installed / "link/singularity").symlink_to(f"{PREFIX}/bin/singularity")
    for node in lab.definition().site.slurm_nodes:
        lab.sh(node, "root", _LINK + LOOP).check(f"install SingularityCE on {node}")
    return installed / "etc/singularity/singularity.conf"
