"""Each environment variable that the code reads is in the reference, or is one that users have no reason to set."""

import re

from deployer.connected.ground import user_settings
from scripts.variables import VARIABLES
from tests.conftest import ROOT

#: What our own programs tell each other.
_BETWEEN_PROGRAMS = {
    *("DEPLOYER_ANNOUNCE", "DEPLOYER_ASKS", "DEPLOYER_CALLER", "DEPLOYER_COLOUR", "DEPLOYER_HUB"),
    *("DEPLOYER_PROGRESS", "DEPLOYER_REHEARSAL", "DEPLOYER_TERMINAL", "REHEARSAL_TIED"),
}
#: What a login, a module or the batch system has set.
_FOUND = {"HOME", "LD_LIBRARY_PATH", "LMOD_CMD", "LOGNAME", "PATH", "USER"}
_OF_SLURM = {"I_MPI_PMI_LIBRARY", "SLURMD_NODENAME", "SLURM_JOB_PARTITION", "SLURM_NODEID"}

#: In programs that remedies show.
_SHOWN = {"RANK", "WORLD_SIZE"}

_READ = re.compile(r"""environ(?:\.get\(|\[)\s*["']([A-Z][A-Z0-9_]*)["']|\b(DEPLOYER_[A-Z0-9_]*[A-Z0-9])\b""")


def test_every_variable_that_the_code_reads_is_described() -> None:
    read = {*user_settings.VARIABLES.values()}
    for path in (ROOT / "deployer").rglob("*.py"):
        if "templates" not in path.parts:
            read |= {a or b for a, b in _READ.findall(path.read_text())}
    described = {name for each in VARIABLES for name in each.names}
    assert read - described - _BETWEEN_PROGRAMS - _FOUND - _OF_SLURM - _SHOWN == set()
    ours = {name for name in described if name.startswith("DEPLOYER_")}
    assert ours == {name for name in read if name.startswith("DEPLOYER_")} - _BETWEEN_PROGRAMS
