"""What is too slow, and its likely cause."""

import pytest

from deployer.contract.site import speed
from deployer.contract.site.speed import ExpectedNetwork, Speed

EXPECTED = Speed(2.0, 10000.0)


def ring(nodes, slow=(), bandwidth=1000.0):
    """Return the connections of a ring, slow on these (start, end)."""
    pairs = [(node, nodes[(at + 1) % len(nodes)]) for at, node in enumerate(nodes)][: 1 if len(nodes) == 2 else None]
    both = [pair for start, end in pairs for pair in ((start, end), (end, start))]
    return [speed.Connection(*pair, Speed(2.1, bandwidth if pair in slow else 9900.0)) for pair in both]


def test_a_healthy_network_is_no_finding():
    assert speed.judge(ring("abcd"), EXPECTED, 0.5, "mpich", None) is None
    assert speed.judge([], EXPECTED, 0.5, "mpich", None) is None


@pytest.mark.parametrize(
    ("own", "is_slow"),
    [
        (Speed(2.0, 5000.0), False), (Speed(2.0, 4999.0), True),
        (Speed(4.0, 9000.0), False), (Speed(4.1, 9000.0), True),
    ],
)  # fmt: skip
def test_half_of_the_expected_speed_is_the_limit(own, is_slow):
    assert (speed.judge([speed.Connection("a", "b", own)], EXPECTED, 0.5, "mpich", None) is not None) is is_slow


@pytest.mark.parametrize(
    ("nodes", "slow", "way", "cause"),
    [
        ("abcd", ["ab", "ba", "bc", "cb"], "intel", "only connections of b are slow"),
        ("abcd", ["bc"], "intel", "the other direction is not slow"),
        ("ab", ["ba"], "intel", "the other direction is not slow"),
        ("abcd", ["ab", "ba", "cd", "dc"], "intel", "4 of 8 connections are slow"),
        ("ab", ["ab", "ba"], "openmpi", "all connections are slow through openmpi: "),
        ("ab", ["ab", "ba"], "intel with libfabric's provider tcp", "provider tcp, instead of slingshot"),
        ("ab", ["ab", "ba"], "intel with libfabric's provider tcp;ofi_rxm", "provider tcp;ofi_rxm, instead of"),
        ("ab", ["ab", "ba"], "intel with libfabric's provider cxi", "through intel with libfabric's provider cxi"),
    ],
)
def test_the_likely_cause(nodes, slow, way, cause):
    found = speed.judge(ring(nodes, [tuple(pair) for pair in slow]), EXPECTED, 0.5, way, "slingshot")
    assert cause in found["cause"]
    assert (found["start"], found["end"]) in [tuple(pair) for pair in slow]
    assert (found["measured"], found["expected"]) == ("1000 MB/s and 2.1 us", "10000 MB/s and 2 us")


def test_what_a_result_shows():
    record = speed.shown(ring("abc", [("b", "c")]), ExpectedNetwork(EXPECTED, source="doctor"))
    assert record.items() >= {"nodes": 3, "latency_us": 2.1, "bandwidth_mb_s": 1000.0, "slowest": "b to c"}.items()
    assert record["expected"] == {"mpi": {"latency_us": 2.0, "bandwidth_mb_s": 10000.0}, "source": "doctor"}
    assert len(record["connections"]) == 6
    assert speed.shown([], None) is None


def test_the_limit_for_the_probe():
    assert ExpectedNetwork(EXPECTED).good() == "4000:5000000000"
    assert ExpectedNetwork(tcp=EXPECTED).good() is None
