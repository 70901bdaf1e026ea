"""What a rehearsal may use of this machine: it must go on working, whatever the job does.

Limits of single processes would not do: files in memory belong to none, root has no limit of processes, and a disk
without quotas has none either. So the first process of the simulated site looks at the whole, and ends all of it.
"""

import os

#: Processes and threads at once. Kernels number 32768, unless they are told to count higher.
MOST_TASKS = 8192
#: The first words of the text if the job's files have filled the disk.
FILLED = "it filled the disk"
#: The part that is left, of what was free at the start.
_LEFT = 10
_MIB = 1024 * 1024


class LaptopLimit:
    """Nine tenths of the memory and of the disk that are free when this is made, and the number of processes."""

    def __init__(self, folder: str, tasks: int) -> None:
        """Note what is free now.

        Args:
            folder: on the disk that the job writes to.
            tasks: the most processes and threads.
        """
        self._tasks = tasks
        self._folder = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        self._memory, self._disk, self._names = _memory() // _LEFT, *(each // _LEFT for each in self._space())

    def reached(self) -> str:
        """Return which limit the job has reached; empty: none."""
        space, names = self._space()
        if space < self._disk:
            return f"{FILLED}: less than a tenth of what was free when it began is left ({space // _MIB} MiB)"
        if names < self._names:
            return FILLED + " with small files: less than a tenth of the inodes that were free when it began is left"
        memory = _memory()
        if memory < self._memory:
            return f"less than a tenth of the memory that was free when it began is left ({memory // _MIB} MiB)"
        return f"it started more than {self._tasks} processes and threads" if _tasks() > self._tasks else ""

    def _space(self) -> tuple[int, int]:
        """Return the bytes and the inodes that this user may still use; a file system may not count inodes."""
        found = os.fstatvfs(self._folder)
        return found.f_bavail * found.f_frsize, found.f_favail


def _memory() -> int:
    """Return the bytes that programs may still use, with swap."""
    with open("/proc/meminfo") as stream:
        sizes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in stream)}
    return (sizes["MemAvailable"] + sizes.get("SwapFree", 0)) * 1024


def _tasks() -> int:
    """Return the number of the processes and threads that this process sees."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found += os.stat(f"/proc/{name}/task").st_nlink - 2  # a folder per thread
            except FileNotFoundError:
                continue  # it has ended
    return found
