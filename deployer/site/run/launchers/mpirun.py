"""mpirun of Open MPI 4 and 5: srun or an ssh-like agent starts one daemon per node, which starts the ranks."""

from typing import Dict, List, Mapping

from deployer.contract.base.shell import Code, Value, code
from deployer.site.inside import folder, node
from deployer.site.run.launchers.interface import AGENT, MACHINES, Launcher, LaunchRequest
from deployer.site.run.pinning import pin

#: By version of Open MPI: the setting for how to start daemons, and the name of the daemons; the setting for the
#: component that starts daemons on the nodes, and the component for agents; the setting that keeps daemons in the
#: foreground.
_SETTINGS = {
    "4": ("OMPI_MCA_orte_launch_agent", "orted", "OMPI_MCA_plm", "rsh", "OMPI_MCA_orte_leave_session_attached"),
    "5": ("PRTE_MCA_prte_launch_agent", "prted", "PRTE_MCA_plm", "ssh", "PRTE_MCA_prte_leave_session_attached"),
}


class Mpirun(Launcher):
    """Nodes come from the allocation; ranks are mapped to them in order and bound to whole cores.

    The ranks' OMPI_MCA_* and PMIX_MCA_* settings also apply to the daemons, because both ends must agree on them.

    Slurm sends SIGTERM to all processes of a job. mpirun and its daemons would end themselves and the ranks at once,
    regardless of their settings. So they start with the signal blocked, and end when the ranks do. The daemons unblock
    it in all processes that they start, so the ranks receive it.

    With an agent, job.sh sends SIGUSR2, which mpirun forwards to all ranks. On SIGTERM, version 5 would kill them
    after a quarter of a second (tested with 5.0.11), and version 4 after a second.
    """

    program = "mpirun"
    asked_by = "USR2"
    reads = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")

    def words(self, start: LaunchRequest) -> List[Value]:
        layout, pinning = start.layout, pin(start.layout)
        spread = "ppr:%d:numa" % pinning.per_numa if pinning.per_numa else "ppr:%d:node" % layout.ranks_per_node
        # Open MPI 5.0.11 gives rank 0 a pipe that never closes, although its own standard input is /dev/null.
        words: List[Value] = [*_shield(start), start.program]
        words += ["--hostfile", MACHINES] if start.agent and not start.inside else []
        if start.inside:  # given a path, mpirun would put its folder before the image's PATH
            words += ["--noprefix", "--host", "%s%d" % (node.SLOTS, layout.ranks_per_node)]
        # If hwloc in the container cannot pin, which is always so in a rehearsal, mpirun would end the job.
        softly = ":if-supported" if start.inside else ""
        words += ["-np", str(layout.ranks), "--stdin", "none"]
        if pinning.by_core:
            return [*words, "--map-by", "%s:PE=%d" % (spread, pinning.units), "--bind-to", "core" + softly]
        if start.version.startswith("4"):
            words.append("--use-hwthread-cpus")
        else:
            spread += ":HWTCPUS"
        return [*words, "--map-by", "%s:PE=%d" % (spread, pinning.units), "--bind-to", "hwthread" + softly]

    def exports(self, start: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        exported = super().exports(start, environment)
        launch_agent, daemon, plm, component, attached = _SETTINGS["4" if start.version.startswith("4") else "5"]
        shield = _shield(start)
        if shield:
            exported[launch_agent] = " ".join([*shield, daemon])
        if start.agent or start.inside:
            exported[plm] = component
            exported[f"{plm}_{component}_agent"] = folder.PROGRAM if start.inside else AGENT
            # A daemon on another node may not start more daemons in a batch job, and mpirun must not look for qrsh.
            exported[f"{plm}_{component}_no_tree_spawn"] = "1"
            exported[f"{plm}_{component}_disable_qrsh"] = "1"
        if start.inside:
            # Otherwise a daemon detaches from its starter, which makes it look like it has ended.
            exported[attached] = "1"
            exported["SHELL"] = "/bin/bash"  # the syntax of its commands; the default is that of the user's shell
        return exported

    def slots(self, start: LaunchRequest) -> Code:
        return code(" slots={ranks}", ranks=start.layout.ranks_per_node)


def _shield(start: LaunchRequest) -> List[str]:
    """Return the words before a program that must not receive SIGTERM.

    They are empty if the ranks do not receive the signal anyway, or if Open MPI could not separate the words.
    """
    words = [*start.tool, "shield", "--"]
    return words if start.batch and start.tool and not any(" " in word for word in words) else []
