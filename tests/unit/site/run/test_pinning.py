"""The layouts of the papers on their nodes: which cores each rank gets, and when one must lie across NUMA domains."""

import pytest

from deployer.contract.site.layout import lay_out
from deployer.contract.site.plan import GpuPlace, NodeShape
from deployer.site.run.pinning import cpu_lists, gpu_order, pin

#: Two Xeon Platinum 8174 of SuperMUC-NG: 24 cores each, by default one NUMA domain each.
SKYLAKE = NodeShape(sockets=2, cores=48, threads_per_core=2, memory_mb=90000, numa_domains=2)
#: The same with sub-NUMA clustering.
CLUSTERED = SKYLAKE._replace(numa_domains=4)


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "domain", "per_numa"),
    [
        (1, 48, 48, 96, None),
        (2, 48, 24, 48, 1),
        (4, 12, 12, 24, 2),
        (4, 11, 11, 24, 2),  # a piece of 11 cores would lie across the sockets for the third rank
        (48, 1, 1, 2, 24),
    ],
)
def test_the_layouts_of_the_papers(ranks, threads, cores, domain, per_numa):
    found = pin(lay_out(768, ranks, threads, SKYLAKE))
    assert found[:4] == (cores, True, domain, per_numa)
    assert (found.straddling is None) == (ranks > 1)


def test_ranks_that_share_a_core_are_bound_to_hardware_threads():
    assert pin(lay_out(1, 96, 1, SKYLAKE))[:4] == (1, False, 1, 48)


def test_ranks_that_do_not_fit_into_domains_are_told_with_the_arithmetic():
    assert pin(lay_out(1, 4, 12, CLUSTERED)).straddling is None
    assert pin(lay_out(1, 1, 48, SKYLAKE)).straddling == (
        "1 rank per node with 96 CPUs each: a NUMA domain has 48 CPUs, so each rank runs across several"
    )
    assert pin(lay_out(1, 3, 16, SKYLAKE)).straddling == (
        "3 ranks per node with 32 CPUs each: a NUMA domain has 48 CPUs, so 1 fits into a domain, "
        "and others run across two"
    )
    assert "2 fit into a domain, and others" in pin(lay_out(1, 5, 9, SKYLAKE)).straddling


def test_pieces_that_cannot_be_cut_evenly_are_a_ranks_own():
    twenty = SKYLAKE._replace(cores=40)
    assert pin(lay_out(1, 4, 10, twenty))[:4] == (10, True, 20, 2)
    assert pin(lay_out(1, 6, 6, twenty))[:4] == (6, True, 12, 3)  # 6 does not divide 20, 10 is too large for three


def test_one_domain_and_unknown_shapes():
    one = NodeShape(1, 8, 1, 1000)
    assert pin(lay_out(1, 3, 2, one)) == (2, True, 2, None, None)
    odd = NodeShape(2, 9, 1, 1000)
    assert pin(lay_out(1, 3, 2, odd)).straddling is None


#: A GPU node of Setonix or LUMI: one socket, four NUMA domains, eight dies of four MI250X.
TRENTO = NodeShape(sockets=1, cores=64, threads_per_core=2, memory_mb=240000, numa_domains=4)
DIES = [GpuPlace(gpu, domain) for gpu, domain in enumerate([3, 3, 1, 1, 0, 0, 2, 2])]


def test_each_rank_gets_the_gpu_near_its_cores():
    assert gpu_order(lay_out(2, 8, 8, TRENTO), DIES) == [4, 5, 2, 3, 6, 7, 0, 1]
    # srun distributes the ranks in turn over the sockets
    places = [GpuPlace(0, 1), GpuPlace(1, 1), GpuPlace(2, 0), GpuPlace(3, 0)]
    assert gpu_order(lay_out(1, 4, 12, SKYLAKE), places) == [2, 0, 3, 1]


def test_slurm_s_sockets_may_be_parts_of_a_numa_domain():
    """Frontier: Slurm deals ranks to eight L3 caches in turn; a rank of two caches has a domain."""
    caches = TRENTO._replace(sockets=8, cores=56)
    assert (
        gpu_order(lay_out(2, 8, 7, caches), DIES)
        == gpu_order(lay_out(2, 8, 1, caches), DIES)
        == [4, 5, 2, 3, 6, 7, 0, 1]
    )
    assert gpu_order(lay_out(2, 4, 14, caches), DIES, 2) == [4, 5, 2, 3, 6, 7, 0, 1]


#: A node of Polaris; its GPUs count down.
MILAN = NodeShape(1, 32, 2, 500000, 4, domain_cpus=("0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"))
DOWN = [GpuPlace(gpu, 3 - gpu) for gpu in range(4)]


def test_ranks_that_fill_the_domains_have_the_gpus_of_these():
    assert cpu_lists(lay_out(1, 4, 8, MILAN)) == ["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"]
    assert gpu_order(lay_out(1, 4, 8, MILAN), DOWN, filling=True) == [3, 2, 1, 0]
    assert cpu_lists(lay_out(1, 5, 4, MILAN)) == ["0-3,32-35", "4-7,36-39", "8-11,40-43", "12-15,44-47", "16-19,48-51"]
    two = SKYLAKE._replace(domain_cpus=("0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"), cores=8)
    assert cpu_lists(lay_out(1, 4, 2, two)) == ["0,2,8,10", "4,6,12,14", "1,3,9,11", "5,7,13,15"]


@pytest.mark.parametrize(
    ("ranks", "threads", "shape"),
    [
        (4, 8, MILAN._replace(domain_cpus=())),
        (4, 8, MILAN._replace(domain_cpus=("0-7,32-39", "8-15,40-47"))),  # not of all domains
        (4, 8, MILAN._replace(domain_cpus=("0-6", *MILAN.domain_cpus[1:]))),
        (64, 1, MILAN),  # ranks share cores
        (2, 16, MILAN),  # ranks run across domains
    ],
)
def test_without_the_cpus_of_domains_there_are_no_lists(ranks, threads, shape):
    assert cpu_lists(lay_out(1, ranks, threads, shape)) is None
    assert gpu_order(lay_out(1, ranks, threads, shape), DOWN, filling=True) is None


def test_there_is_no_order_if_ranks_and_gpus_do_not_match():
    assert gpu_order(lay_out(1, 4, 16, TRENTO), DIES) is None  # fewer ranks than GPUs
    assert gpu_order(lay_out(1, 8, 1, TRENTO), DIES) is None  # all ranks are in the first domain
    assert gpu_order(lay_out(1, 1, 8, TRENTO), []) is None
