"""The network by which ranks find each other: all nodes have it, and the fastest one is first."""

import pytest

from deployer.contract.site.network import NodeAddress, common

ETHERNET, INFINIBAND = 1, 32
#: All nodes have it with the same address, and its kind says that it is fast.
VIRTUAL = NodeAddress("vmnet8", "192.168.56.1", 24, ETHERNET, 100000)


def node(number, *more):
    return [NodeAddress("lo", "127.0.0.1", 8, 772), NodeAddress("eno1", "10.0.0.%d" % number, 24, 1, 1000), *more]


def fast(number, name="ib0", kind=INFINIBAND):
    return NodeAddress(name, "10.9.0.%d" % number, 16, kind, 0)


@pytest.mark.parametrize(
    ("nodes", "wanted", "found"),
    [
        ({"a": node(1), "b": node(2)}, "", ("10.0.0.1", "eno1")),
        ({"a": node(1, fast(1)), "b": node(2, fast(2))}, "", ("10.9.0.1", "ib0")),
        ({"a": node(1, fast(1, "hsn0", 1)), "b": node(2, fast(2, "hsn0", 1))}, "", ("10.9.0.1", "hsn0")),
        ({"a": node(1, fast(1)), "b": node(2)}, "", ("10.0.0.1", "eno1")),  # one node's is down
        ({"a": node(1, fast(1)), "b": node(2, fast(2))}, "eno1", ("10.0.0.1", "eno1")),
        ({"a": node(1, fast(1)), "b": node(2, fast(2))}, "=eno1,ib0", ("10.0.0.1", "eno1")),
        ({"a": node(1), "b": node(2)}, "ib0", None),  # the plan's network is not replaced by another one
        ({"a": node(1, fast(1)), "b": node(2, fast(2, "ib1"))}, "", ("10.9.0.1", "")),  # no name for all of them
        (
            {"a": node(1, fast(1, "eth9", 1)._replace(speed=100000)), "b": node(2, fast(2, "eth9", 1))},
            "",
            ("10.9.0.1", "eth9"),
        ),
        ({"a": node(1), "b": [NodeAddress("eno1", "10.0.1.2", 24)]}, "", ("10.0.0.1", "eno1")),  # a router between them
        ({"a": node(1), "b": [NodeAddress("eno2", "10.0.1.2", 24)]}, "", None),  # another network
        (
            {"a": [NodeAddress("ens4", "10.0.0.1", 32)], "b": [NodeAddress("ens4", "10.0.0.2", 32)]},
            "",
            ("10.0.0.1", "ens4"),  # Google's cloud
        ),
        ({"a": node(1, VIRTUAL), "b": node(2, VIRTUAL)}, "", ("10.0.0.1", "eno1")),  # of each node alone
        ({"a": [VIRTUAL], "b": [VIRTUAL]}, "", None),
        ({"a": node(1), "b": node(2)}, "lo", None),
        ({"a": node(1)}, "ib0", ("127.0.0.1", "lo")),  # one node needs no other
        ({"a": [NodeAddress("docker0", "172.17.0.1", 16)], "b": [NodeAddress("docker0", "172.17.0.1", 16)]}, "", None),
        ({"a": [NodeAddress("e0", "169.254.1.1", 16)], "b": [NodeAddress("e0", "169.254.1.2", 16)]}, "", None),
        ({"a": node(1)}, "", ("127.0.0.1", "lo")),
        ({"a": [], "b": []}, "", None),
    ],
)
def test_the_best_network_of_all_nodes_is_used(nodes, wanted, found):
    network = common("a", nodes, wanted)
    assert (network and network[:2]) == found
    if found and len(nodes) > 1:
        assert network.addresses[0] == found[0]
        assert len(set(network.addresses)) == len(nodes)
