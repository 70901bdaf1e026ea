import os
import signal
import time

import pytest

from deployer.contract.base.errors import DeployerError, IntegrityError, SpaceError
from deployer.system import workers
from deployer.system.workers import Beside, Pool


def gone(pid):
    """Return whether a process has ended; where nobody reaps it, it stays as a zombie."""
    try:
        with open("/proc/%d/stat" % pid) as stream:
            return stream.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition):
    until = time.time() + 10
    while not condition():
        assert time.time() < until
        time.sleep(0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_task_is_answered_once(count):
    with Pool(count, lambda task: (task * 2, os.getpid())) as pool:
        for task in range(100):
            pool.submit(task)
        answers = list(pool.results())
    assert sorted((task, double) for task, (double, _) in answers) == [(task, task * 2) for task in range(100)]
    pids = {pid for _, (_, pid) in answers}
    assert os.getpid() not in pids
    assert len(pids) == count


def test_tasks_may_be_added_while_others_are_answered():
    seen = []
    with Pool(2, lambda task: task) as pool:
        pool.submit(3)
        for task, result in pool.results():
            seen.append(result)
            if task:
                pool.submit(task - 1, first=True)
    assert seen == [3, 2, 1, 0]


def test_small_items_are_one_task():
    most = workers._SMALL
    sizes = [0, 1, 2, most - 3, 1, most + 1, most, 5]
    assert workers.groups(sizes, int) == [[0, 1, 2, most - 3], [1], [most + 1], [most], [5]]
    assert workers.groups([], int) == []


def test_an_idle_worker_that_dies_is_an_error():
    with Pool(2, time.sleep) as pool:
        pool.submit(0)
        pool.submit(30)
        answers = pool.results()
        assert next(answers) == (0, None)
        os.kill(pool._workers[0].process.pid, signal.SIGKILL)
        with pytest.raises(DeployerError, match="killed by signal 9"):
            next(answers)


def test_no_tasks_no_results():
    with Pool(2, lambda task: task) as pool:
        assert list(pool.results()) == []


def test_errors_come_back_whole():
    def fail(task):
        raise IntegrityError("broken", "mend it") if task else OSError(28, "full")

    for task, kind in ((1, IntegrityError), (0, OSError)):
        with Pool(1, fail) as pool:
            pool.submit(task)
            with pytest.raises(kind) as caught:
                list(pool.results())
        assert getattr(caught.value, "hint", "mend it") == "mend it"
        assert task or caught.value.errno == 28


def test_a_defect_is_told():
    with Pool(1, lambda task: {}[task]) as pool:
        pool.submit(1)
        with pytest.raises(RuntimeError, match="KeyError"):
            list(pool.results())


def test_a_killed_worker_is_an_error():
    def die(task):
        os.kill(os.getpid(), signal.SIGKILL)

    with Pool(2, die) as pool:
        for task in range(10):
            pool.submit(task)
        with pytest.raises(DeployerError, match="killed by signal 9") as caught:
            list(pool.results())
    assert "--jobs" in caught.value.hint


def test_workers_end_with_the_pool():
    with Pool(2, lambda task: os.getpid()) as pool:
        pool.submit(0)
        pids = [worker.process.pid for worker in pool._workers]
        assert not any(gone(pid) for pid in pids)
    assert all(gone(pid) for pid in pids)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_do_not_outlive_a_killed_parent(how):
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            with Pool(3, lambda task: time.sleep(60)) as pool:
                pool.submit(0)  # one is at work, two wait
                os.write(writer, (" ".join(str(worker.process.pid) for worker in pool._workers)).encode())
                list(pool.results())
        finally:
            os._exit(1)  # whatever happens: this process must not go on with the tests
    os.close(writer)
    pids = [int(word) for word in os.read(reader, 1000).split()]
    os.close(reader)
    time.sleep(0.1)
    assert len(pids) == 3
    assert not any(gone(pid) for pid in pids)
    os.kill(parent, how)
    os.waitpid(parent, 0)
    wait_for(lambda: all(gone(pid) for pid in pids))


def test_cores_are_those_that_may_be_used():
    assert workers.cores() == len(os.sched_getaffinity(0))


def test_little_work_is_done_here():
    assert workers.suitable(1000) == 0
    assert workers.suitable(2**30) == min(workers.cores(), workers.MOST)
    with Pool(0, lambda task: (task * 2, os.getpid())) as pool:
        pool.submit(3)
        seen = []
        for task, result in pool.results():
            seen.append((task, result))
            if task == 3:
                pool.submit(1)
    assert seen == [(3, (6, os.getpid())), (1, (2, os.getpid()))]


def test_a_process_beside_this_one_is_waited_for_by_this_one_and_its_workers():
    ours, theirs = os.pipe()
    with Beside(lambda: os.read(ours, 1)) as beside:
        assert not beside.has_ended()
        with Pool(1, beside.has_ended) as pool:
            pool.submit(0.01)
            assert [ended for _, ended in pool.results()] == [False]
            os.write(theirs, b"x")
            pool.submit(30)
            assert [ended for _, ended in pool.results()] == [True]
        assert beside.has_ended()
        assert beside.result() == b"x"
    os.close(ours)
    os.close(theirs)


def test_the_error_and_the_death_of_a_process_beside_this_one_are_raised_here():
    def fail():
        raise SpaceError("full", "free some")

    with Beside(fail) as beside, pytest.raises(SpaceError, match="full"):
        beside.result()
    with Beside(lambda: os.kill(os.getpid(), signal.SIGKILL)) as beside:
        assert beside.has_ended(30)
        with pytest.raises(DeployerError, match="killed by signal 9"):
            beside.result()


def test_a_process_beside_this_one_is_killed_at_the_end_of_the_block():
    with Beside(lambda: time.sleep(600)) as beside:
        pass
    beside.end()  # once more does no harm
