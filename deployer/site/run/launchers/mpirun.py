"""mpirun of Open MPI 4 and 5 in a Slurm allocation: srun starts one daemon per node, and these the ranks."""

from typing import Dict, List, Mapping

from deployer.contract.pinning import pin
from deployer.contract.shell import Value
from deployer.site.run.launchers.interface import Launcher, LaunchRequest

#: The setting for how daemons are started, and their name, in Open MPI 4 and 5.
_AGENTS = {"4": ("OMPI_MCA_orte_launch_agent", "orted"), "5": ("PRTE_MCA_prte_launch_agent", "prted")}


class Mpirun(Launcher):
    """Nodes come from the allocation; ranks are mapped over them in order, and bound to whole cores.

    The settings OMPI_MCA_* and PMIX_MCA_* of the ranks apply to the daemons too: both ends must agree on them.

    Slurm sends SIGTERM to all processes of a job. mpirun and its daemons would end at once and end the ranks, whatever
    their settings. So they are started with the signal blocked, and end with the ranks. The daemons unblock it in all
    processes that they start, so the ranks receive it.
    """

    program = "mpirun"
    reads = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")

    def words(self, start: LaunchRequest) -> List[str]:
        layout, pinning = start.layout, pin(start.layout)
        spread = "ppr:%d:numa" % pinning.per_numa if pinning.per_numa else "ppr:%d:node" % layout.ranks_per_node
        # Open MPI 5.0.11 gives rank 0 a pipe that is never closed, although its own standard input is /dev/null.
        words = [*_shield(start), start.program, "-np", str(layout.ranks), "--stdin", "none"]
        if pinning.by_core:
            return [*words, "--map-by", "%s:PE=%d" % (spread, pinning.units), "--bind-to", "core"]
        if start.version.startswith("4"):
            words.append("--use-hwthread-cpus")
        else:
            spread += ":HWTCPUS"
        return [*words, "--map-by", "%s:PE=%d" % (spread, pinning.units), "--bind-to", "hwthread"]

    def exports(self, start: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        found = super().exports(start, environment)
        shield = _shield(start)
        if shield:
            name, daemon = _AGENTS["4" if start.version.startswith("4") else "5"]
            found[name] = " ".join([*shield, daemon])
        return found


def _shield(start: LaunchRequest) -> List[str]:
    """Return the words before a program that must not receive SIGTERM.

    They are empty if the signal is not sent to the ranks anyway, or if Open MPI could not separate the words.
    """
    words = [*start.tool, "shield", "--"]
    return words if start.batch and start.tool and not any(" " in word for word in words) else []
