"""Whole jobs through PALS, ibrun and jsrun: job.sh is real, the launchers are fakes made of their manuals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle.pyz import make_pyz
from deployer.contract.bundle.job import Job
from deployer.contract.site.plan import NO_MPI, NodeShape, Plan, StartOption
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from deployer.system import files
from tests import running as made

FAKES = Path(__file__).resolve().parents[2] / "site" / "run" / "fakes" / "launchers.py"
HOST = os.uname().nodename
#: The program, the batch system and its variables, by launcher.
SITES: dict[str, tuple[str, str, dict[str, str]]] = {
    "pals": ("mpiexec", "pbs", {"PBS_JOBID": "7.pbs01", "PBS_NODEFILE": "hosts"}),
    "jsrun": ("jsrun", "lsf", {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "launch"}),
    "ibrun": ("ibrun", "slurm", {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}),
}
#: srun of the one node, for the step that ibrun does not start.
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
SAYS = "import os; print('said', *(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')), flush=True)"
FAILS = SAYS + "; import time; os.environ['RANK'] == '1' and os._exit(7); time.sleep(60)"
WAITS = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda number, _: (print('ended by', number), sys.exit())); "
    + SAYS + "; time.sleep(60)"
)  # fmt: skip


class Case:
    """A job on one node of a site that has a launcher of its own."""

    def __init__(self, folder: Path, launcher: str, code: str, **plan: Any) -> None:
        program, kind, variables = SITES[launcher]
        self.calls, self.programs, home = folder / "calls", folder / "bin", folder / "home"
        for each in (self.programs, home):
            each.mkdir()
        shutil.copy(FAKES, self.programs / program)
        text = (self.programs / program).read_text().replace("#!/usr/bin/env python3", f"#!{sys.executable} -IS")
        (self.programs / program).write_text(text)
        (self.programs / program).chmod(0o755)
        if kind == "slurm":
            made.program(self.programs, "srun", SRUN)
            made.program(self.programs, "scontrol", f"echo {HOST}")
        (folder / "hosts").write_text(f"{HOST}\n" * 2)  # an entry per rank
        (folder / "launch").write_text(f"batch5\n{HOST}\n{HOST}\n")
        (home / ".bash_profile").write_text(f"PATH={self.programs}:/usr/bin:/bin\n")
        self.environment = {
            "HOME": str(home),
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "FAKE_HOSTS": HOST,
            "FAKE_CALLS": str(self.calls),
            **{
                name: str(folder / value) if value in ("hosts", "launch") else value
                for name, value in variables.items()
            },
        }
        option = StartOption("native-folder", "native", "folder", launcher, "none", None)
        cpus = max(2, len(os.sched_getaffinity(0)))
        shown: Plan = made.PLAN._replace(
            scheduler=kind, mpi=None, abi=NO_MPI, binds=[], modules=[], environment={}, start_options=[option],
            pass_environment=[], python=[sys.executable], node=NodeShape(1, cpus, 1, 100000),
        )._replace(**plan)  # fmt: skip
        jobs = [Job("hello", [sys.executable, "-c", code], 1, 2, 1, "00:10:00")]
        store = made.store(folder / "root", plan=shown, jobs=jobs)
        Path(store.tool).write_bytes(make_pyz())
        self.folder = run.prepare(store, RunRequest("hello", runtime="native"))

    def start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["/bin/bash", "-l", os.path.join(self.folder, "job.sh")], env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def ended(self, process: "subprocess.Popen[bytes]") -> tuple[int, dict[str, Any], str]:
        out = process.communicate(timeout=120)[0].decode() + self.log
        return process.returncode, json.loads(files.read_bytes(os.path.join(self.folder, "result.json"))), out

    @property
    def log(self) -> str:
        path = Path(self.folder, "output.log")
        return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("launcher", sorted(SITES))
def test_a_job_starts_its_ranks(launcher: str, tmp_path: Path) -> None:
    case = Case(tmp_path, launcher, SAYS)
    code, result, out = case.ended(case.start())
    assert (code, result["exit_code"], len(result["ranks"])) == (0, 0, 2), out
    assert {"said 0 0 2", "said 1 1 2"} <= set(out.splitlines())
    calls = [json.loads(line) for line in case.calls.read_text().splitlines()]
    assert {call[0] for call in calls} == {SITES[launcher][0]}


@pytest.mark.parametrize("launcher", ["pals", pytest.param("jsrun", marks=pytest.mark.thorough)])
def test_a_rank_that_fails_ends_the_others(launcher: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    code, result, out = (case := Case(tmp_path, launcher, FAILS)).ended(case.start())
    assert time.monotonic() - begin < 50
    assert code != 0, out
    assert any(finding["code"] == "payload.failed" for finding in result["findings"]), result["findings"]


@pytest.mark.parametrize("launcher", ["pals", pytest.param("jsrun", marks=pytest.mark.thorough)])
def test_the_ranks_are_asked_to_end_at_the_time_limit(launcher: str, tmp_path: Path) -> None:
    case = Case(tmp_path, launcher, WAITS)
    process = case.start()
    while case.log.count("said") < 2 and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, _, out = case.ended(process)
    assert out.count("ended by 15") == 2
