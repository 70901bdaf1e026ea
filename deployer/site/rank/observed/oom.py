"""Counts of processes that the kernel killed for lack of memory, in this process's control group and on this node.

Slurm may have no accounting, and its messages differ between versions; the kernel's counters do not.
"""

import os

from deployer.site.rank.observed.mapped_mpi import kernel_text

_COUNTER = "oom_kill"


def kills(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> "tuple[int | None, int | None]":
    """Return the counts since the group was made and since the boot; None if the kernel has none (before 4.13)."""
    return (_group(proc, groups), _counter(os.path.join(proc, "vmstat")))


def added(before: "int | None", after: "int | None") -> "int | None":
    """Return the increase of a count from ``before`` to ``after``."""
    return None if before is None or after is None else max(0, after - before)


def _group(proc: str, groups: str) -> "int | None":
    """Return the count of this process's control group; None if it has no group, or the group is not visible.

    Version 1 has a hierarchy for memory (``4:memory:/PATH``); version 2 has one for everything (``0::/PATH``).
    """
    lines = [line.split(":", 2) for line in kernel_text(os.path.join(proc, "self/cgroup")).splitlines()]
    places = {names: path.strip("/") for _, names, path in (line for line in lines if len(line) == 3)}
    path = next((path for names, path in places.items() if "memory" in names.split(",")), "")
    if path:
        return _counter(os.path.join(groups, "memory", path, "memory.oom_control"))
    return _counter(os.path.join(groups, places[""], "memory.events")) if places.get("") else None


def _counter(path: str) -> "int | None":
    for line in kernel_text(path).splitlines():  # it may be missing in a container
        name, _, value = line.partition(" ")
        if name == _COUNTER and value.isdigit():
            return int(value)
    return None
