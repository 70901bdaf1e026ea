"""PALS and ibrun: whole jobs with fakes made of their manuals, and job scripts as sites' documents have them."""

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
from deployer.connected.site_profile import plan as planning
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.bundle.job import Job
from deployer.contract.site.plan import MPICH_ABI, NO_MPI, NodeShape, Plan, StartOption
from deployer.site.run import run
from deployer.site.run.prepare import placeholders, start_option
from deployer.site.run.prepare.request import RunRequest
from deployer.system import files
from tests import running as made

FAKES = Path(__file__).resolve().parents[2] / "site" / "run" / "fakes" / "launchers.py"
HOST = os.uname().nodename
#: The program, the batch system and its variables, by launcher.
SITES: dict[str, tuple[str, str, dict[str, str]]] = {
    "pals": ("mpiexec", "pbs", {"PBS_JOBID": "7.pbs01", "PBS_NODEFILE": "hosts"}),
    "ibrun": ("ibrun", "slurm", {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}),
}
#: srun of the one node, for the step that ibrun does not start.
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
SAYS = "import os; print('said', *(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')), flush=True)"
FAILS = SAYS + "; import time; os.environ['RANK'] == '1' and os._exit(7); time.sleep(60)"
WAITS = (
    "import signal, sys, time; "
    "signal.signal(signal.SIGTERM, lambda number, _: (print('ended by', number), sys.exit())); "
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


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", sorted(SITES))
def test_a_job_starts_its_ranks(launcher: str, tmp_path: Path) -> None:
    case = Case(tmp_path, launcher, SAYS)
    code, result, out = case.ended(case.start())
    assert (code, result["exit_code"], len(result["ranks"])) == (0, 0, 2), out
    assert {"said 0 0 2", "said 1 1 2"} <= set(out.splitlines())
    calls = [json.loads(line) for line in case.calls.read_text().splitlines()]
    assert {call[0] for call in calls} == {SITES[launcher][0]}


@pytest.mark.parametrize("launcher", ["pals"])
def test_a_rank_that_fails_ends_the_others(launcher: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    code, result, out = (case := Case(tmp_path, launcher, FAILS)).ended(case.start())
    assert time.monotonic() - begin < 50
    assert code != 0, out
    assert any(finding["code"] == "payload.failed" for finding in result["findings"]), result["findings"]


@pytest.mark.parametrize("launcher", ["pals"])
def test_the_ranks_are_asked_to_end_at_the_time_limit(launcher: str, tmp_path: Path) -> None:
    case = Case(tmp_path, launcher, WAITS)
    process = case.start()
    while case.log.count("said") < 2 and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, _, out = case.ended(process)
    assert out.count("ended by 15") == 2


def of_site(profile: Profile, partition: str, ranks: int, threads: int, folder: Path, abi: str = NO_MPI) -> str:
    """Return the script of a job on two nodes of a site, in one line per statement."""
    has = {"PROJECT": "project", "PAWSEY_PROJECT": "project", "MYSCRATCH": "/scratch/alice", "USER": "alice"}
    plan = placeholders.expanded(planning.make_plan(profile, "hello:1", [abi], partition), has)
    store = made.store(folder, plan=plan, jobs=[Job("hello", ["python3", "x.py"], 2, ranks, threads, "00:30:00")])
    Path(store.tool).write_bytes(b"")
    text = run.show_script(run.prepare(store, RunRequest("hello")))
    return " ".join(text.replace("\n#", " \n#").replace("\n    ", " ").split(" "))


ORDER = "ROCR_VISIBLE_DEVICES=4,5,2,3,6,7,0,1"
LIST = "list:" + ":".join(f"{first}-{first + 7},{first + 104}-{first + 111}" for first in
                          (1, 9, 17, 25, 33, 41, 53, 61, 69, 77, 85, 93))  # fmt: skip


@pytest.mark.parametrize(
    ("site", "partition", "ranks", "threads", "words"),
    [
        ("lumi", "standard-g", 8, 7, ["--gpus-per-node=8", "--cpus-per-task=7", "--ntasks-per-node=8", ORDER]),
        ("frontier", "batch", 8, 7, ["--gpus-per-node=8", "--cpus-per-task=7", "--mpi=none", ORDER]),
        ("frontier", "nvme", 8, 1, ["--constraint=nvme", "--partition=batch", ORDER]),  # a rank per L3 region
        ("frontier", "batch", 4, 14, ["--cpus-per-task=14"]),
        ("setonix", "gpu", 8, 8, ["--gres=gpu:8", "--account=project-gpu", ORDER]),
        ("polaris", "debug", 4, 8, [
            "select=2:ncpus=64:mpiprocs=4:system=polaris", "-n 8 --ppn 4", "-l filesystems=home:eagle",
            "CUDA_VISIBLE_DEVICES=3,2,1,0", "--cpu-bind list:0-7,32-39:8-15,40-47:16-23,48-55:24-31,56-63",
        ]),
        ("aurora", "debug", 12, 8, ["-n 24 --ppn 12", "-l filesystems=home:flare", LIST, "--pmi none"]),
        ("aurora", "debug", 204, 1, ["--depth 1 --cpu-bind depth"]),
    ],
)  # fmt: skip
def test_the_sites_own_words(
    site: str,
    partition: str,
    ranks: int,
    threads: int,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_option, "vetoes", lambda *_: {})
    text = of_site(load(site), partition, ranks, threads, tmp_path)
    assert [word for word in words if word not in text] == []
    assert ("VISIBLE_DEVICES=" in text) == any("VISIBLE_DEVICES=" in word for word in words)


def site(kind: str, **partition: Any) -> Profile:
    """Return a profile of a site of TACC or OLCF as their documents describe one."""
    record = {
        "format": 1, "name": "here", "source": {"kind": "document", "where": "here"}, "workspace": "/scratch/alice",
        "scheduler": {"kind": kind, "gpu_request": "none"}, "policy": {"runtimes": ["singularity"]},
        "runtimes": {"singularity": {}}, "architecture": "x86_64", "partitions": {"normal": partition},
        "mpi": {"impi": {"family": "intel", "version": "19.0.9", "prefix": "/opt/impi", "module": "impi/19.0.9"}},
    }  # fmt: skip
    return Profile.model_validate(record)


def test_frontera_starts_ranks_with_ibrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TACC-Docs, docs/hpc/frontera: scripts.md (hybrid job) and launching.md."""
    monkeypatch.setattr(start_option, "vetoes", lambda *_: {})
    node = {"sockets": 2, "cores": 56, "threads_per_core": 2, "memory_total_mb": 196608}
    profile = site("slurm", node=node, launchers=["srun", "ibrun"], mpi=["impi"])
    text = of_site(profile, "normal", 4, 14, tmp_path, MPICH_ABI)
    for word in ("--nodes=2", "--ntasks-per-node=4", "--partition=normal", "export SLURM_NTASKS=8", "launch=(ibrun\n)",
                 "I_MPI_PIN_DOMAIN=28:compact", "type -P ibrun", "module load impi/19.0.9", "--abort"):  # fmt: skip
        assert word in text
