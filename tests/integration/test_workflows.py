"""Others' workflow managers start programs of an installed bundle on real Slurm, each from its documents' example."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, WORKSPACE, Site
from tests.lab import software

pytestmark = pytest.mark.slow  # their wheels take minutes to install

PACKAGES = "/home/apps/workflows"
EXEC = ["python3", f"{WORKSPACE}/deployer.pyz", "exec", "--plan", "lab", "hello-mpi", "--", "python3", "-c"]
TOTAL = f"python3 {WORKSPACE}/deployer.pyz exec --plan lab totals -- python3 /deployer/app/total.py"
#: Prints the node and the square of a number.
SQUARE = "import os, sys; print(os.uname()[1], int(sys.argv[1]) ** 2)"
SNAKEMAKE = f"""
rule sum:
    input: expand("part-{{number}}", number=range(4))
    output: "out"
    shell: "cat {{input}} >{{output}}"
rule part:
    output: "part-{{number}}"
    shell: {shlex.join([*EXEC, SQUARE]) + " {wildcards.number} >{output}"!r}
"""
SUBMITIT = f"""
import submitit
executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=3)
with executor.batch():
    square = submitit.helpers.CommandFunction({[*EXEC, SQUARE]!r})
    jobs = [executor.submit(square, number) for number in range(4)]
print(*(job.result() for job in jobs), sep="\\n", file=open("out", "w"))
"""
PSIJ = f"""
from datetime import timedelta
from pathlib import Path
from psij import Job, JobAttributes, JobExecutor, JobSpec
executor = JobExecutor.get_instance("slurm")
jobs = []
for number in range(4):
    command, *words = {[*EXEC, SQUARE]!r}
    spec = JobSpec(command, [*words, str(number)], stdout_path=Path(f"part-{{number}}").absolute())
    spec.attributes = JobAttributes(duration=timedelta(minutes=2))
    jobs.append(Job(spec))
    executor.submit(jobs[-1])
for job in jobs:
    job.wait(timeout=timedelta(seconds=100))
Path("out").write_text("".join(Path(f"part-{{number}}").read_text() for number in range(4)))
"""
PARSL = f"""
import shlex
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD
from parsl.providers import SlurmProvider
own = "parsl.executors.high_throughput."  # its programs are not in PATH here
executor = HighThroughputExecutor(
    max_workers_per_node=1,
    launch_cmd="/usr/bin/python3 -m " + own + DEFAULT_LAUNCH_CMD.replace(".py", "", 1),
    interchange_launch_cmd=["/usr/bin/python3", "-m", own + "interchange"],
    provider=SlurmProvider("batch", max_blocks=1, walltime="00:04:00", worker_init="export PYTHONPATH={PACKAGES}"),
)
@parsl.bash_app
def square(number, stdout):
    import shlex
    return shlex.join([*{[*EXEC, SQUARE]!r}, str(number)])
with parsl.load(Config(executors=[executor])):
    for future in [square(number, stdout=f"part-{{number}}") for number in range(4)]:
        future.result()
open("out", "w").write("".join(open(f"part-{{number}}").read() for number in range(4)))
"""
DASK = f"""
import subprocess
from dask.distributed import Client
from dask_jobqueue import SLURMCluster
def square(number):
    return subprocess.check_output([*{[*EXEC, SQUARE]!r}, str(number)], text=True)
if __name__ == "__main__":
    options = dict(queue="batch", cores=1, memory="1GB", walltime="00:04:00", python="/usr/bin/python3")
    prologue = ["export PYTHONPATH={PACKAGES}"]
    with SLURMCluster(job_script_prologue=prologue, **options) as cluster, Client(cluster) as client:
        cluster.scale(jobs=1)
        open("out", "w").write("".join(client.gather(client.map(square, range(4)))))
"""
_SNAKEMAKE = (
    "-m snakemake --snakefile FILE --executor cluster-generic --jobs 4 --latency-wait 30 "
    "--seconds-between-status-checks 1 --cluster-generic-submit-cmd 'sbatch --parsable --output=/dev/null'"
)
TWO_BUNDLES = f"""
rule total:
    input: expand("part-{{number}}", number=range(4))
    output: "out"
    shell: "{TOTAL} $(cut -d ' ' -f 2 {{input}}) >{{output}}"
rule part:
    output: "part-{{number}}"
    shell: {shlex.join([*EXEC, SQUARE]) + " {wildcards.number} >{output}"!r}
"""
RUNS = {
    "two-bundles": (TWO_BUNDLES, _SNAKEMAKE),
    "snakemake": (SNAKEMAKE, _SNAKEMAKE),
    "submitit": (SUBMITIT, "FILE"),
    "psij": (PSIJ, "FILE"),
    "parsl": (PARSL, "FILE"),
    "dask-jobqueue": (DASK, "FILE"),
}  # fmt: skip


@pytest.fixture(scope="module")
def start(site: Site) -> Callable[[str], str]:
    """Install the workflow managers where all nodes see them; return a function that runs one as alice."""
    target = site.lab.home / "apps/workflows"
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", target]
    with software.admins_umask():
        subprocess.run([*words, "--requirement", ROOT / "tests/lab/workflows.txt"], check=True, timeout=800)

    def run(name: str) -> str:
        program, words = RUNS[name]
        folder = site.lab.home / "alice/flow"
        site.alice("rm -rf ~/flow; mkdir ~/flow; cat >~/flow/program <<'END'\n" + program + "END\n")
        command = f"env PYTHONPATH={PACKAGES} timeout 200 /usr/bin/python3 {words.replace('FILE', 'program')}"
        said = site.alice(f"source /etc/profile; cd ~/flow; {command} >said 2>&1; tail -n 40 said", timeout=240)
        return (folder / "out").read_text() if (folder / "out").exists() else said

    return run


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(RUNS)[1:])
def test_each_starts_programs_of_a_bundle_with_exec(site: Site, start: Callable[[str], str], name: str) -> None:
    rows = [line.split() for line in start(name).splitlines() if line]
    assert [row[1:] for row in rows] == [["0"], ["1"], ["4"], ["9"]], rows
    assert {row[0] for row in rows} <= {"cn1", "cn2"}


@pytest.mark.timeout(1200)
def test_one_workflow_starts_programs_of_two_bundles(site: Site, start: Callable[[str], str], tmp_path: Path) -> None:
    second = tmp_path / "second"
    shutil.copytree(ROOT / "bundles" / "hello-mpi", second)
    (second / "app" / "total.py").write_text("import sys\nprint(sum(int(word) for word in sys.argv[1:]))\n")
    text = (second / "bundle.yaml").read_text().replace("name: hello-mpi", "name: totals")
    (second / "bundle.yaml").write_text(text)
    site.cli("build", second)
    site.cli("pack", second, "--site", "lab", "-o", tmp_path / "totals.tar")
    site.cli("push", tmp_path / "totals.tar", "lab", "--ssh-config", site.lab.ssh_config)
    try:
        assert start("two-bundles") == "14\n"
    finally:
        site.cli("remove", *site.options, "totals")


def test_where_gives_another_program_the_same_container(site: Site) -> None:
    place = json.loads(site.tool("where", "hello-mpi", "--plan", "lab", "--json"))
    look = (
        "import json, os; print(json.dumps([dict(os.environ), os.listdir('/deployer'), os.path.exists('/opt/intel')]))"
    )
    words = ["ch-run", "--unset-env=*", *place["options"], place["image"], "--", "python3", "-c", look]
    (own, *folders), (their, *others) = (
        json.loads(said)
        for said in (
            site.tool("exec", "--plan", "lab", "hello-mpi", "--", "python3", "-c", shlex.quote(look)),
            site.alice(shlex.join(words)),
        )
    )
    assert folders == others
    assert set(own) - set(their) == {"HOME", "TMPDIR"}  # private, for each process
    assert {name: own[name] for name in their} == their
