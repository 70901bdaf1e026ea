"""The launcher and the PMI by what the site offers and the MPI speaks; what is not known is not guessed."""

import pytest

from deployer.connected.site_profile.launch import Way, choose, passed
from deployer.connected.site_profile.machine import FactSource
from deployer.connected.site_profile.model import Mpi, Partition, Profile, SiteScheduler
from deployer.contract.base.errors import Refused, Unknown
from deployer.contract.site.plan import MPICH_ABI, NO_MPI, OPENMPI

INTEL = Mpi(family="intel", prefix="/opt/impi")
OMPI = Mpi(family="openmpi", prefix="/opt/ompi", launcher="bin/mpirun")


def ways(
    offered: list[str] | None,
    abi: str | None = MPICH_ABI,
    mpi: Mpi | None = INTEL,
    launchers: list[str] | None = None,
    **said: str,
) -> Way:
    """Return how ranks start where srun offers ``offered``; None: there is no batch system."""
    partition = Partition.model_validate({"launchers": launchers or [], **said})
    profile = Profile(
        format=1,
        name="site",
        source=FactSource(kind="unverified", where="here"),
        scheduler=SiteScheduler(
            kind="local" if offered is None else "slurm", pmi=offered or ["pmi2"] * (offered is None)
        ),
        partitions={"batch": partition},
    )
    return choose(profile, "batch", partition, mpi, abi)


@pytest.mark.parametrize(
    ("offered", "abi", "mpi", "way"),
    [
        (["none", "pmi2", "pmix"], MPICH_ABI, INTEL, Way("srun", "pmi2", None)),
        (["none", "pmi2", "pmix"], OPENMPI, OMPI, Way("srun", "pmix", None)),
        (["none", "pmi2", "pmix_v3", "pmix_v4"], OPENMPI, OMPI, Way("srun", "pmix_v4", None)),
        (["pspmix", "pmi2"], OPENMPI, None, Way("srun", "pspmix", None)),  # ParaStation's psslurm
        (["none", "pmix"], MPICH_ABI, INTEL, Way("mpiexec.hydra", "", None)),
        (["none", "pmi2"], OPENMPI, OMPI, Way("mpirun", "", "/opt/ompi/bin/mpirun")),
        (["pmi2"], MPICH_ABI, None, Way("srun", "pmi2", None)),
        (["pspmix", "pspmi"], MPICH_ABI, INTEL, Way("srun", "pspmi", None)),
    ],
)
def test_srun_where_it_speaks_the_mpis_pmi_else_the_mpis_own(
    offered: list[str], abi: str, mpi: Mpi | None, way: Way
) -> None:
    assert ways(offered, abi, mpi) == way


def test_what_the_profile_says_holds() -> None:
    assert ways(["pmi2"], launcher="mpiexec.hydra") == Way("mpiexec.hydra", "", None)
    assert ways(["pmi2", "cray_shasta"], pmi="cray_shasta") == Way("srun", "cray_shasta", None)
    assert ways(["pmi2", "pmix"], launcher="srun").pmi == "pmi2"
    assert ways([], pmi="pmi2") == Way("srun", "pmi2", None)


def test_without_a_batch_system_it_is_the_mpis_own() -> None:
    assert ways(None) == Way("mpiexec.hydra", "", None)
    assert ways(None, OPENMPI, OMPI) == Way("mpirun", "", "/opt/ompi/bin/mpirun")
    assert ways(None, mpi=None, launchers=["mpiexec.hydra"]) == Way("mpiexec.hydra", "", None)
    with pytest.raises(Unknown, match=r"lacks partitions\.batch\.launchers, or mpi"):
        ways(None, mpi=None)
    with pytest.raises(Refused, match=r"there is no srun, and no mpiexec\.hydra for an MPI"):
        ways(None, mpi=None, launchers=["mpirun"])
    with pytest.raises(Refused, match="no Slurm, so no srun"):
        ways(None, pmi="pmi2")


def test_ranks_without_mpi_need_no_pmi() -> None:
    for mpi in (INTEL, OMPI, None):
        assert ways(["pmix"], NO_MPI, mpi) == Way("srun", "none", None)
    assert ways([], NO_MPI, None, pmi="pmi2", launcher="srun") == Way("srun", "none", None)
    assert ways(["pmi2"], NO_MPI, OMPI, launcher="mpirun") == Way("mpirun", "", "/opt/ompi/bin/mpirun")
    assert ways(None, NO_MPI, OMPI) == Way("mpirun", "", "/opt/ompi/bin/mpirun")  # no Slurm, no srun


def test_a_launcher_that_was_captured_serves_the_images_own_mpi() -> None:
    assert ways([], mpi=None, launchers=["srun", "mpiexec.hydra"]) == Way("mpiexec.hydra", "", None)
    with pytest.raises(Refused, match=r"srun offers none, pmix, and no mpiexec\.hydra for an MPI"):
        ways(["none", "pmix"], mpi=None)


@pytest.mark.parametrize(("offered", "abi"), [([], MPICH_ABI), (["pmi2", "pmix"], None), ([], None)])
def test_what_nobody_knows_is_unknown(offered: list[str], abi: str | None) -> None:
    with pytest.raises(Unknown, match=r"partitions\.batch\.pmi") as caught:
        ways(offered, abi)
    assert "srun" in caught.value.hint
    with pytest.raises(Unknown, match=r"partitions\.batch\.pmi$"):
        ways(["none"], launcher="srun")


def test_the_ranks_see_what_their_launcher_speaks_by_and_no_more() -> None:
    assert passed(Way("srun", "pmi2", None), MPICH_ABI) == ["SLURM_*", "SLURMD_*", "PMI_*", "PMI2_*", "PMIX_*"]
    hydra = passed(Way("mpiexec.hydra", "", None), MPICH_ABI)
    assert {"PMI_*", "HYDI_*", "MPI_LOCAL*"} <= set(hydra)
    assert "PMIX_*" not in hydra  # what the proxy may have of srun's
    mpirun = passed(Way("mpirun", "", None), OPENMPI)
    assert {"PMIX_*", "OMPI_*", "PRTE_*"} <= set(mpirun)
    assert "PMI_*" not in mpirun
    assert len(mpirun) == len(set(mpirun))
    cray = passed(Way("srun", "cray_shasta", None), MPICH_ABI, "cray")
    assert cray == ["SLURM_*", "SLURMD_*", "PMI_*", "PMI2_*", "PMIX_*", "PALS_*", "SLINGSHOT_*"]


def of_site(kind: str, abi: str = MPICH_ABI, mpi: Mpi | None = None, **said: object) -> Way:
    """Return how ranks start where the batch system is ``kind``."""
    partition = Partition.model_validate(said)
    source = FactSource(kind="unverified", where="here")
    scheduler = SiteScheduler.model_validate({"kind": kind})
    profile = Profile(format=1, name="site", source=source, scheduler=scheduler, partitions={"batch": partition})
    return choose(profile, "batch", partition, mpi, abi)


def test_the_launcher_of_a_site_comes_before_the_mpis_own() -> None:
    cray = Mpi(family="cray", prefix="/opt/cray/pe/mpich/9.0.1/ofi/gnu/12.3")
    found = ["mpiexec", "mpiexec.hydra", "pals"]
    assert of_site("pbs", mpi=INTEL, launchers=found) == Way("pals", "pmix", None)
    assert (
        of_site("pbs", mpi=cray, launchers=found)
        == of_site("pbs", mpi=cray, launcher="pals")
        == Way("pals", "cray", None)
    )
    assert of_site("pbs", mpi=INTEL, launchers=found, pmi="cray") == Way("pals", "cray", None)
    assert of_site("pbs", NO_MPI, launchers=found) == Way("pals", "none", None)
    assert of_site("pbs", mpi=INTEL, launchers=found, launcher="mpiexec.hydra") == Way("mpiexec.hydra", "", None)
    assert of_site("slurm", mpi=INTEL, launchers=["srun", "ibrun"]) == Way("ibrun", "", None)
    assert of_site("slurm", mpi=INTEL, launchers=["srun", "ibrun"], pmi="pmi2") == Way("srun", "pmi2", None)
    assert of_site("slurm", mpi=INTEL, launchers=["mpiexec", "pals"], pmi="pmi2") == Way("srun", "pmi2", None)
    with pytest.raises(Refused, match="site: pals starts ranks in jobs of pbs only") as caught:
        of_site("slurm", launcher="pals")
    assert caught.value.hint == "correct launcher, or scheduler.kind: pbs"
    assert {"PALS_*", "PMI_*", "PMIX_*"} <= set(passed(Way("pals", "cray", None), MPICH_ABI, "cray"))
