"""Forked processes that share one function's work, or run another beside it; the only module that forks.

A worker is a copy of this process at the time of the fork, so the function may use everything that existed then: open
files, tables, buffers (as its own copies). Workers end with their block, and with this process however it ends, because
each waits on a pipe whose other end only this process holds.
"""

import multiprocessing
import os
import select
import signal
from collections import deque
from typing import Any, Callable, Deque, Generator, Iterable, Iterator, List, Tuple, TypeVar

from deployer.contract.base.errors import DeployerError
from deployer.system import payload

#: A login node is shared by everyone, and above this number the file system is the limit.
MOST = 16
#: Bytes of an archive that one process unpacks while a few others are started and ended; of a group of small tasks.
_SMALL = 4 * 1024 * 1024
#: Tasks given to a worker: one to work on, and one to continue with while the answer is on its way.
_IN_HAND = 2

_T = TypeVar("_T")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # a laptop with macOS


def suitable(size: int) -> int:
    """Return the number of processes for unpacking ``size`` bytes; 0: this process alone is faster."""
    return 0 if size < _SMALL else min(cores(), MOST)


def groups(items: Iterable[_T], size: Callable[[_T], int]) -> List[List[_T]]:
    """Return successive items in groups of at most 4 MiB, or of one item: a group is one task, with two messages."""
    found: List[List[_T]] = []
    total = 0
    for item in items:
        total += size(item)
        if not found or total > _SMALL:
            found.append([])
            total = size(item)
        found[-1].append(item)
    return found


def in_groups(
    items: Iterable[_T], size: Callable[[_T], int], jobs: int, function: Callable[[_T], Any]
) -> Generator[Tuple[_T, Any], None, None]:
    """Call ``function`` on each item in up to ``jobs`` processes; yield (item, result), complete groups in any order.

    Only the results are sent between processes; they must be picklable.
    """
    several = groups(items, size)
    with Pool(min(jobs, len(several)), lambda at: [function(item) for item in several[at]]) as pool:
        for at in range(len(several)):
            pool.submit(at)
        for at, results in pool.results():
            yield from zip(several[at], results)


class Pool:
    """``count`` processes that call ``function`` on tasks; both tasks and results must be picklable.

    If ``count`` is 0, this process calls it.

    ::

        with Pool(2, function) as pool:
            pool.submit(task)
            for task, result in pool.results():
                pool.submit(more)

    ``results`` raises an exception of the function, or an error if a worker dies, and then ends.
    """

    def __init__(self, count: int, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._tasks: Deque[Any] = deque()
        self._workers: List[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker(function, self._workers))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def submit(self, task: Any, first: bool = False) -> None:
        """Add a task, with ``first`` before all waiting tasks."""
        if first:
            self._tasks.appendleft(task)
        else:
            self._tasks.append(task)

    def results(self) -> Iterator[Tuple[Any, Any]]:
        """Yield (task, result) in the order of completion until no task is left; tasks may be added meanwhile."""
        while not self._workers:
            if not self._tasks:
                return
            task = self._tasks.popleft()
            yield task, self._function(task)
        answers = select.poll()
        workers = {worker.pipe.fileno(): worker for worker in self._workers}
        for descriptor in workers:
            answers.register(descriptor, select.POLLIN)
        while True:
            for _ in range(_IN_HAND):  # in turns, so that two workers share two tasks
                for worker in self._workers:
                    if self._tasks and len(worker.in_hand) < _IN_HAND:
                        worker.send(self._tasks.popleft())
            if not any(worker.in_hand for worker in self._workers):
                return
            for descriptor, _ in answers.poll():
                answer = workers[descriptor].result()
                yield workers[descriptor].in_hand.popleft(), answer


class _Worker:
    """A forked process, this process's end of the pipe to it, and the tasks that it has."""

    def __init__(self, function: Callable[[Any], Any], others: List["_Worker"]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        # The pipes of earlier workers are open here too. They must be closed in the new one: it would keep them alive.
        mine = [other.pipe for other in others] + [self.pipe]
        self.process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs, mine, function))
        self.process.daemon = True
        self.process.start()
        theirs.close()
        self.in_hand: Deque[Any] = deque()

    def send(self, task: Any) -> None:
        self.in_hand.append(task)
        try:
            self.pipe.send(task)
        except OSError:
            raise self._death() from None

    def result(self) -> Any:
        """Wait for the result of its oldest task and return it once. The task's exception is raised here."""
        try:
            done, value = self.pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if not done:
            raise value
        return value

    def end(self) -> None:
        """End it at once; its current task is not needed any more."""
        self.pipe.close()
        pid = self.process.pid
        if pid is not None and self.process.is_alive():
            os.kill(pid, signal.SIGKILL)
        self.process.join()

    def _death(self) -> DeployerError:
        self.process.join()
        code = self.process.exitcode or 0
        how = "was killed by signal %d" % -code if code < 0 else "ended with exit code %d" % code
        hint = "it may be out of memory: it needs up to 256 MiB; --jobs 1 needs least"
        return DeployerError(f"a worker process {how}", hint if code == -signal.SIGKILL else "")


class Beside(_Worker):
    """A forked process that does one thing while this process, or workers that it forks later, do another.

    It is killed at the end of the ``with`` block, if it still works then.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(lambda _: work(), [])
        self.send(None)

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Return whether it has ended, after at most ``timeout`` seconds. Forked workers may ask as well."""
        return bool(self.pipe.poll(timeout))


def _serve(pipe: Any, others: List[Any], function: Callable[[Any], Any]) -> None:
    """Answer tasks until the other end is closed, with (True, result) or (False, error)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first one decides
    # A closed pipe ends a worker after its task; this ends it at once, so that it does not write into a removed folder.
    payload.end_with_parent()
    for other in others:
        other.close()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, function(task))
        except (DeployerError, OSError) as error:
            answer = (False, error)
        except Exception as error:  # noqa: BLE001  a defect in deployer, reported like other errors
            answer = (False, RuntimeError(f"in a worker: {error!r}"))
        try:
            pipe.send(answer)
        except OSError:
            return
