"""The layouts of the papers come out right; what a node cannot hold is refused with the arithmetic."""

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.site import layout
from deployer.contract.site.plan import NodeShape

SKYLAKE = NodeShape(sockets=2, cores=48, threads_per_core=2, memory_mb=90000)


@pytest.mark.parametrize(
    ("ranks", "threads", "cpus", "hyperthreads"),
    [
        (1, 48, 96, False),
        (2, 48, 48, True),
        (4, 12, 24, False),
        (4, 11, 22, False),
        (48, 1, 2, False),
        (96, 1, 1, True),
    ],
)
def test_the_layouts_of_the_papers(ranks, threads, cpus, hyperthreads):
    made = layout.lay_out(8, ranks, threads, SKYLAKE)
    assert (made.cpus_per_rank, made.hyperthreads, made.ranks) == (cpus, hyperthreads, 8 * ranks)


@pytest.mark.parametrize(
    ("ranks", "threads", "arithmetic", "hint"),
    [
        (
            4,
            25,
            "4 ranks per node x 25 threads = 100, but a node has 48 cores x 2 hardware threads = 96 CPUs",
            "with 4 ranks per node: --threads 24 at most",
        ),
        (97, 1, "97 ranks per node x 1 thread = 97", "--ranks-per-node 96 at most"),
    ],
)
def test_more_threads_than_cpus_are_refused(ranks, threads, arithmetic, hint):
    with pytest.raises(Refused) as error:
        layout.lay_out(1, ranks, threads, SKYLAKE)
    assert arithmetic in error.value.message
    assert error.value.hint == hint
    assert error.value.exit_code == 3


def test_one_of_a_kind_has_no_plural():
    single = SKYLAKE._replace(sockets=1, cores=1, threads_per_core=1)
    wanted = r"2 ranks per node x 1 thread = 2, but a node has 1 core x 1 hardware thread = 1 CPU \(job.layout\)$"
    with pytest.raises(Refused, match=wanted):
        layout.lay_out(1, 2, 1, single)


def test_a_scheduler_that_counts_cores_is_asked_for_cores():
    """SuperMUC-NG's published job asks for 12 CPUs a rank, 4 ranks on 48 cores of two hardware threads each."""
    by_core = SKYLAKE._replace(cpus=48)
    assert [layout.lay_out(1, 4, 12, shape).asked_cpus for shape in (SKYLAKE, by_core)] == [24, 12]
    assert layout.lay_out(1, 2, 48, by_core).asked_cpus == 24
    assert layout.lay_out(1, 1, 48, by_core).asked_cpus == 48
    with pytest.raises(Refused, match="96 ranks per node x 1 CPU = 96, but the scheduler counts 48 CPUs"):
        layout.lay_out(1, 96, 1, by_core)


def test_more_memory_than_a_job_may_use_is_refused():
    assert layout.lay_out(1, 4, 12, SKYLAKE, 22500).memory_mb == 22500
    with pytest.raises(Refused, match="4 ranks per node x 22501 MiB = 90004 MiB, but a job may use 90000 MiB"):
        layout.lay_out(1, 4, 12, SKYLAKE, 22501)


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_counts_below_one_are_wrong_usage(counts):
    with pytest.raises(UsageError, match="must be at least 1"):
        layout.lay_out(*counts, SKYLAKE)


def test_the_environment_follows_the_layout():
    assert layout.environment(layout.lay_out(1, 4, 12, SKYLAKE)) == {
        "OMP_NUM_THREADS": "12",
        "OMP_PLACES": "cores",
        "OMP_PROC_BIND": "close",
        "KMP_BLOCKTIME": "0",
        "TF_NUM_INTRAOP_THREADS": "12",
        "TF_NUM_INTEROP_THREADS": "2",
    }
    assert layout.environment(layout.lay_out(1, 1, 1, SKYLAKE))["TF_NUM_INTEROP_THREADS"] == "1"


@pytest.mark.parametrize(
    ("ranks", "threads", "places"), [(1, 48, "cores"), (2, 48, "threads"), (4, 12, "cores"), (4, 11, "cores")]
)
def test_the_environment_of_the_papers_layouts(ranks, threads, places):
    found = layout.environment(layout.lay_out(1, ranks, threads, SKYLAKE))
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_PLACES", "OMP_PROC_BIND")
    assert [found[name] for name in names] == [
        str(threads),
        str(threads),
        "2",
        places,
        "close",
    ]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, {}),
        ({"SLURM_CPUS_PER_TASK": "4"}, layout.of_threads(4)),
        ({"SLURM_CPUS_PER_TASK": "4", "OMP_NUM_THREADS": "2"}, layout.of_threads(2)),
        ({"OMP_NUM_THREADS": "3,2"}, {**layout.of_threads(3), "OMP_NUM_THREADS": "3,2"}),
        (
            {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "8"},
            {**layout.of_threads(1), "TF_NUM_INTRAOP_THREADS": "8"},
        ),
        ({"OMP_PLACES": "sockets", "PATH": "/bin"}, {"OMP_PLACES": "sockets"}),
        ({"KMP_AFFINITY": "scatter"}, {"KMP_AFFINITY": "scatter"}),
        ({"SLURM_CPUS_PER_TASK": "many", "OMP_NUM_THREADS": "0"}, {"OMP_NUM_THREADS": "0"}),
    ],
)
def test_a_users_own_environment_says_the_threads_of_a_task(said, found):
    assert layout.own(said) == found


@pytest.mark.parametrize(
    ("image", "asked", "left"),
    [
        ((), ("OMP_PLACES", "OMP_PROC_BIND"), {"OMP_PLACES", "OMP_PROC_BIND"}),
        (("KMP_AFFINITY", "GOMP_CPU_AFFINITY"), ("OMP_PLACES", "OMP_PROC_BIND"), {"OMP_PLACES", "OMP_PROC_BIND"}),
        ((), ("OMP_PLACES", "OMP_PROC_BIND", "KMP_AFFINITY"), {"KMP_AFFINITY"}),
        (("GOMP_CPU_AFFINITY", "OMP_PLACES"), ("KMP_AFFINITY",), {"KMP_AFFINITY"}),
        (("KMP_AFFINITY",), (), {"KMP_AFFINITY"}),
    ],
)
def test_threads_are_bound_in_one_way(image, asked, left):
    """Intel's OpenMP warns in every rank about each variable that it ignores for the sake of another."""
    found = dict.fromkeys([*image, *asked, "KMP_BLOCKTIME"], "x")
    layout.one_way_to_bind(found, asked)
    assert set(found) - {"KMP_BLOCKTIME"} == left
