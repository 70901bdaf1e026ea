"""Launchers, by the names that plans use."""

from typing import Dict

from deployer.site.launchers.hydra import Hydra
from deployer.site.launchers.interface import Launcher
from deployer.site.launchers.mpirun import Mpirun
from deployer.site.launchers.srun import Srun

LAUNCHERS: Dict[str, Launcher] = {"srun": Srun(), "mpiexec.hydra": Hydra(), "mpirun": Mpirun()}
