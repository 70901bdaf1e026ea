"""What frameworks without MPI read is right under each launcher, and what somebody set stays."""

import pytest

from deployer.site.rank.rendezvous import NAMES, talking, variables

MEET = "2,4,10.0.0.1,23456,ib0"
#: Rank 6 of 2 x 4, as each launcher describes it; below mpiexec and mpirun, Slurm's variables are the daemon's.
DAEMON = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_NTASKS": "2"}
LAUNCHERS = {
    "srun": {"SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_NTASKS": "8"},
    "srun-pmi2": {"PMI_RANK": "6", "SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NTASKS": "8"},
    "srun-pmix": {"PMIX_RANK": "6", "SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NTASKS": "8"},
    "hydra": {"PMI_RANK": "6", "MPI_LOCALRANKID": "2", **DAEMON},
    "hydra-old": {"PMI_RANK": "6", **DAEMON},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "PMIX_RANK": "6", **DAEMON},
    "no Slurm": {"PMI_RANK": "6", "MPI_LOCALRANKID": "2"},
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_launcher_gives_the_same_variables(name):
    found = variables(MEET, 6, LAUNCHERS[name])
    assert {each: found[each] for each in NAMES} == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "23456",
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "1",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:23456",
        "JAX_NUM_PROCESSES": "8",
        "JAX_PROCESS_ID": "6",
        "GLOO_SOCKET_IFNAME": "ib0",
        "TP_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "=ib0",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "23456",
    }
    if "SLURM_PROCID" in LAUNCHERS[name]:  # JAX reads these
        assert (found["SLURM_PROCID"], found["SLURM_LOCALID"], found["SLURM_NTASKS"]) == ("6", "2", "8")
    else:
        assert not any(each.startswith("SLURM") for each in found)


def test_what_is_set_stays():
    given = {"MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth1", "PATH": "/bin"}
    found = variables(MEET, 0, given)
    assert {each: found[each] for each in given} == given
    assert found["TP_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize(("meet", "lacks"), [("2,4,,,", {"MASTER_ADDR", "GLOO_SOCKET_IFNAME"}), ("", set(NAMES))])
def test_what_is_unknown_is_not_set(meet, lacks):
    found = variables(meet, 5, {})
    assert not lacks & set(found)
    assert ("RANK" in found) == bool(meet)
    assert not any(value == "" for value in found.values())


def test_a_network_without_a_common_name_leaves_the_interface_to_the_framework():
    found = variables("2,4,10.0.0.1,23456,", 0, {})
    assert found["MASTER_ADDR"] == "10.0.0.1"
    assert not any(name.endswith("IFNAME") for name in found)


def test_the_first_rank_of_a_node_lets_nccl_say_what_it_uses():
    asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": "/x.log"}
    assert talking({"LOCAL_RANK": "0"}, "/x.log") == {"LOCAL_RANK": "0", **asked}
    for given in ({"LOCAL_RANK": "1"}, {"LOCAL_RANK": "0", "NCCL_DEBUG": "WARN"}):
        assert talking(given, "/x.log") == given
