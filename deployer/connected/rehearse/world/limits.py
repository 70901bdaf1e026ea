"""What a rehearsal may use of this machine. The machine must stay usable, whatever the job does.

Limits for single processes are not enough. Files in memory belong to no process, root has no process limit, and a disk
without quotas has no limit either. So the first process of the simulated site checks the total use, and ends everything
if it is too high.
"""

import contextlib
import os

#: The maximum number of processes and threads at once. By default, kernels number up to 32768 of them.
MOST_TASKS = 8192
#: The beginning of the text if the job's files have filled the disk.
FILLED = "it filled the disk"
#: The text if the job printed what the user waited for.
SAID = "it printed the text of --until"
#: The job must leave one part in this many of the memory and disk that were free at the start.
_LEFT = 10
_MIB = 1024 * 1024


class LaptopLimit:
    """Nine tenths of the memory and disk that are free at the start, and the number of processes."""

    def __init__(self, folder: str, tasks: int) -> None:
        """Record what is free now.

        Args:
            folder: a folder on the disk that the job writes to.
            tasks: the maximum number of processes and threads.
        """
        self._tasks = tasks
        self._folder = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        self._memory, self._disk, self._names = _memory() // _LEFT, *(each // _LEFT for each in self._space())

    def reached(self) -> str:
        """Return which limit the job has reached, or an empty text if none."""
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
        """Return the bytes and inodes that this user may still use. Some file systems do not count inodes."""
        found = os.fstatvfs(self._folder)
        return found.f_bavail * found.f_frsize, found.f_favail


class UntilSaid:
    """Whether a job's output has a text, which ends the job."""

    def __init__(self, log: str, text: str) -> None:
        self._log, self._text, self._tail, self._at = log, text.encode(), b"", 0

    def reached(self) -> str:
        """Return SAID if the output has the text, or an empty text."""
        if not self._text:
            return ""
        with contextlib.suppress(OSError), open(self._log, "rb") as stream:
            stream.seek(self._at)
            data = self._tail + stream.read()
            self._at = stream.tell()
            self._tail = data[max(0, len(data) - len(self._text) + 1) :]
            return SAID if self._text in data else ""
        return ""


def _memory() -> int:
    """Return the bytes that programs may still use, including swap."""
    with open("/proc/meminfo") as stream:
        sizes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in stream)}
    return (sizes["MemAvailable"] + sizes.get("SwapFree", 0)) * 1024


def _tasks() -> int:
    """Return the number of processes and threads visible to this process."""
    total = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            total += os.stat(f"/proc/{name}/task").st_nlink - 2  # a folder per thread
    return total
