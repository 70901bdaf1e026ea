"""A program with MPI that was started without the launcher's variables is noticed, and nothing else is."""

import os
import subprocess
import sys

import pytest

from deployer.site.rank.observed import launcher_variables
from deployer.site.rank.observed.launcher_variables import LauncherVariables

MPICH, OPENMPI = [("/opt/lib/libmpi.so.12", 7)], [("/opt/lib/libmpi.so.40", 8)]
PMI = {"PMI_FD": "3", "PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "0"}
PMIX = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "1.0", "SLURM_PROCID": "0"}


def without(given, *names):
    return {name: given[name] for name in given if name not in names}


def missing(monkeypatch, own, *seen):
    """Return what is missing, by the variables of the rank, and of each program with its library."""
    found = {os.getpid(): own, **dict(enumerate(each for each, _ in seen))}
    monkeypatch.setattr(launcher_variables, "_environment", found.get)
    variables = LauncherVariables()
    for number, (_, library) in enumerate(seen):
        variables.look(number, library)
    return variables.missing


@pytest.mark.parametrize(
    ("own", "seen", "library", "expected"),
    [
        (PMI, PMI, MPICH, []),
        (PMI, {}, MPICH, ["PMI_FD"]),
        (PMI, without(PMI, "PMI_FD"), MPICH, ["PMI_FD"]),
        (PMI, without(PMI, "SLURM_PROCID"), MPICH, []),  # MPI does without
        (PMI, {}, OPENMPI, []),  # another launcher's: the probe says that
        (PMIX, {}, OPENMPI, ["PMIX_NAMESPACE", "PMIX_RANK"]),
        (PMIX, without(PMIX, "PMIX_RANK"), OPENMPI, ["PMIX_RANK"]),
        (PMIX, {"OMPI_COMM_WORLD_SIZE": "2", **PMIX}, OPENMPI, []),
        ({}, {}, MPICH, []),
        (PMI, None, MPICH, []),
    ],
)
def test_what_the_launcher_gave_is_missing(monkeypatch, own, seen, library, expected):
    assert missing(monkeypatch, own, (seen, library)) == expected


def test_a_helper_without_them_beside_a_program_that_has_them(monkeypatch):
    assert missing(monkeypatch, PMI, (PMI, MPICH), ({}, MPICH)) == []
    assert missing(monkeypatch, PMI, ({}, MPICH), (PMI, MPICH)) == []
    assert missing(monkeypatch, PMI, ({}, MPICH), ({}, MPICH)) == ["PMI_FD"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"A=1\0B=x=y\0", {"A": "1", "B": "x=y"}),
        (b"", {}),  # env -i
        (b"A=1\0" + bytes(40), None),  # setproctitle wrote a title and zeros
        (bytes(40), None),
        (b"worker: idle", None),
    ],
)
def test_the_environment_of_a_process(monkeypatch, data, expected):
    monkeypatch.setattr(launcher_variables, "kernel_data", lambda path: data)
    assert launcher_variables._environment(1) == expected


def test_a_real_process_and_one_that_has_ended():
    words = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, env={"PMI_FD": "4"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert launcher_variables._environment(child.pid)["PMI_FD"] == "4"
        child.communicate(b"\n")
    assert launcher_variables._environment(child.pid) is None
