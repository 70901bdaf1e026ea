"""What processes use: memory and threads per rank, and temporary files. Short peaks between samples may be missed.

The peak of a single process is the kernel's own measurement. For a rank with several processes, it is the largest sum
in any sample.

A process belongs to the rank whose number is in its environment. Without a number, it belongs to the rank of its
nearest ancestor that has one. Only processes in a container count, without deployer's own.
"""

import contextlib
import itertools
import os
import time
from typing import Any, NamedTuple

from deployer.connected.rehearse.watch import tracee
from deployer.connected.rehearse.watch.tracee import Tracee
from deployer.contract.base.grouping import grouped

#: Launchers' variables with a rank's number. Slurm's own is last, because other launchers' ranks also have it.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID")
_MAX_ENVIRONMENT = 1024 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")
#: A thread counts as busy if it used this share of a core between two samples.
_BUSY = 0.03
#: The minimum seconds between two samples of threads, and the maximum share of time for sampling.
_PERIOD, _SHARE = 1.0, 0.01
#: How often a number of threads must have been busy. A single moment, for example at the start, does not count.
_OFTEN = 2
#: A sum of resident sizes counts shared pages repeatedly. If it grows by this factor, the exact size is computed.
_GROWTH = 1.05
#: The maximum number of files counted in one sample of the temporary folders.
_MAX_FILES = 200000

Rank = int | None


class _Seen(NamedTuple):
    """A known process: its start time (because pids are reused), its rank, and whether it counts."""

    began: str
    rank: Rank
    counts: bool


class RankUsage:
    """Measures the processes that are visible to this one."""

    def __init__(self, folders: list[str]) -> None:
        """Start measuring. Files in ``folders`` are temporary."""
        self._folders = [(folder, os.stat(folder).st_dev) for folder in folders]
        self._before = self._size()
        self._known: dict[int, _Seen] = {}
        self._peaks: dict[Rank, int] = {}
        self._sums: dict[Rank, int] = {}
        self._ticks: dict[tuple[int, str], int] = {}
        self._busy: dict[Rank, list[int]] = {}
        self._temporary = 0
        self._next = 0.0
        self._at = 0.0

    def look(self, last: bool = False) -> None:
        """Take a sample if it is time, or if it is the ``last`` one."""
        begun, used = time.monotonic(), time.process_time()
        if begun < self._next and not last:
            return
        ranks = self._ranks()
        for rank, processes in ranks.items():
            self._weigh(rank, processes)
        self._count(ranks, begun)
        self._temporary = max(self._temporary, self._size() - self._before)
        self._next = begun + max(_PERIOD, (time.process_time() - used) / _SHARE)

    def look_at_last(self, process: int) -> None:
        """Record the memory of a process that is about to exit. It may have lived for less than the sampling period."""
        try:
            known = self._known.get(process)
            rank = known.rank if known is not None and known.counts else _rank(process)
        except OSError:
            return
        self._peaks[rank] = max(self._peaks.get(rank, 0), resident(process)[1])

    def _ranks(self) -> dict[Rank, list[int]]:
        """Return the processes of each rank."""
        found: dict[int, _Seen] = {}
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            process = int(name)
            try:
                fields = _fields(f"/proc/{process}/stat")
                parents[process] = int(fields[1])
                known = self._known.get(process)
                # A process outside a container, or a process of the tool, may become another program.
                if known is None or known.began != fields[19] or not known.counts:
                    who = Tracee(process)
                    known = _Seen(fields[19], _rank(process), who.inside and not who.own)
                found[process] = known
            except (OSError, ValueError, IndexError):
                continue
        self._known = found
        return grouped((_inherited(process, found, parents), process) for process in found if found[process].counts)

    def _weigh(self, rank: Rank, processes: list[int]) -> None:
        """Record the memory of a rank, in KiB."""
        sizes = [resident(process) for process in processes]
        together = sum(now for now, _ in sizes)
        peaks = [self._peaks.get(rank, 0), *(most for _, most in sizes)]
        if len(processes) > 1 and together > self._sums.get(rank, 0) * _GROWTH:
            self._sums[rank] = together
            peaks.append(sum(sum(own_share(process)) for process in processes))
        self._peaks[rank] = max(peaks)

    def _count(self, ranks: dict[Rank, list[int]], now: float) -> None:
        """Record how many threads of each rank were busy since the last sample."""
        enough = max(1, int((now - self._at) * _TICKS * _BUSY))
        ticks: dict[tuple[int, str], int] = {}
        for rank, processes in ranks.items():
            busy = 0
            for process in processes:
                for key, used in _threads(process):
                    ticks[key] = used
                    busy += used - self._ticks.get(key, used) >= enough
            if self._at:
                counts = [*self._busy.get(rank, []), busy]
                self._busy[rank] = sorted(counts, reverse=True)[:_OFTEN]
        self._ticks, self._at = ticks, now

    def _size(self) -> int:
        """Return the bytes of the temporary files."""
        total = left = 0
        seen = set()
        pending = list(self._folders)
        while pending and left < _MAX_FILES:
            folder, device = pending.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in itertools.islice(entries, _MAX_FILES - left):
                        left += 1
                        state = entry.stat(follow_symlinks=False)
                        if state.st_dev != device:  # a mount, for example an installed image
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            pending.append((entry.path, device))
                        elif (state.st_dev, state.st_ino) not in seen:
                            seen.add((state.st_dev, state.st_ino))
                            total += state.st_blocks * 512
            except OSError:  # removed in the meantime, or unreadable
                continue
        return total

    def record(self) -> dict[str, Any]:
        """Return the measurements, None if unknown. Memory (in MiB) and threads are those of the largest rank."""
        peak = max(self._peaks.values(), default=0)
        return {
            "peak_memory": -(-peak // 1024) or None,
            "threads": max((counts[-1] for counts in self._busy.values()), default=0) or None,
            "temporary": self._temporary if self._folders else None,
        }


def _inherited(process: int, known: dict[int, _Seen], parents: dict[int, int]) -> Rank:
    """Return the rank of a process or of its nearest ancestor that has one."""
    at: int | None = process
    for _ in range(len(known)):
        if at is None or at not in known:
            return None
        if known[at].rank is not None:
            return known[at].rank
        at = parents.get(at)
    return None


def _rank(process: int) -> Rank:
    with open(f"/proc/{process}/environ", "rb") as stream:
        words = stream.read(_MAX_ENVIRONMENT).split(b"\0")
    values = dict(word.partition(b"=")[::2] for word in words)
    ranks = (values.get(name.encode(), b"") for name in _RANK)
    return next((int(rank) for rank in ranks if rank.isdigit() and len(rank) < 10), None)


def _fields(path: str) -> list[str]:
    """Return the fields of a ``stat`` file after the program's name, starting with the state."""
    with open(path, "rb") as stream:
        return stream.read().rpartition(b")")[2].decode("ascii").split()


def resident(process: int) -> tuple[int, int]:
    """Return the KiB of a process: its current memory without files, and its peak including files."""
    try:
        fields = tracee.status(process)
    except OSError:
        return 0, 0
    anonymous, shared, most = (int(fields.get(name, "0").split()[0]) for name in ("RssAnon", "RssShmem", "VmHWM"))
    return anonymous + shared, most


class MemoryShare(NamedTuple):
    """The memory of a process in KiB: its own, and files in memory. A page of n processes counts as one n-th."""

    own: int
    mapped: int = 0


def own_share(pid: int, unknown: int = 0) -> MemoryShare:
    """Return a process's share of memory, or nothing if it has ended.

    Args:
        unknown: the value to use if the kernel does not report the share.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            lines = stream.read().split(b"\n")
    except ProcessLookupError:
        return MemoryShare(0)
    except OSError:
        return MemoryShare(unknown if resident(pid)[0] else 0)
    known = {name: int(value.split()[0]) for name, _, value in (line.partition(b":") for line in lines[1:]) if value}
    # Without files, as in ``_memory``. Kernels before 5.3 report only the sum.
    return MemoryShare(known.get(b"Pss_Anon", known.get(b"Pss", unknown)), known.get(b"Pss_Shmem", 0))


def _threads(process: int) -> list[tuple[tuple[int, str], int]]:
    """Return the threads of a process (ID and start time), each with its clock ticks so far."""
    threads = []
    with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended
        for name in os.listdir(f"/proc/{process}/task"):
            fields = _fields(f"/proc/{process}/task/{name}/stat")
            threads.append(((int(name), fields[19]), int(fields[11]) + int(fields[12])))
    return threads
