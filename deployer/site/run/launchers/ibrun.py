"""ibrun of TACC (Frontera, Stampede3, Vista), which starts the launcher of the loaded MPI. Never run.

Written from TACC's pages on each system (github:TACC/TACC-Docs, ``docs/hpc/*/launching.md``).
"""

from typing import Dict, List, Mapping

from deployer.contract.base.shell import Value
from deployer.site.run.launchers.hydra import Hydra
from deployer.site.run.launchers.interface import LaunchRequest


class Ibrun(Hydra):
    """Without words, it reads the number of nodes and ranks from the batch job. ``-n`` and ``-o`` are for several
    programs at once, as is ``task_affinity``. Otherwise the MPI pins the ranks itself.
    """

    program = "ibrun"

    def words(self, start: LaunchRequest) -> List[Value]:
        return [start.program]

    def exports(self, start: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        ranks = str(start.layout.ranks)
        own = {name: value for name, value in environment.items() if name.startswith(self.reads)}
        return {**own, "SLURM_NTASKS": ranks, "SLURM_NPROCS": ranks}  # as sbatch -n sets them
