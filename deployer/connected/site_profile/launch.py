"""How ranks are started on a site: launcher, PMI, and the host's variables by which they learn who they are."""

from dataclasses import dataclass

from deployer.connected.site_profile.profile import Lacking, Mpi, Partition, Profile
from deployer.contract.errors import Refused
from deployer.contract.plan import MPICH_ABI, OPENMPI

SRUN, HYDRA, MPIRUN = "srun", "mpiexec.hydra", "mpirun"

#: The launcher that an MPI brings itself, by ABI; and the PMI of Slurm's that it can speak, best first. Open MPI speaks
#: PMI-2 only where version 4 was built with Slurm's own library, which nobody can see.
_OWN = {MPICH_ABI: HYDRA, OPENMPI: MPIRUN}
_SPEAKS = {MPICH_ABI: ("pmi2",), OPENMPI: ("pmix", "pmix_v5", "pmix_v4", "pmix_v3", "pmix_v2")}

_SLURM = ("SLURM_*", "SLURMD_*")
_PASSED = {
    SRUN: ("PMI_*", "PMI2_*", "PMIX_*"),
    # Intel's proxies say where a rank is pinned, what they found out of the node and how shared memory is called; what
    # is passed of srun's own PMI would lead the library astray.
    HYDRA: ("PMI_*", "HYDI_*", "MPI_LOCAL*", "I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING", "I_MPI_INFO_*", "I_MPI_HYDRA_UUID"),
    MPIRUN: ("PMIX_*", "OMPI_*", "PRTE_*"),
}
#: Open MPI is set up by the site in variables that its module sets, and its launcher speaks by them.
_PASSED_OPENMPI = ("OMPI_*", "PRTE_*")


@dataclass(frozen=True)
class Way:
    """``program`` is the launcher's path, None if it is in PATH; ``pmi`` is srun's type, else empty."""

    launcher: str
    pmi: str
    program: str | None


def choose(profile: Profile, name: str, partition: Partition, mpi: Mpi | None, abi: str | None) -> Way:
    """Return how the ranks of a job start in the partition ``name``.

    A launcher in the profile is used. Else srun, if it offers a PMI that the MPI speaks, else the MPI's own launcher.
    ``abi`` is the family of MPI that the ranks use, None if unknown. Raises Unknown if the profile lacks facts for the
    choice, Refused if no launcher can start the ranks.
    """
    launcher: str | None = partition.launcher
    pmi = partition.pmi
    place = ("partitions", name, "pmi")
    unsaid = f"the profile of {profile.name} lacks {'.'.join(place)}"
    local = profile.scheduler is not None and profile.scheduler.kind == "local"
    if local and (launcher == SRUN or pmi is not None):
        hint = f"remove pmi and launcher from partitions.{name}"
        raise Refused(f"{profile.name} has no batch system, so no srun", hint)
    if launcher is None and pmi is not None:
        launcher = SRUN
    offered = profile.scheduler.pmi if profile.scheduler and not local else []
    if pmi is None and launcher in (None, SRUN):
        spoken = [each for each in _SPEAKS.get(abi or "", ()) if each in offered]
        if spoken:
            launcher, pmi = SRUN, spoken[0]
        elif launcher == SRUN:
            raise Lacking(unsaid, _hint(offered, abi), place)
    if launcher is None:
        launcher = _OWN.get(abi or "")
        if launcher is None or not (offered or local or launcher in partition.launchers):
            raise Lacking(f"{unsaid}, or launcher", _hint(offered, abi), place)
        if not (mpi or launcher in partition.launchers):
            raise Refused(
                f"nothing on {profile.name} can start the ranks: srun offers {', '.join(offered) or 'nothing'}, which "
                f"their MPI ({abi}) does not speak, and there is no {launcher}",
                "bind the site's own MPI (partitions.NAME.mpi), or build the image for another",
            )
    if launcher == SRUN:
        return Way(SRUN, pmi or "", None)
    return Way(launcher, "", f"{mpi.prefix}/{mpi.launcher}" if mpi and mpi.launcher else None)


def passed(way: Way, abi: str | None) -> list[str]:
    """Return the names (globs) of the host's variables that the ranks may see."""
    names = [*_SLURM, *_PASSED[way.launcher], *(_PASSED_OPENMPI if abi == OPENMPI else ())]
    return list(dict.fromkeys(names))


def _hint(offered: list[str], abi: str | None) -> str:
    said = f"srun offers {', '.join(offered)}" if offered else "`srun --mpi=list` on the site shows what srun offers"
    return f"{said}; the ranks use {abi or 'the MPI of the image'}; capture records what the site has"
