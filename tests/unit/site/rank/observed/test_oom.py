"""The kernel's counts of processes that it ended for want of memory, in files as real kernels write them."""

import os

import pytest

from deployer.site.rank.observed import oom

V1 = "9:name=systemd:/\n4:memory:/slurm/uid_1000/job_12/step_0/task_0\n0::/\n"
V1_JOINED = "5:cpuset,memory:/slurm/uid_1000/job_12/step_0/task_0\n"
V2 = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill %d\n"
EVENTS = "low 0\nhigh 0\nmax 7\noom 3\noom_kill %d\noom_group_kill 0\n"


@pytest.fixture
def host(tmp_path):
    """Return what makes the files of a host and reads them."""

    def made(cgroup, place="", text="", vmstat="pgfault 12\noom_kill 3\nnuma_hit 4\n"):
        files = {"proc/vmstat": vmstat, "proc/self/cgroup": cgroup}
        if place:
            files["groups/" + place] = text
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return oom.kills(str(tmp_path / "proc"), str(tmp_path / "groups"))

    return made


@pytest.mark.parametrize(
    ("cgroup", "place", "text", "group"),
    [
        (V1, "memory/slurm/uid_1000/job_12/step_0/task_0/memory.oom_control", CONTROL % 1, 1),
        (V1_JOINED, "memory/slurm/uid_1000/job_12/step_0/task_0/memory.oom_control", CONTROL % 2, 2),
        (V2, "system.slice/slurmstepd.scope/job_12/step_0/user/task_0/memory.events", EVENTS % 4, 4),
        (V1, "memory/slurm/uid_1000/job_12/step_0/task_0/memory.oom_control", "under_oom 0\n", None),  # before 4.13
        (V1, "", "", None),  # a container that does not show it
        ("4:memory:/\n", "memory/memory.oom_control", CONTROL % 1, None),  # a namespace: the root's is not ours
        ("0::/\n", "memory.events", EVENTS % 1, None),
        ("", "", "", None),
        ("garbage\n0\n", "", "", None),
    ],
)
def test_the_count_of_the_control_group(host, cgroup, place, text, group):
    assert host(cgroup, place, text) == (group, 3)


@pytest.mark.parametrize("vmstat", ["", "pgfault 1\n", "oom_kill x\n"])
def test_a_kernel_that_does_not_tell(host, vmstat):
    assert host("", vmstat=vmstat) == (None, None)


def test_what_was_added_meanwhile():
    assert (oom.added(1, 3), oom.added(5, 5)) == (2, 0)
    assert (oom.added(1, None), oom.added(None, 5)) == (None, None)


def test_this_kernel_tells_of_the_node():
    if tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2]) >= (4, 13):
        assert oom.kills()[1] is not None
