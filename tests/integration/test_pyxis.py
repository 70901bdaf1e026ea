"""The words of `where --format pyxis`, started by the real pyxis and enroot.

No registry has them. ``DEPLOYER_ENROOT`` is as in tests/lab/enroot.py, ``DEPLOYER_PYXIS`` the path of spank_pyxis.so,
compiled for the lab's Slurm (libslurm-dev).
"""

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import WORKSPACE, Cli, Site
from tests.integration.test_apptainer import MAPPED
from tests.lab import Lab, enroot
from tests.lab.state import write_atomically

PLUGIN = os.environ.get("DEPLOYER_PYXIS", "")
pytestmark = [
    pytest.mark.needs("root", "slurm", "munge", "ssh", "lmod", "squashfs"),
    pytest.mark.slow,
    pytest.mark.skipif(not (PLUGIN and os.environ.get("DEPLOYER_ENROOT")), reason="needs a real pyxis and enroot"),
]
_PLUGSTACK = "required /home/apps/spank_pyxis.so runtime_path=/tmp/pyxis\n"
#: Slurm starts the lab's task prolog in the container, which has none.
_START = f"""
sed /TaskProlog/d /etc/slurm/slurm.conf >/tmp/slurm.conf && mount --bind /tmp/slurm.conf /etc/slurm/slurm.conf &&
mount --bind /home/apps/plugstack.conf /etc/slurm/plugstack.conf && mkdir -p /tmp/pyxis && pkill slurmd || exit
while pgrep -x slurmd >/dev/null; do sleep 0.1; done
PATH=$PATH:{enroot.PREFIX}/bin slurmd
"""


@pytest.fixture(scope="module")
def pyxis(built: Cli, bundle: Path) -> Iterator[Site]:
    """Yield a lab with them and hello-mpi."""
    lab = Lab("pyxis", say=lambda line: None)
    lab.up(nodes=2)
    try:
        enroot.install(lab)
        shutil.copy(PLUGIN, lab.home / "apps/spank_pyxis.so")
        write_atomically(lab.state.etc / "slurm/plugstack.conf", _PLUGSTACK)  # of login1
        (lab.home / "apps/plugstack.conf").write_text(_PLUGSTACK)
        for node in ("cn1", "cn2"):
            lab.sh(node, "root", _START).check(f"start pyxis on {node}")
        built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
        yield Site(built, lab)
    finally:
        lab.down(purge=True)


def test_its_ranks_have_the_plan_s_mpi(pyxis: Site) -> None:
    pyxis.tool("squash", "hello-mpi")
    start = f"python3 {WORKSPACE}/deployer.pyz where hello-mpi --plan lab --format pyxis"
    place = json.loads(pyxis.alice(f"{start} --json"))
    words = [*place["options"], "python3", "-c", MAPPED]
    path = f"PATH=$PATH:{enroot.PREFIX}/bin"
    said = pyxis.alice(f"export {path}; srun --nodes 2 --mpi=pmi2 {shlex.join(words)} 2>&1; true")
    ranks = sorted(line.split()[1:] for line in said.splitlines() if line.startswith("rank "))
    assert [rank[:2] for rank in ranks] == [["cn1", "2"], ["cn2", "2"]], said
    bound = [source for source in place["binds"].values() if source.startswith("/opt/")]
    theirs = pyxis.alice(f"find -L {shlex.join(bound)} -name 'libmpi.so*' -exec stat -L -c %i {{}} +").split()
    assert all(len(rank) == 3 and rank[2] in theirs for rank in ranks), (ranks, theirs)
