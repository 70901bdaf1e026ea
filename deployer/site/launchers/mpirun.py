"""mpirun of Open MPI 4 and 5 in a Slurm allocation: it starts a daemon on each node by srun, and they the ranks."""

from typing import List

from deployer.contract.pinning import pin
from deployer.site.launchers.interface import Launcher, Start


class Mpirun(Launcher):
    """Nodes come from the allocation; ranks are mapped in order over them, and bound to whole cores.

    The settings that ranks get as OMPI_MCA_* and PMIX_MCA_* hold for the daemons too: both ends must agree on them.
    """

    program = "mpirun"
    reads = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")

    def words(self, start: Start) -> List[str]:
        layout, pinning = start.layout, pin(start.layout)
        spread = "ppr:%d:numa" % pinning.per_numa if pinning.per_numa else "ppr:%d:node" % layout.ranks_per_node
        # Open MPI 5.0.11 gives rank 0 a pipe that is never closed, though its own standard input is /dev/null.
        words = [start.program, "-np", str(layout.ranks), "--stdin", "none"]
        if pinning.by_core:
            return [*words, "--map-by", "%s:PE=%d" % (spread, pinning.units), "--bind-to", "core"]
        if start.version.startswith("4"):
            words.append("--use-hwthread-cpus")
        else:
            spread += ":HWTCPUS"
        return [*words, "--map-by", "%s:PE=%d" % (spread, pinning.units), "--bind-to", "hwthread"]
