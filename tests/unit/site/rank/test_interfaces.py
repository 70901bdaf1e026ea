"""A node's addresses and a free port, as the kernel has them."""

import socket
import struct
from contextlib import closing

import pytest

from deployer.site.rank import interfaces


def test_the_loopback_interface_is_found_with_its_network():
    found = [item for item in interfaces.addresses() if item.address == "127.0.0.1"]
    assert [(item.prefix, item.kind) for item in found] == [(8, 772)]


@pytest.mark.parametrize(("flags", "count"), [(0x1 | 0x40, 1), (0x1, 0), (0x40, 0)])
def test_an_interface_without_a_link_leads_nowhere(monkeypatch, flags, count):
    """InfiniBand's keeps its address if no cable is plugged in."""
    told = {
        0x8915: struct.pack("HH4s", socket.AF_INET, 0, bytes([10, 0, 0, 1])),
        0x891B: struct.pack("HH4s", socket.AF_INET, 0, bytes([255, 255, 0, 0])),
        0x8913: struct.pack("H", flags),
        0x8927: struct.pack("H", 32),
    }
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(2, "ib0")])
    monkeypatch.setattr(interfaces, "_ask", lambda _asked, number, _name: told[number])
    assert [item.address for item in interfaces.addresses()] == ["10.0.0.1"] * count


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
