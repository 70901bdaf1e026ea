"""The ring: which nodes measure together, and what a slow connection costs, with ranks that are threads."""

import queue
import threading
import time

import pytest

from deployer.site.rank import speed


class World:
    """Ranks of a job, whose messages take the time that ``delay`` returns for sender, receiver and bytes."""

    def __init__(self, hosts, delay=lambda start, end, size: 0.0):
        self.hosts, self.delay = hosts, delay
        self.boxes = {(start, end): queue.Queue() for start in range(len(hosts)) for end in range(len(hosts))}
        self.sent = [0] * len(hosts)
        self.busy, self.together, self.lock = set(), False, threading.Lock()

    def run(self, good=None):
        """Return what each rank measured."""
        results = [None] * len(self.hosts)

        def one(rank):
            results[rank] = speed.ring(Rank(self, rank), good)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self.hosts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        return results


class Rank:
    """One rank, with the calls of ``mpi.Library`` that the ring makes."""

    def __init__(self, world, rank):
        self.world, self.rank = world, rank

    def gather(self, value):
        del value
        return [float(hash(host)) for host in self.world.hosts]

    def send(self, given, count, to):
        self.world.sent[self.rank] += count * 8
        time.sleep(self.world.delay(self.rank, to, count * 8))
        self.world.boxes[self.rank, to].put([given[index] for index in range(min(count, 1))])

    def receive(self, taken, count, sender):
        del count
        taken[0] = self.world.boxes[sender, self.rank].get(timeout=20)[0]


def links(results):
    return {(rank, each["peer"]) for rank, each in enumerate(results) if each}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("a", set()),
        ("aaaa", set()),
        ("ab", {(0, 1)}),
        ("aabb", {(0, 2)}),
        ("abc", {(0, 1), (1, 2), (2, 0)}),
        ("abab", {(0, 1)}),
        ("aabbccdd", {(0, 2), (2, 4), (4, 6), (6, 0)}),
        ("abcde", {(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)}),
    ],
)
def test_each_pair_of_neighbouring_nodes_is_measured_once(hosts, expected):
    world = World(hosts)
    results = world.run()
    assert links(results) == expected
    for each in filter(None, results):
        assert each["bytes"] == 4 << 20
        assert each["nanoseconds"] > 0
    assert max(world.sent) <= 32 << 20  # and as much received: 64 MiB


def test_a_slow_direction_is_told_from_the_other_one():
    world = World("abc", lambda start, end, size: size / 40e6 if (start, end) == (1, 2) else 0.0)
    by_rank = {rank: each for rank, each in enumerate(world.run()) if each}
    assert 20e6 < by_rank[1]["bytes_per_second"] < 45e6
    assert by_rank[1]["bytes_per_second_back"] > 100e6
    assert min(by_rank[0]["bytes_per_second"], by_rank[2]["bytes_per_second_back"]) > 100e6


def test_a_very_slow_connection_ends_in_time_with_a_smaller_message():
    begun = time.monotonic()
    (link, _) = World("ab", lambda start, end, size: size / 1e5).run()  # 100 kB/s
    assert time.monotonic() - begun < 2
    assert link["bytes"] < 1 << 20
    assert 0.5e5 < link["bytes_per_second"] < 1.1e5


@pytest.mark.thorough
def test_a_short_disturbance_is_not_the_speed():
    """Two attempts of three are slow, and the latency is that of the best message."""
    large = []

    def delay(start, end, size):
        large.append(size >= 4 << 20)
        return 0.05 if (large[-1] and sum(large) < 5) or len(large) < 4 else 0.0

    (link, _) = World("ab", delay).run((10**7, 10**9))
    assert link["bytes_per_second"] > 2 * 10**8
    assert link["nanoseconds"] < 10**7


def test_names_of_nodes_become_different_exact_numbers():
    numbers = {speed._number("cn%d" % number) for number in range(20000)}
    assert len(numbers) == 20000
    assert all(number == int(number) < 2**53 for number in numbers)
