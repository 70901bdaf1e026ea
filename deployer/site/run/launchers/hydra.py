"""mpiexec.hydra of Intel MPI and MPICH: srun or an ssh-like agent starts a proxy per node, which starts the ranks."""

from typing import Dict, List, Mapping

from deployer.contract.base.shell import Value
from deployer.site.inside import folder, node
from deployer.site.run.launchers.interface import AGENT, MACHINES, Launcher, LaunchRequest
from deployer.site.run.launchers.srun import intel_domain
from deployer.site.run.pinning import pin

#: Otherwise Intel's launcher would look for a batch system and ignore -ppn.
_INSIDE_INTEL = {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0", "I_MPI_HYDRA_RMK": "user"}


class Hydra(Launcher):
    """Intel's proxies pin with I_MPI_PIN_DOMAIN, MPICH's with -bind-to.

    A rank that exits with an error before MPI_Init does not end the others (tested with 2021.15); a signal does.
    """

    program = "mpiexec.hydra"
    ends_on_exit = False
    reads = ("I_MPI_",)

    def words(self, start: LaunchRequest) -> List[Value]:
        layout = start.layout
        words: List[Value] = [start.program, "-bootstrap"]
        if start.inside:
            words += ["ssh", "-bootstrap-exec", folder.PROGRAM, "-localhost", node.FIRST, "-hosts", node.NODES]
        elif start.agent:
            words += ["ssh", "-bootstrap-exec", AGENT, "-f", MACHINES]
        else:
            words.append("slurm" if start.batch else "fork")
        words += ["-n", str(layout.ranks), "-ppn", str(layout.ranks_per_node)]
        if start.family != "intel":
            pinning = pin(layout)
            words += ["-bind-to", "%s:%d" % ("core" if pinning.by_core else "hwthread", pinning.units)]
        return words

    def environment(self, start: LaunchRequest) -> Dict[str, str]:
        return {"I_MPI_PIN_DOMAIN": intel_domain(pin(start.layout).domain)} if start.family == "intel" else {}

    def exports(self, start: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        exported = super().exports(start, environment)
        if start.inside:
            return {**exported, **_INSIDE_INTEL} if start.family == "intel" else exported
        exported.pop("I_MPI_ROOT", None)  # the launcher's module sets its own
        if start.family == "intel" and (start.agent or start.batch):
            exported.setdefault("I_MPI_JOB_RESPECT_PROCESS_PLACEMENT", "0")  # otherwise -ppn is ignored in a batch job
        if not start.batch:
            return exported
        # For the srun that starts one proxy per node: no PMI, because the ranks would use its variables, and the
        # CPUs of all ranks on the node. Slurm before 22.05 would assign only the CPUs of one rank.
        cpus = start.layout.ranks_per_node * start.layout.asked_cpus
        intel = start.family == "intel"
        name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if intel else "HYDRA_LAUNCHER_EXTRA_ARGS"
        return {**exported, name: "--mpi=none --cpus-per-task=%d --cpu-bind=cores" % cpus}
