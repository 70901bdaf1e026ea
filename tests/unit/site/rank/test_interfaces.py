"""A node's addresses and a free port, as the kernel has them."""

import socket
from contextlib import closing

from deployer.site.rank import interfaces


def test_the_loopback_interface_is_found_with_its_network():
    found = [item for item in interfaces.addresses() if item.address == "127.0.0.1"]
    assert [(item.prefix, item.kind) for item in found] == [(8, 772)]


def test_a_port_is_free_for_whoever_binds_it_next(monkeypatch):
    monkeypatch.setattr(interfaces, "_span", lambda: (21000, 29999))
    port = interfaces.free_port()
    with closing(socket.socket()) as taken:
        taken.bind(("", port))
        assert 21000 <= port <= 29999


def test_a_port_that_somebody_uses_is_not_given(monkeypatch):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(interfaces, "_span", lambda: (port, port))
        assert interfaces.free_port() is None


def test_the_kernel_gives_the_port_to_no_connection():
    first, last = interfaces._span()
    with open("/proc/sys/net/ipv4/ip_local_port_range") as stream:
        low, high = (int(word) for word in stream.read().split())
    assert last < low or first > high
