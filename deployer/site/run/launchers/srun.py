"""Slurm's own launcher, with the PMI that the ranks' MPI library speaks."""

from typing import Dict, List

from deployer.contract.pinning import pin
from deployer.site.run.launchers.interface import Launcher, LaunchRequest


class Srun(Launcher):
    """Options as old as Slurm 17. Always with -c, which srun no longer takes from the batch job (Slurm 22.05)."""

    program = "srun"

    def words(self, start: LaunchRequest) -> List[str]:
        layout = start.layout
        return [
            start.program,
            "--mpi=" + start.pmi,
            "--nodes=%d" % layout.nodes,
            "--ntasks=%d" % layout.ranks,
            "--ntasks-per-node=%d" % layout.ranks_per_node,
            "--cpus-per-task=%d" % layout.asked_cpus,
            # Ranks in order over the nodes; on a node in turn over the sockets, each rank's CPUs on one if they fit.
            "--distribution=block:cyclic",
            "--cpu-bind=" + ("cores" if pin(layout).by_core else "threads"),
            # The others would wait for the one that failed until the time limit.
            "--kill-on-bad-exit=1",
        ]

    def environment(self, start: LaunchRequest) -> Dict[str, str]:
        return {"I_MPI_PIN_DOMAIN": intel_domain(start.layout.cpus_per_rank)} if start.family == "intel" else {}


def intel_domain(cpus: int) -> str:
    """Return the value of I_MPI_PIN_DOMAIN for ``cpus`` neighbouring CPUs a rank; without it a rank has one core."""
    return "%d:compact" % cpus
