"""Slurm's own launcher, with the PMI of the ranks' MPI library."""

from typing import Dict, List

from deployer.contract.base.shell import Value
from deployer.site.run.launchers.interface import Launcher, LaunchRequest
from deployer.site.run.pinning import pin


class Srun(Launcher):
    """Uses only options of Slurm 17 and later. Always gives -c, because srun ignores the batch job's (Slurm 22.05)."""

    program = "srun"

    def words(self, start: LaunchRequest) -> List[Value]:
        layout = start.layout
        return [
            start.program,
            "--mpi=" + start.pmi,
            "--nodes=%d" % layout.nodes,
            "--ntasks=%d" % layout.ranks,
            "--ntasks-per-node=%d" % layout.ranks_per_node,
            "--cpus-per-task=%d" % layout.asked_cpus,
            # Fill the nodes in order; on a node, alternate between sockets. Keep a rank on one socket if it fits.
            "--distribution=block:cyclic",
            "--cpu-bind=" + ("cores" if pin(layout).by_core else "threads"),
            # Otherwise the other ranks would wait for the failed one until the time limit.
            "--kill-on-bad-exit=1",
        ]

    def environment(self, start: LaunchRequest) -> Dict[str, str]:
        return {"I_MPI_PIN_DOMAIN": intel_domain(start.layout.cpus_per_rank)} if start.family == "intel" else {}


def intel_domain(cpus: int) -> str:
    """Return I_MPI_PIN_DOMAIN for ``cpus`` neighbouring CPUs per rank; without it, a rank gets one core."""
    return "%d:compact" % cpus
