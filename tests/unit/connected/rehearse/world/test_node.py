"""A simulated node: which memory ends a process, and whether all programs were observed."""

import mmap
import os
import signal
import socket
import tempfile
from collections.abc import Callable

import pytest

from deployer.connected.rehearse.watch import syscalls, usage
from deployer.connected.rehearse.watch.usage import MemoryShare
from deployer.connected.rehearse.world import node
from deployer.connected.rehearse.world.file_system import MachineFiles
from deployer.connected.rehearse.world.machine import SimulatedMachine
from deployer.connected.rehearse.world.node import KILLED, NEEDED, OBSERVED, NodeOrder

MACHINE = SimulatedMachine("node1", "10.0.0.1", MachineFiles([], [], {}), "/x", "/x")
ORDER = NodeOrder(MACHINE, "/x", "/bin", (), 100, (), "/x", 100)
#: A main process of 60 MiB and three workers that share it.
RESIDENT = {70: 60 * 1024, 71: 61 * 1024, 72: 60 * 1024, 73: 60 * 1024}


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Return a function that looks at the memory of processes with this share each; it returns who was killed.

    Its other arguments are MiB: what each has mapped of files in memory, and the files by folder. The last element of
    the answer is what the node reports that it needed.
    """
    killed: list[int] = []
    monkeypatch.setattr(node, "_processes", lambda: [os.getpid(), *RESIDENT])
    monkeypatch.setattr(node, "resident", lambda pid: (RESIDENT[pid], 0))
    monkeypatch.setattr(node.os, "kill", lambda pid, number: killed.append(pid) if number == signal.SIGKILL else None)

    def weigh(share: int, mapped: int = 0, **files: int) -> list[int]:
        monkeypatch.setattr(node, "own_share", lambda *_: MemoryShare(share * 1024, mapped * 1024))
        monkeypatch.setattr(node, "_files", lambda folder: files.get(folder.strip("/"), 0) * 1024)
        with socket.socket(socket.AF_UNIX) as listener:
            made = node._Node(ORDER, listener, None)
            made._weigh()
            made._weigh()
        assert made._killed == len(killed)
        return [*killed, made._needed]

    return weigh


def test_pages_that_processes_share_count_once(weighed: Callable[..., list[int]]) -> None:
    assert weighed(16) == [0]


def test_the_largest_process_ends_if_all_need_more_than_there_is(weighed: Callable[..., list[int]]) -> None:
    assert weighed(26) == [71, 71, 104]


def test_a_share_is_never_more_than_what_a_process_has(weighed: Callable[..., list[int]]) -> None:
    assert weighed(1000) == [71, 71, 241]


@pytest.mark.parametrize(
    ("mapped", "files", "expected"),
    [
        (0, {"dev/shm": 30}, [0]),
        (0, {"dev/shm": 40}, [71, 71, 104]),
        (8, {"dev/shm": 30}, [0]),  # the same pages
        (10, {"dev/shm": 30}, [71, 71, 104]),  # more than is in the folder: of files without a name
        (0, {"tmp": 40}, [104]),  # a disk at many sites, memory at others
        (0, {"tmp": 20, "var/tmp": 10}, [0]),
    ],
)
def test_files_in_memory_count(
    mapped: int, files: dict[str, int], expected: list[int], weighed: Callable[..., list[int]]
) -> None:
    assert weighed(16, mapped, **files) == expected


def test_files_that_outlive_all_processes_end_nobody(
    weighed: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_processes", lambda: [os.getpid()])
    assert weighed(16, **{"dev/shm": 200}) == [200]


def test_the_files_of_a_folder_in_memory() -> None:
    before = node._files("/dev/shm")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as stream:
        stream.write(bytes(8 << 20))
        stream.flush()
        assert node._files("/dev/shm") - before > 4 * 1024


def test_the_share_of_a_process_is_without_files() -> None:
    before = sum(usage.own_share(os.getpid(), -1))
    with mmap.mmap(-1, 8 * 1024 * 1024) as memory:
        memory[:] = bytes(8 * 1024 * 1024)
        assert 7 * 1024 < sum(usage.own_share(os.getpid(), -1)) - before < 60 * 1024
    assert 0 < before <= usage.resident(os.getpid())[0] + 1024
    assert sum(usage.own_share(2**22 + 1, 77)) == 0


@pytest.mark.parametrize(("why", "observed"), [(None, True), ("the observer has ended", False)])
def test_a_node_with_a_program_that_no_observer_received_is_not_observed(
    why: str | None, observed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is started as ``ssh`` starts it, in a child."""
    monkeypatch.setattr(syscalls, "confine", lambda: None)
    monkeypatch.setattr(syscalls, "announce", lambda: why)
    monkeypatch.setattr(node.kernel, "drop_capabilities", lambda: None)
    monkeypatch.setattr(node._Node, "_end_others", lambda *_: None)
    monkeypatch.setattr(node._Node, "_stop", lambda *_: True)
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0deployer-test-node-{os.getpid()}")
        made = node._Node(ORDER._replace(memory_mb=None), listener, 2**22 + 1)
        pid = os.fork()
        if pid == 0:
            try:
                node.start(["/bin/true"], ORDER, made._tell_unobserved)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        os.close(writing)  # the end
        assert made.serve(reading) == {OBSERVED: observed, KILLED: 0, NEEDED: 0}
    os.close(reading)
