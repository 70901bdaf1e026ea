"""Rules for PMI: that the ranks can get their identity from the launcher.

If they cannot, each is rank 0 of 1, usually with exit code 0. The files of a library show which PMI it supports: which
PMIx it needs or opens, and the components of Open MPI's ``pmix`` framework. Observations (Slurm 22.05, two nodes) are
in docs/rules.md and docs/adr/0017.
"""

import posixpath
import re
from collections.abc import Iterator

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Process
from deployer.connected.linker.starts.python import python_calls
from deployer.connected.linker.starts.removed import lost
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.site.plan import CHARLIECLOUD_KIT, INSIDE, NO_MPI, OPENMPI, Plan, StartOption

PMI1, PMI2, PMIX, CRAY_PMI = "PMI-1", "PMI-2", "PMIx", "Cray's PMI"

#: Variables with which ranks find their launcher, by PMI. Each was removed separately with `env -u`: without PMI_FD, or
#: without all of PMIX_*, each rank is rank 0 of 1 with exit code 0; without any other one, MPI_Init fails. Those of
#: Cray's PMI are from its manual (intro_mpi).
_NEEDED = {
    PMI1: ("PMI_FD", "PMI_RANK", "PMI_SIZE"),
    PMI2: ("PMI_FD", "PMI_RANK", "PMI_SIZE"),
    PMIX: ("PMIX_RANK", "PMIX_NAMESPACE"),
    CRAY_PMI: ("PMI_CONTROL_PORT", "PMI_SHARED_SECRET", "PALS_RANKID"),
}
#: The PMIs that launchers other than srun offer to their ranks.
_LAUNCHERS = {"mpiexec.hydra": {PMI1, PMI2}, "mpirun": {PMIX}, "ibrun": {PMI1, PMI2, PMIX}}
#: Those that srun offers, by the value of its option --mpi, and PALS by --pmi, besides PMIx.
_SRUN = {"pmi2": {PMI1, PMI2}, "pspmi": {PMI1}, "cray_shasta": {CRAY_PMI}, "cray": {CRAY_PMI}}
#: Components of Open MPI's framework "pmix", up to release 4: plug-ins, or built into libopen-pal.
_COMPONENT = re.compile(r"mca_pmix_([a-z0-9]+?)(?:_component|\.so)$")
#: The plug-in folders beside libmpi: those of Open MPI's own installer and of Debian.
_COMPONENTS = ("openmpi", "openmpi3")
#: The library that MPICH's module for UCX is linked to, and the variable that selects a module.
_UCX, _NETMOD = "libucp.so.0", "MPIR_CVAR_CH4_NETMOD"
#: Packages that leave memory clean: mpi4py starts MPI as soon as it is imported; setuptools adds the other package.
_SMALL = ("mpi4py", "_distutils_hack")
#: Runtimes with which C programs and small Python programs ran. With Apptainer and podman, they or the probe failed.
_SEEN_CLEAN = ("charliecloud", CHARLIECLOUD_KIT, "udocker")
#: The library that Intel MPI opens, by this name, when srun offers PMIx; ``I_MPI_PMI_LIBRARY`` replaces it.
_INTEL_PMIX = "libpmix.so"


def offered(case: Case) -> Iterator[Finding]:
    """pmi.not-offered: the site's srun does not offer the plan's PMI."""
    scheduler = case.profile.scheduler
    for option in case.plan.containers if case.plan.abi != NO_MPI else ():
        known = scheduler.pmi if scheduler else []
        if option.launcher == "srun" and known and option.pmi not in known:
            text = f"srun offers {', '.join(known)}, and the plan asks for --mpi={option.pmi}"
            yield Finding("pmi.not-offered", ERROR, option.name, text, "correct pmi of the partition in the profile")


def spoken(case: Case) -> Iterator[Finding]:
    """pmi.unmet, facts.pmi: the launcher and the MPI library have no PMI in common, or that is unknown."""
    if case.plan.launch == INSIDE:  # library and launcher are both from the image's MPI
        return
    for process in case.processes:
        if process.library is None or not _asks(process, case.plan):
            continue
        library, speaks = process.library.path, languages(process)
        for option in case.plan.containers:
            offers = _offers(option)
            if speaks is None:
                text = f"cannot determine which PMI {library} speaks"
                yield Finding("facts.pmi", MISSING_FACTS, option.name, text, CAPTURE)
            elif not offers & speaks:
                srun = f"srun --mpi={option.pmi}" if option.launcher == "srun" else f"PALS --pmi={option.pmi}"
                launcher = option.launcher if option.launcher in _LAUNCHERS else srun
                text = f"{launcher} offers {_names(offers)}, and {library} speaks {_names(speaks)}: "
                text += "each rank would be rank 0 of 1"
                yield Finding("pmi.unmet", ERROR, option.name, text, _remedy(case.plan, speaks))


def kept(linked: LinkedJob, case: Case) -> Iterator[Finding]:
    """pmi.unmet: a job's script, or a wrapper, removes variables that its ranks need to contact the launcher."""
    job = linked.job
    if job is None or job.nodes * job.ranks_per_node == 1:
        return
    inside = {PMIX} if case.plan.abi == OPENMPI else {PMI1}
    asking = [process for process in linked.possible if _asks(process, case.plan)]
    alone = all(process.removed for process in asking if linked.starts(process))  # otherwise the first may be a helper
    for process in asking:
        sure = alone and linked.starts(process)
        speaks = languages(process) if process.library else None
        shared = [_offers(option) if speaks is None else _offers(option) & speaks for option in case.plan.containers]
        for pmis in [inside] if case.plan.launch == INSIDE else filter(None, shared):
            yield from _removed(process, pmis, sure)


def _asks(process: Process, plan: Plan) -> bool:
    """Return whether a program contacts the launcher with the MPI library that is meant for it.

    If the image's own library is used instead of the site's, mpi.family or mpi.escape reports that. If no library is
    found, the program opens one by itself, and that one contacts the launcher as well.
    """
    library = process.library
    if not process.users or plan.abi == NO_MPI:
        return False
    return library is None or plan.mpi is None or process.host_path(library.path)


def truncated(case: Case) -> Iterator[Finding]:
    """pmi.truncated: MPICH 5 with UCX sends srun's PMI-1 a text that is longer than srun reads.

    It publishes 4,096 bytes from the start of its UCX address. Zeros are written in a short form; earlier contents of
    the program's memory are not. Slurm's plug-in reads a request of at most 1,024 bytes. A C program starts with clean
    memory, but a Python program with many imports does not. With Apptainer and podman, small programs failed too.
    """
    mpi = case.plan.mpi
    over = [option for option in case.plan.containers if option.launcher == "srun" and option.pmi == "pmi2"]
    if mpi is None or mpi.family != "mpich" or not mpi.version.startswith("5.") or not over:
        return
    for process in case.processes:
        library = process.library
        if not process.users or library is None or not process.host_path(library.path):
            continue
        if _UCX not in library.dynamic.needed or process.variable(_NETMOD) == "ofi":
            continue
        packages = {posixpath.basename(package).partition(".")[0] for package in process.packages or ()}
        large = process.is_python and (process.packages is None or not packages.issubset(_SMALL))
        runtimes = list(dict.fromkeys(option.runtime for option in over if option.runtime not in _SEEN_CLEAN))
        of_whom = ["Python programs with large packages"] if large else []
        of_whom += [f"programs in a container of {' or '.join(runtimes)}"] if runtimes else []
        text = (
            f"{mpi.says} gives its UCX address and what is in memory behind it to srun --mpi=pmi2, which cuts off what "
            "is longer than 1,024 bytes: on several nodes, a program that has used much memory before MPI_Init dies or "
            "hangs there"
        )
        text += f", as {' and '.join(of_whom)} mostly do" if of_whom else ""
        remedy = (
            f"set the partition's launcher to mpiexec.hydra in the profile, or {_NETMOD}=ofi in the environment of the "
            "job if the fabric's speed allows it"
        )
        yield Finding("pmi.truncated", MISSING_FACTS if of_whom else NOTE, process.name, text, remedy)


def _removed(process: Process, shared: set[str], sure: bool) -> Iterator[Finding]:
    """Yield the removals of variables that a program needs for each PMI that it shares with its launcher."""
    removed = process.removed | python_calls.removed(process.text)
    removers = [lost(_NEEDED[pmi], removed, process.environment) for pmi in sorted(shared)]
    if not all(removers):
        return
    first = removers[0][0]
    where = f"{process.via}: " if process.via else ""
    severity = ERROR if first.certain and sure else MISSING_FACTS
    text = (
        f"{where}`{first.by}` {'removes' if first.certain else 'may remove'} variables by which ranks find their "
        f"launcher ({', '.join(_NEEDED[min(shared)])}): each rank would be rank 0 of 1, or MPI_Init would fail"
    )
    remedy = "keep PMI_*, PMIX_*, SLURM_*, OMPI_*, PALS_* for the program that calls MPI; unset others by their names"
    yield Finding("pmi.unmet", severity, process.name, text, remedy)


def _offers(option: StartOption) -> set[str]:
    of_srun = {PMIX} if option.pmi.startswith(("pmix", "pspmix")) else _SRUN.get(option.pmi, set())
    return _LAUNCHERS.get(option.launcher) or of_srun


def languages(process: Process) -> set[str] | None:
    """Return the PMIs that the mapped MPI library supports; None if its files do not show them."""
    mapped = [loaded.soname for loaded in process.loader.objects]
    pmix = {PMIX} if any(name.startswith("libpmix.so") for name in mapped) else set()
    library = process.library
    if library is None:
        return None
    if "libmpi.so.40" in (library.soname, library.found.rpartition("/")[2]):
        return _of_openmpi(process) or pmix or None
    if process.mpi_family == "cray":
        return {CRAY_PMI} | pmix
    if process.mpi_family in ("", "intel"):
        named = process.variable("I_MPI_PMI_LIBRARY") or _INTEL_PMIX
        if "pmix" in named and process.loader.would_find(named, library):
            pmix = {PMIX}
    return {PMI1, PMI2} | pmix


def _of_openmpi(process: Process) -> set[str]:
    """Return the PMIs that the components show.

    s1 and s2 are Slurm's own PMI, "isolated" is none, and most others are PMIx. "cray" is only for ALPS: it needs
    /proc/job and Cray's library, and no srun supports it.
    """
    names = [name for loaded in process.loader.objects for name in loaded.facts.components]
    folder = posixpath.dirname(process.library.path) if process.library else "/"
    for inner in _COMPONENTS:
        names += process.view.names(f"{folder}/{inner}")
    components = {match[1] for match in map(_COMPONENT.match, names) if match}
    known = {"s1": PMI1, "s2": PMI2, "flux": PMI1}
    return {known.get(name, PMIX) for name in components - {"base", "isolated", "cray"}}


def _names(languages: set[str]) -> str:
    return " and ".join(sorted(languages)) or "none"


def _remedy(plan: Plan, speaks: set[str]) -> str:
    pals = any(option.launcher == "pals" for option in plan.containers)
    if CRAY_PMI in speaks:
        return f"set pmi of the partition to {'cray' if pals else 'cray_shasta'} in the profile"
    if pals and PMIX not in speaks:
        return "bind the site's MPI (mpi of the partition), or start ranks with the image's launcher: --launch inside"
    if PMIX in speaks:
        return "set pmi of the partition to pmix, or its launcher to Open MPI's own mpirun, in the profile"
    if plan.abi == OPENMPI:
        return "start it with Open MPI's own mpirun: this build has no support for srun"
    return "set pmi of the partition to pmi2, or its launcher to mpiexec.hydra, in the profile"
