"""How ranks start on a site: launcher, PMI, and the host variables from which ranks learn their numbers."""

from typing import NamedTuple

from deployer.connected.site_profile.profile import Lacking, Mpi, Partition, Profile
from deployer.contract.base.errors import Refused
from deployer.contract.bundle.image_launcher import HYDRA, MPIRUN, OF_ABI
from deployer.contract.rules.batch_words import WORDS
from deployer.contract.site.plan import MPICH_ABI, NO_MPI, OPENMPI

SRUN = "srun"
#: Launchers of a site, which start the ranks of any MPI, with the batch system that each is for.
_OF_SITE = {name: kind for kind, each in WORDS.items() for name in each.launchers}

#: The Slurm PMI types that each MPI family supports, best first. Open MPI supports PMI-2 only if version 4 was built
#: with Slurm's library, which cannot be detected. ParaStation's psslurm calls its PMI-1 pspmi and its PMIx pspmix.
_SPEAKS = {MPICH_ABI: ("pmi2", "pspmi"), OPENMPI: ("pmix", "pmix_v5", "pmix_v4", "pmix_v3", "pmix_v2", "pspmix")}
#: Cray MPICH requests Slurm's plugin for Cray's PMI, which also sets these variables and those of Slingshot's switch.
_CRAY, _SPEAKS_CRAY, _PASSED_CRAY = "cray", ("cray_shasta",), ("PALS_*", "SLINGSHOT_*")

_SLURM = ("SLURM_*", "SLURMD_*")
_PASSED = {
    SRUN: ("PMI_*", "PMI2_*", "PMIX_*"),
    # Intel's proxies pass a rank's pinning, facts about the node, and the name of the shared memory. Variables of
    # srun's own PMI must not be passed, because they would mislead the library.
    HYDRA: ("PMI_*", "HYDI_*", "MPI_LOCAL*", "I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING", "I_MPI_INFO_*", "I_MPI_HYDRA_UUID"),
    MPIRUN: ("PMIX_*", "OMPI_*", "PRTE_*"),
    "pals": ("PALS_*", "PMI_*", "PMIX_*", "SLINGSHOT_*"),
    "ibrun": ("PMI_*", "HYDI_*", "MPI_LOCAL*", "MV2_*", "PMIX_*", "OMPI_*", "PRTE_*"),
}
#: Modules set variables with the site's settings for Open MPI. Its launcher uses the same prefixes.
_PASSED_OPENMPI = ("OMPI_*", "PRTE_*")


class Way(NamedTuple):
    """How ranks start.

    Attributes:
        launcher: the launcher's name.
        pmi: the PMI type of srun or PALS, empty for other launchers.
        program: the launcher's path, None if it is in PATH.
    """

    launcher: str
    pmi: str
    program: str | None


def choose(profile: Profile, name: str, partition: Partition, mpi: Mpi | None, abi: str | None) -> Way:
    """Return how the ranks of a job start in the partition ``name``.

    The launcher in the profile comes first, then that of the site (``_OF_SITE``), then srun if it offers a PMI that the
    MPI supports, then the MPI's own launcher.

    Args:
        abi: the MPI family that the ranks use, or ``NO_MPI``; None if unknown.

    Raises:
        Unknown: the profile lacks facts for this choice.
        Refused: no launcher can start the ranks.
    """
    pmi = partition.pmi
    kind = profile.scheduler.kind if profile.scheduler else None
    own = next((each for each in partition.launchers if each in _OF_SITE and kind == _OF_SITE[each]), None)
    launcher: str | None = partition.launcher or (own if pmi is None or own == "pals" else SRUN)
    if launcher in _OF_SITE:
        return _of_site(profile, launcher, kind, pmi, "none" if abi == NO_MPI else mpi.family if mpi else "")
    place = ("partitions", name, "pmi")
    unsaid = f"the profile of {profile.name} lacks {'.'.join(place)}"
    without_slurm = kind is not None and kind != "slurm"
    if without_slurm and (launcher == SRUN or pmi is not None):
        hint = f"remove pmi and launcher from partitions.{name}"
        raise Refused(f"{profile.name} has no Slurm, so no srun", hint)
    if abi == NO_MPI:
        if launcher in (None, SRUN) and not without_slurm:
            return Way(SRUN, "none", None)
        abi = mpi.abi if mpi else None  # the site's launcher starts its ranks
    offered = profile.scheduler.pmi if profile.scheduler and not without_slurm else []
    if pmi is None and launcher in (None, SRUN):
        known = _SPEAKS_CRAY if mpi and mpi.family == _CRAY else _SPEAKS.get(abi or "", ())
        spoken = [each for each in known if each in offered]
        if spoken:
            launcher, pmi = SRUN, spoken[0]
        elif launcher == SRUN:
            raise Lacking(unsaid, _hint(offered, abi, without_slurm), place)
    if launcher is None:
        launcher = None if mpi and mpi.family == _CRAY else OF_ABI.get(abi or "")  # Cray MPICH has no hydra
        if launcher is None or not (offered or without_slurm or launcher in partition.launchers):
            raise Lacking(f"{unsaid}, or launcher", _hint(offered, abi, without_slurm), place)
        if not mpi:
            _require(launcher, profile, name, partition.launchers, offered)
    if launcher == SRUN:
        return Way(SRUN, pmi or "", None)
    return Way(launcher, "", f"{mpi.prefix}/{mpi.launcher}" if mpi and mpi.launcher else None)


def _of_site(profile: Profile, launcher: str, kind: str | None, pmi: str | None, family: str) -> Way:
    """Return how a launcher of the site starts ranks of an MPI family; "none": without MPI. Raises Refused."""
    if kind != _OF_SITE[launcher]:
        hint = f"correct launcher, or scheduler.kind: {_OF_SITE[launcher]}"
        raise Refused(f"{profile.name}: {launcher} starts ranks in jobs of {_OF_SITE[launcher]} only", hint)
    default = {"pals": "cray" if family == _CRAY else "pmix"}.get(launcher, "")
    return Way(launcher, "none" if family == "none" else pmi or default, None)


def _require(launcher: str, profile: Profile, name: str, launchers: list[str], offered: list[str]) -> None:
    """Raise Lacking or Refused if the partition ``name``, which binds no MPI, has no launcher of its own."""
    if not (launchers or offered):
        raise Lacking(
            f"the profile of {profile.name} lacks partitions.{name}.launchers, or mpi: what starts ranks there",
            f"bind the site's own MPI (partitions.{name}.mpi), or list the launchers; capture finds both",
            ("partitions", name, "launchers"),
        )
    if launcher not in launchers:
        offers = f"srun offers {', '.join(offered)}" if offered else "there is no srun"
        raise Refused(
            f"nothing on {profile.name} can start the ranks: {offers}, and no {launcher} for an MPI that the image has",
            "bind the site's own MPI (partitions.NAME.mpi), or build the image for another",
        )


def passed(way: Way, abi: str | None, family: str | None = None) -> list[str]:
    """Return globs for the host variables that are passed to the ranks of an MPI."""
    more = {OPENMPI: _PASSED_OPENMPI, _CRAY: _PASSED_CRAY}
    names = [*_SLURM, *_PASSED[way.launcher], *more.get(abi or "", ()), *more.get(family or "", ())]
    return list(dict.fromkeys(names))


def _hint(offered: list[str], abi: str | None, without_slurm: bool) -> str:
    shows = "there is no srun" if without_slurm else "`srun --mpi=list` on the site shows what srun offers"
    said = f"srun offers {', '.join(offered)}" if offered else shows
    return f"{said}; the ranks use {abi or 'the MPI of the image'}; capture records what the site has"
