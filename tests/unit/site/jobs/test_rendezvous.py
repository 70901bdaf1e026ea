"""The place where ranks find each other: the first node's address, and a secret that only the user can read."""

import os
import socket
import stat

import pytest

from deployer.contract.proof.evidence import HostRecord, Launch
from deployer.contract.site.network import NodeAddress
from deployer.site.jobs import rendezvous

LAUNCH = Launch("j", "b", "1", "sha256:0", "s", "o", "r", "charliecloud", 0, 3, 1, "01:00:00", ["true"], None, None, 0)


def host(name, number, port=20001):
    return HostRecord(name, None, (), (), (NodeAddress("eth0", "10.0.0.%d" % number, 24),), port + number)


def written(tmp_path, hosts, machines="", interface=None):
    if machines:
        (tmp_path / "machines").write_text(machines)
    launch = LAUNCH._replace(nodes=len(hosts), interface=interface)
    rendezvous.write(str(tmp_path), launch, hosts, str(tmp_path / "machines"))
    return (tmp_path / "meet").read_text().splitlines()


def test_this_node_is_the_first_one(tmp_path):
    """A batch script runs there, and so does rank 0."""
    own = socket.gethostname()
    line, secret, *nodes = written(tmp_path, [host("a", 1), host(own, 2), host("z", 3)])
    assert nodes == [own + " 10.0.0.2 20003", "a 10.0.0.1 20002", "z 10.0.0.3 20004"]
    assert line == "3,3,10.0.0.2,20003,eth0"
    assert len(bytes.fromhex(secret)) == 32
    assert stat.S_IMODE(os.stat(str(tmp_path / "meet")).st_mode) == 0o600


@pytest.mark.parametrize("name", ["b", "b.cluster"])
def test_the_first_of_the_list_is_if_an_agent_starts_processes(tmp_path, name):
    assert (
        written(tmp_path, [host("a", 1), host("b", 2)], name + " slots=3\na slots=3\n")[0] == "2,3,10.0.0.2,20003,eth0"
    )


@pytest.mark.parametrize(("name", "number"), [("10.0.0.2", 2), ("alias", 2), ("localhost", 3), ("unknown", None)])
def test_the_list_may_have_other_names_of_nodes_or_addresses(tmp_path, monkeypatch, name, number):
    known = {"alias": "10.0.0.2", "10.0.0.2": "10.0.0.2", "localhost": "127.0.0.1"}

    def resolve(asked):
        if asked not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return known[asked]

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    hosts = [host("a", 1), host("b", 2), host(socket.gethostname(), 3)]
    place = "10.0.0.%d,%d,eth0" % (number, 20001 + number) if number else ",,"
    assert written(tmp_path, hosts, name + "\n")[0] == "3,3," + place


@pytest.mark.parametrize(
    ("hosts", "interface"),
    [
        ([host("a", 1), host("b", 2)], None),  # neither is this one
        ([host(socket.gethostname(), 1), host("b", 2)], "ib0"),
        ([host(socket.gethostname(), 1)._replace(port=None), host("b", 2)], None),
    ],
)
def test_without_a_network_or_a_port_there_is_no_place(tmp_path, hosts, interface):
    line, _ = written(tmp_path, hosts, interface=interface)
    assert line == "2,3,,,"


def test_without_a_port_on_each_node_they_send_nothing_to_each_other(tmp_path):
    hosts = [host(socket.gethostname(), 1), host("b", 2)._replace(port=None)]
    assert len(written(tmp_path, hosts)) == 2
