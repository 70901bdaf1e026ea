"""Rule of programs that start more ranks while they run (MPI_Comm_spawn), which few launchers can do.

What launchers do was tried on two nodes with Slurm 22.05 (docs/rules.md).
"""

from collections.abc import Iterator
from typing import NamedTuple

from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Process
from deployer.connected.linker.starts import python_calls
from deployer.contract.findings import ERROR, Finding
from deployer.contract.plan import INSIDE, NATIVE, StartOption


class Spawning(NamedTuple):
    """What a launcher does when a rank asks it to start more.

    Attributes:
        works: whether they start; None if that depends on the job.
        text: what happens.
        tried: with what.
    """

    works: bool | None
    text: str
    tried: str


#: By launcher: of ranks that start without a container, or by the image's own launcher, which is in one.
SPAWNING = {
    "srun": Spawning(
        False,
        "srun starts no more ranks: with pmi2 the job hangs, with pmix it ends with an error",
        "Intel MPI 2021.15, MPICH 4.2.3 and 5.0.2 with pmi2; Open MPI 4.1.8 and 5.0.11 with pmix",
    ),
    "mpiexec.hydra": Spawning(True, "", "Intel MPI 2021.15, MPICH 4.2.3 and 5.0.2"),
    "mpirun": Spawning(
        None,
        "mpirun starts more ranks only if the job has free slots: otherwise it ends with MPI_ERR_SPAWN, or hangs",
        "Open MPI 4.1.8 and 5.0.11: all slots taken, and --oversubscribe",
    ),
}
#: By a launcher that is outside of the container.
_OUTSIDE = Spawning(
    False,
    "{launcher} would start more ranks on the host, outside of the container, where the program is missing",
    "Hydra of Intel MPI 2021.15 and MPICH 4.2.3: execvp error, hang; Open MPI 4.1.8: error",
)
_FUNCTIONS = ("MPI_Comm_spawn", "MPI_Comm_spawn_multiple")
_POOL = (
    "start the script by `python3 -m mpi4py.futures SCRIPT`, or use MPICommExecutor(MPI.COMM_WORLD): both use the "
    "ranks that the job has"
)
_OTHER = (
    "start all ranks with the job, and split MPI_COMM_WORLD; or start them by the image's own MPICH or Intel MPI "
    "(--launch inside)"
)


def of_job(linked: LinkedJob, case: Case) -> Iterator[Finding]:
    """mpi.spawn: a program starts more ranks, and the launcher cannot."""
    options = case.plan.start_options if case.plan.launch == INSIDE else case.plan.containers
    found = [_spawning(option, case.plan.launch == INSIDE) for option in options]
    refusing = next((each for each in found if each.works is False), None)
    worst = refusing or next((each for each in found if each.works is None), None)
    if worst is None:
        return
    for process in [*linked.processes, *linked.conditional]:
        sure = refusing and any(process is each for each in linked.processes) and linked.decides(process)
        for text, certain, remedy in _asking(process) if process.uses_mpi else ():
            message = f"{text} starts more ranks while it runs, and {worst.text}"
            yield Finding("mpi.spawn", ERROR if sure and certain else MISSING_FACTS, process.name, message, remedy)


def _spawning(option: StartOption, inside: bool) -> Spawning:
    if option.launcher == "srun" or inside or option.runtime == NATIVE:
        return SPAWNING.get(option.launcher, _OUTSIDE)
    return _OUTSIDE._replace(text=_OUTSIDE.text.format(launcher=option.launcher))


def _asking(process: Process) -> Iterator[tuple[str, bool, str]]:
    """Yield what starts ranks, whether it certainly runs, and what to do instead."""
    calls = python_calls.spawns(process.text)
    for call in calls[:1]:
        yield f"line {call.line} of its script ({call.name})", call.certain, _POOL if "Pool" in call.name else _OTHER
    names = [name for name in _FUNCTIONS if process.program and name in process.program.facts.imports]
    if names:
        yield f"it may call {' or '.join(names)}, which", False, _OTHER
