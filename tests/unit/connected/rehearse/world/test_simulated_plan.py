"""The plan of a rehearsal keeps what a job sees of a site, and replaces what only the site has."""

import os

import pytest

from deployer.connected.rehearse.world import machine, simulated_plan
from deployer.connected.rehearse.world.file_system import MachineFiles
from deployer.connected.rehearse.world.simulated_plan import RehearsedLayout
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Image, Manifest
from deployer.contract.site.plan import (
    INSIDE,
    MPICH_ABI,
    NO_MPI,
    OUTSIDE,
    Bind,
    HostMpi,
    InsideWay,
    NodeShape,
    Plan,
    StartOption,
)

JOB = Job("train", ["python3", "train.py"], 4, 2, 24, "01:00:00", environment={"PYTHONPATH": "/mine"})
IMAGE = Image("c", "l", "amd64", ["PYTHONPATH=/image", "PATH=/bin"], "/", [], [], "/usr/bin/python3", 1, 1)
MANIFEST = Manifest("digits", "1", {}, {}, IMAGE, {}, [JOB], [], [], mpi=[MPICH_ABI])
VARIABLES = {"FI_PROVIDER": "psm2", "I_MPI_FABRICS": "ofi", "NCCL_IB_HCA": "mlx5_0", "SITE_DATA": "/scratch"}
SCRATCH = Bind("/scratch", "/scratch", "the site's folder, on the same path")
MPI = Bind("/opt/mpi", "/opt/mpi", "the site's MPI, on the same path")
WAY = InsideWay("mpiexec.hydra", MPICH_ABI, [], [SCRATCH], VARIABLES, [], ())
SITE = Plan(
    site="there", partition="batch", bundle="digits:1", workspace="~", python=["python3"],
    node=NodeShape(2, 48, 2, 90000), scheduler="slurm", directives=["--exclusive"], modules=["mpi"],
    mpi=HostMpi("intel", "2021", "/opt/mpi", "/opt/mpi/lib/libmpi.so.12", ""), binds=[SCRATCH, MPI],
    environment=VARIABLES, pass_environment=["SLURM_*"], start_options=[], inside=WAY,
)  # fmt: skip


def made(manifest: Manifest = MANIFEST, site: Plan | None = SITE, wanted: RehearsedLayout | None = None) -> Plan:
    wanted = wanted or simulated_plan.layout(JOB, None, 4)
    return simulated_plan.make(manifest, wanted, site, "/usr/bin/python3", 1000, lambda path: "/empty" + path)


def test_the_layout_is_the_jobs_as_far_as_this_machine_goes() -> None:
    assert simulated_plan.layout(JOB, None, 4) == RehearsedLayout(2, 1, 2, 2)
    assert simulated_plan.layout(JOB, 4, 8) == RehearsedLayout(2, 2, 2, 4)
    assert simulated_plan.layout(JOB._replace(nodes=1), None, 8) == RehearsedLayout(1, 2, 4, 8)
    assert simulated_plan.layout(JOB._replace(nodes=1, ranks_per_node=1), None, 1) == RehearsedLayout(1, 1, 1, 1)
    assert simulated_plan.layout(JOB, None, 1) == RehearsedLayout(2, 1, 1, 1)


@pytest.mark.parametrize(("ranks", "error"), [(0, UsageError), (3, UsageError), (8, Refused)])
def test_an_impossible_number_of_ranks_is_refused(ranks: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"--ranks {ranks}"):
        simulated_plan.layout(JOB, ranks, 4)


def test_mpi_jobs_start_inside_out_on_hosts_of_the_rehearsal() -> None:
    plan = made()
    assert (plan.launch, plan.scheduler, plan.abi, plan.mpi) == (INSIDE, "hosts", MPICH_ABI, None)
    assert plan.batch.hosts == ("node1", "node2")
    assert [option.launcher for option in plan.start_options] == ["mpiexec.hydra"]
    assert plan.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert plan.pass_environment == []
    assert plan.modules == plan.directives == []


def test_jobs_without_mpi_get_their_numbers_from_the_rehearsals_launcher() -> None:
    plan = made(MANIFEST._replace(mpi=[NO_MPI]), site=None)
    assert (plan.launch, plan.abi) == (OUTSIDE, NO_MPI)
    assert "PMI_*" in plan.pass_environment


def test_one_rank_needs_no_launcher_of_the_image() -> None:
    assert made(wanted=RehearsedLayout(1, 1, 1, 1)).launch == OUTSIDE


def test_the_sites_folders_are_empty_ones_and_its_programs_are_not_bound() -> None:
    assert made().binds == [Bind("/empty/scratch", "/scratch", "a folder of the site, empty")]
    assert made(site=None).binds == []
    assert made(site=SITE._replace(inside=None)).binds == [
        Bind("/empty/scratch", "/scratch", "a folder of the site, empty")
    ]


def test_variables_of_the_sites_network_and_mpi_are_left_out() -> None:
    found = made().environment
    assert found["SITE_DATA"] == "/scratch"
    assert not {"FI_PROVIDER", "I_MPI_FABRICS", "NCCL_IB_HCA"} & set(found)


def test_the_plan_names_the_audit_hook_and_leaves_the_python_path_alone() -> None:
    found = made().environment
    assert "PYTHONPATH" not in found
    assert found["DEPLOYER_REHEARSAL"] == "/deployer/job/rehearsal"
    assert found["DEPLOYER_REHEARSAL_HOOK"] == "/deployer/job/rehearsal-hook"


def test_machines_have_addresses_of_one_network_and_a_bridge_joins_them() -> None:
    found = machine.addresses(2)
    assert list(found) == ["login", "node1", "node2"]
    assert len(set(found.values())) == 3
    texts = machine.settings(found, "/home/of/user")
    assert all(f"{address} {name}\n" in texts["/etc/hosts"] for name, address in found.items())
    assert f":x:{os.getuid()}:{os.getgid()}::/home/of/user:" in texts["/etc/passwd"]
    login = machine.SimulatedMachine("login", found["login"], MachineFiles([], [], texts), "/place", "/sockets")
    lines = machine.switch(login, [11, 12])
    assert sum("type veth" in line and "netns 1" in line for line in lines) == 2
    assert not any("default" in line or "route" in line for line in lines)


def test_ranks_without_mpi_have_the_variables_of_the_sites_slurm() -> None:
    """As in the lab: srun gives its own variables and no PMI's. Another launcher at such a site gives both."""
    manifest = MANIFEST._replace(mpi=[NO_MPI])
    assert simulated_plan.slurm(manifest, SITE) == {"SLURM_JOB_NAME": "digits", "SLURM_JOB_PARTITION": "batch"}
    option = StartOption("charliecloud-folder", "charliecloud", "folder", "srun", "none", None)
    by_srun = SITE._replace(start_options=[option])
    by_hydra = SITE._replace(start_options=[option._replace(launcher="mpiexec.hydra", pmi="")])
    assert made(manifest, by_srun).pass_environment == ["SLURM_*", "SLURMD_*"]
    assert {"SLURM_*", "SLURMD_*", "PMI_*"} <= set(made(manifest, by_hydra).pass_environment)


def test_no_rank_has_variables_of_slurm_that_it_would_not_have_at_the_site() -> None:
    """Another batch system, no site, or an MPI, which would look for Slurm's programs."""
    manifest = MANIFEST._replace(mpi=[NO_MPI])
    for other, site in ((manifest, SITE._replace(scheduler="pbs")), (manifest, None), (MANIFEST, SITE)):
        assert simulated_plan.slurm(other, site) == {}
        assert not [name for name in made(other, site).pass_environment if name.startswith("SLURM")]
