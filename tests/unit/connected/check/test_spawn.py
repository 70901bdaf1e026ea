"""Programs that start more ranks are refused where the launcher cannot, as two nodes of the lab showed."""

import pytest

from deployer.connected.check import check
from deployer.connected.check.rules import pmi, spawn
from deployer.connected.linker.process import Process
from deployer.contract.bundle.image_launcher import OF_ABI
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.verdict import MISSING_FACTS as UNKNOWN
from deployer.contract.site.plan import INSIDE, OUTSIDE, StartOption
from deployer.site.run.launchers import LAUNCHERS
from tests.running import START_OPTION
from tests.unit.connected.check.test_check import CALLS, IMAGE_FILES, PLAN, started
from tests.unit.connected.check.test_programs import GOOD, job, linked, program
from tests.unit.connected.check.test_rules import case

POOL = "from mpi4py.futures import MPIPoolExecutor\nwith MPIPoolExecutor() as pool: pass\n"


def option(launcher: str) -> StartOption:
    return START_OPTION._replace(launcher=launcher, pmi="pmi2" if launcher == "srun" else "")


def found(
    process: Process, launcher: str, launch: str = OUTSIDE, conditional: bool = False, decides: bool = True
) -> list[Finding]:
    plan = PLAN._replace(start_options=[option(launcher)], launch=launch)
    empty = linked()._replace(job=job("x"), processes=[], conditional=[])
    of = empty._replace(conditional=[process]) if conditional else empty._replace(processes=[process])
    return list(spawn.of_job(of._replace(decides=lambda _: decides), case(plan=plan)))


@pytest.mark.parametrize(("launcher", "launch", "expected"), [
    ("srun", OUTSIDE, [ERROR]),
    ("mpiexec.hydra", OUTSIDE, [ERROR]),
    ("mpirun", OUTSIDE, [ERROR]),
    ("mpiexec.hydra", INSIDE, []),
    ("mpirun", INSIDE, [UNKNOWN]),
])  # fmt: skip
def test_what_launchers_do(launcher: str, launch: str, expected: list[str]) -> None:
    script = started()._replace(text=POOL)
    seen = found(script, launcher, launch)
    assert [each.severity for each in seen] == expected
    assert all(each.code == "mpi.spawn" and "mpi4py.futures SCRIPT" in each.remedy for each in seen)
    if launch == OUTSIDE:
        assert ("on the host" in seen[0].message) == (launcher != "srun")


def test_what_is_not_certain_refuses_nothing() -> None:
    script = started()._replace(text=POOL)
    maybe = script._replace(text=POOL.replace("with", "if alone:\n  with"))
    assert [each.severity for each in found(maybe, "srun")] == [UNKNOWN]
    assert [each.severity for each in found(script, "srun", conditional=True)] == [UNKNOWN]
    assert [each.severity for each in found(script, "srun", decides=False)] == [UNKNOWN]
    assert found(script._replace(text=""), "srun") == []  # python3 -m mpi4py.futures SCRIPT


def test_a_program_that_is_linked_to_it() -> None:
    image = {**IMAGE_FILES, GOOD: program("libmpi.so.12", imports=[*CALLS, "MPI_Comm_spawn"])}
    (finding,) = found(started(image, command=GOOD), "srun")
    assert (finding.severity, finding.subject) == (UNKNOWN, GOOD)
    assert "MPI_Comm_spawn" in finding.message
    assert "--launch inside" in finding.remedy
    image = {**image, GOOD: program("libmpi.so.12", imports=CALLS)}
    assert found(started(image, command=GOOD), "srun") == []


def test_each_launcher_has_its_answer() -> None:
    assert spawn.of_job in check.JOB_RULES
    assert set(LAUNCHERS) == set(spawn.OUTSIDE)
    assert set(OF_ABI.values()) == set(spawn.WITHIN)


def test_a_script_that_removes_the_launcher_s_variables_itself() -> None:
    """/proc does not show it: it is found on the laptop, or not at all."""
    script = started()._replace(text="import os\nos.environ.clear()\nfrom mpi4py import MPI\n")
    (finding,) = pmi.kept(linked()._replace(job=job("x"), processes=[script]), case())
    assert (finding.code, finding.severity) == ("pmi.unmet", UNKNOWN)
    assert "line 2: os.environ.clear()" in finding.message
