"""Launchers by the names that plans use."""

from typing import Dict

from deployer.site.run.launchers.hydra import Hydra
from deployer.site.run.launchers.ibrun import Ibrun
from deployer.site.run.launchers.interface import Launcher
from deployer.site.run.launchers.mpirun import Mpirun
from deployer.site.run.launchers.pals import Pals
from deployer.site.run.launchers.srun import Srun

LAUNCHERS: Dict[str, Launcher] = {
    "srun": Srun(),
    "mpiexec.hydra": Hydra(),
    "mpirun": Mpirun(),
    "pals": Pals(),
    "ibrun": Ibrun(),
}
