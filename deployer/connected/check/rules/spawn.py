"""Rule for programs that start more ranks while they run (MPI_Comm_spawn), which few launchers can do."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Process
from deployer.connected.linker.starts.python import python_calls
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.site.plan import INSIDE

#: The result if a rank requests more ranks, for the site's launcher and for the image's own: whether they start (None:
#: depends on the job), and otherwise the reason.
_SRUN = "srun starts no more ranks: with pmi2 the job hangs, with pmix it ends with an error"
_HOST = "{} would start more ranks on the host, outside of the container, where the program is missing"
_SLOTS = "mpirun starts more ranks only if the job has free slots: otherwise it ends with MPI_ERR_SPAWN, or hangs"
_UNTRIED = "it is unknown whether {} starts more ranks"
OUTSIDE = {
    "srun": (False, _SRUN), "mpiexec.hydra": (False, _HOST), "mpirun": (False, _HOST), "ibrun": (False, _HOST),
    "pals": (None, _UNTRIED),
}  # fmt: skip
WITHIN = {"mpiexec.hydra": (True, ""), "mpirun": (None, _SLOTS)}
#: Programs with MPI's C++ bindings contain all functions of these libraries, whichever they call.
_CXX = ("libmpi_cxx.so", "libmpicxx.so", "libmpichcxx.so")
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
    """mpi.spawn: a program starts more ranks, but the launcher cannot."""
    table = WITHIN if case.plan.launch == INSIDE else OUTSIDE
    names = dict.fromkeys(option.launcher for option in case.plan.containers if option.launcher in table)
    refusing = [(name, *table[name]) for name in names if not table[name][0]]
    for process in linked.possible if refusing else ():
        name, starts, why = refusing[0]
        sure = starts is False and linked.needs(process)
        for text, certain, remedy in _asking(process) if process.uses_mpi else ():
            message = f"{text} starts more ranks while it runs, and {why.format(name)}"
            yield Finding("mpi.spawn", ERROR if sure and certain else MISSING_FACTS, process.name, message, remedy)


def _asking(process: Process) -> Iterator[tuple[str, bool, str]]:
    """Yield each thing that starts ranks, whether it certainly runs, and what to do instead."""
    for call in python_calls.spawns(process.text)[:1]:
        yield f"line {call.line} of its script ({call.name})", call.certain, _POOL if "Pool" in call.name else _OTHER
    program = process.program
    names = [name for name in _FUNCTIONS if program and name in program.facts.imports]
    if names and program and not any(name.startswith(_CXX) for name in program.dynamic.needed):
        yield f"it may call {' or '.join(names)}, which", False, _OTHER
