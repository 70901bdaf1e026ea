import struct

import pytest

from deployer.connected.rehearse.watch import syscalls

X86, ARM = (syscalls._MACHINES[name] for name in ("x86_64", "aarch64"))


ALLOW, NOTIFY, KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
ABSENT, NO_FAMILY = 0x00050000 | 38, 0x00050000 | 97


def announced(machine, number, args=(0,) * 6):
    """Return whether the filter of observed calls announces the call."""
    value = answer(syscalls.program(machine), machine, number, args)
    assert value in (ALLOW, NOTIFY)
    return value == NOTIFY


def refused(machine, number, args=(0,) * 6, arch=None):
    """Return what the filter that refuses calls answers."""
    return answer(syscalls.refusals(machine), machine, number, args, arch)


def answer(code, machine, number, args=(0,) * 6, arch=None):
    """Run a filter as the kernel does and return its answer."""
    data = struct.pack("=IIQ6Q", number, machine.arch if arch is None else arch, 0, *args)
    code = list(struct.iter_unpack("=HBBI", code))
    at = word = 0
    while True:
        step, true, false, value = code[at]
        at += 1
        if step == 0x20:
            (word,) = struct.unpack_from("=I", data, value)
        elif step == 0x06:
            return value
        else:
            assert step in (0x15, 0x35)
            at += true if (word == value if step == 0x15 else word >= value) else false


@pytest.mark.parametrize("machine", [X86, ARM])
def test_the_calls_that_reach_for_something_are_announced(machine):
    conditional = ("write", "sendto")
    assert all(announced(machine, number) for name, number in machine.calls.items() if name not in conditional)
    others = set(range(500)) - set(machine.calls.values())
    assert not any(announced(machine, number) for number in others)


@pytest.mark.parametrize("machine", [X86, ARM])
def test_of_what_is_written_only_the_standard_error(machine):
    assert announced(machine, machine.calls["write"], (2, 4096, 10, 0, 0, 0))
    assert not any(announced(machine, machine.calls["write"], (n, 4096, 10, 0, 0, 0)) for n in (0, 1, 3, 258))


@pytest.mark.parametrize("machine", [X86, ARM])
def test_of_what_is_sent_only_datagrams_to_an_address(machine):
    number = machine.calls["sendto"]
    assert not announced(machine, number, (3, 4096, 10, 0, 0, 0))
    for address in (1, 0x7FFF00000000, 0x7FFF12345678):
        assert announced(machine, number, (3, 4096, 10, 0, address, 16))


@pytest.mark.parametrize("machine", [X86, ARM])
def test_of_sockets_only_those_to_the_host_of_a_virtual_machine_are_refused(machine):
    assert refused(machine, machine.socket, (40, 1, 0, 0, 0, 0)) == NO_FAMILY
    assert refused(machine, machine.socket, (0x7F00000028, 1, 0, 0, 0, 0)) == NO_FAMILY  # the kernel reads 32 bits
    assert {refused(machine, machine.socket, (family, 1, 0, 0, 0, 0)) for family in (0, 1, 2, 10, 16, 38)} == {ALLOW}


@pytest.mark.parametrize("machine", [X86, ARM])
def test_keys_io_uring_and_calls_with_other_numbers_are_refused(machine):
    assert {refused(machine, number) for number in machine.refused.values()} == {ABSENT}
    assert {refused(machine, number) for number in set(range(500)) - {*machine.refused.values()}} == {ALLOW}
    assert refused(machine, machine.calls["openat"], arch=0x40000003) == KILL
    assert refused(X86, X86.calls["openat"] | 0x40000000) == ABSENT


def test_a_processor_whose_calls_are_not_known_is_not_confined(monkeypatch):
    monkeypatch.setattr(syscalls, "_MACHINES", {})
    assert syscalls.confine().startswith("the system calls of ")


def test_without_an_observer_the_program_runs_unobserved():
    assert "there is no observer" in syscalls.announce("\0deployer-test-nobody")
