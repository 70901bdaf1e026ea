"""The proof in words: whole, in part, not at all, without MPI, and from records of another form."""

import pytest

from deployer.contract.proof import in_words

HOSTILE = "</style>\x1b]0;x\x07 & \u202e\n"

INTEL = {
    "mpi_library": "Intel(R) MPI Library 2021.15 for Linux* OS",
    "mpi_identity": "build-id:aa",
    "mpi_path": "/opt/mpi/lib/libmpi.so.12",
    "mpi_seen_in": "payload",
    "host_mpi_identity": "build-id:aa",
    "provider": "tcp;ofi_rxm",
}
MPICH = dict(INTEL, mpi_library="MPICH Version:      4.2.3\n", mpi_identity="sha256:bb")
OWN = dict(MPICH, host_mpi_identity=None)
NONE = {"mpi_library": None, "mpi_identity": None, "mpi_path": None, "host_mpi_identity": "build-id:aa"}
NCCL = {"network": "IB", "via": ["NET/IB", "P2P"]}
SITE = "used the site's Intel MPI 2021.15 (same file as the host's)"
TCP = "network: tcp;ofi_rxm (libfabric)"


def result(*ranks, **values):
    return {"nodes": 2, "ranks_per_node": 1, "world_size": 2, "runtime": "charliecloud", "ranks": list(ranks), **values}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (result(INTEL, INTEL), f"2 of 2 ranks {SITE}; {TCP}"),
        (
            result(INTEL, dict(INTEL, shared_memory=True)),
            f"2 of 2 ranks {SITE}; {TCP}; transport: shared memory within a node",
        ),
        (
            result(INTEL, INTEL, network={"latency_us": 2.1, "bandwidth_mb_s": 9000.0}),
            f"2 of 2 ranks {SITE}; {TCP}; between the nodes: 2.1 us, 9000.0 MB/s",
        ),
        (result(INTEL, ranks_per_node=1, nodes=1, world_size=1), f"1 of 1 rank {SITE}"),
        (result(INTEL), f"incomplete: 1 of 2 ranks {SITE}; 1 of 2 ranks left no record"),
        (
            result(INTEL, MPICH),
            (
                f"incomplete: 1 of 2 ranks {SITE}; 1 of 2 ranks used another MPI library than the site's: MPICH 4.2.3; "
                f"{TCP}"
            ),
        ),
        (result(MPICH, MPICH), "none: 2 of 2 ranks used another MPI library than the site's: MPICH 4.2.3; " + TCP),
        (result(INTEL, NONE), f"incomplete: 1 of 2 ranks {SITE}; no MPI library was found in 1 of 2 ranks; {TCP}"),
        (
            result(*[dict(INTEL, mpi_seen_in="probe")] * 2),
            f"2 of 2 ranks {SITE}, but only in the test before the program; {TCP}",
        ),
        (result(OWN, OWN), "2 of 2 ranks used the image's own MPICH 4.2.3; " + TCP),
        (result(OWN, OWN, runtime="native"), "2 of 2 ranks used the host's MPICH 4.2.3; " + TCP),
        (
            result(*[dict(OWN, mpi_library="Open MPI v5.0.11, package: x", provider=None)] * 2),
            "2 of 2 ranks used the image's own Open MPI 5.0.11; network: not reported",
        ),
        (
            result(INTEL, INTEL, world_size=1),
            f"incomplete: 2 of 2 ranks {SITE}; their MPI world had 1 rank, not 2; {TCP}",
        ),
        (
            result(INTEL, INTEL, world_size=None),
            f"incomplete: 2 of 2 ranks {SITE}; the size of their MPI world is not proven; {TCP}",
        ),
        (result(NONE, nodes=1), "not needed: one rank, which used no MPI"),
        (
            result(NONE, NONE, network={"latency_us": 79.3, "bandwidth_mb_s": 2550.4}),
            "none: no MPI library was found in 2 of 2 ranks; between the nodes: 79.3 us, 2550.4 MB/s",
        ),
        (
            result(*[dict(NONE, communication={"connected": True, "nccl": NCCL})] * 2),
            "2 of 2 ranks used no MPI; 2 were connected to other ranks; network: IB (NCCL); transport: NET/IB, P2P",
        ),
        (result(), "none: no rank left a record"),
        (
            result(*[dict(INTEL, mpi_library="kind %d" % number) for number in range(6)], nodes=6, world_size=6),
            "".join("1 of 6 ranks used the site's kind %d (same file as the host's); " % number for number in range(4))
            + "and 2 other kinds; "
            + TCP,
        ),
        ({"ranks": 3}, "none: result.json lists no ranks"),
        (None, "none: result.json lists no ranks"),
    ],
)
def test_what_the_ranks_used_is_said_in_words(record, said):
    assert in_words.line(record) == "proof: " + said


@pytest.mark.parametrize(
    ("says", "path", "name"),
    [
        ("CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)", "", "Cray MPICH 8.1.27.26"),
        ("MVAPICH2 Version      :\t2.3.7", "", "MVAPICH 2.3.7"),
        ("x" * 100, "", "x" * 60),
        (None, "/usr/lib/libmpi.so.40", "libmpi.so.40"),
    ],
)
def test_the_name_of_a_library(says, path, name):
    assert in_words.library({"mpi_library": says, "mpi_path": path}) == name


def test_a_record_from_elsewhere_costs_nothing():
    odd = {"mpi_identity": [], "host_mpi_identity": {}, "mpi_library": HOSTILE, "communication": 3, "provider": ["x"]}
    for values in ({"nodes": 10**4000, "ranks_per_node": 10**4000}, {"nodes": "x"}, {"world_size": "x"}):
        assert in_words.line(result(odd, 3, odd, **values)).isprintable()
