"""Each MPI's own launcher on two nodes of the lab, in place of srun: who the ranks are, and how the job ends."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deployer.contract.proof.evidence import parse_cpus
from tests.integration.conftest import WORKSPACE, Site
from tests.lab import Lab

OWN = [("lab-hydra", "Intel(R) MPI Library 2021.15"), ("lab-mpirun", "Open MPI v5.0.11")]
PLANS = [plan for plan, _ in OWN]
#: The lab as sites with other launchers, and with nodes of two cores, of which a lab of one node has one.
PROFILES = {
    "lab-srun": ("lab", "launcher: srun, pmi: pmi2"),
    "lab-hydra": ("lab", "launcher: mpiexec.hydra, pmi: null"),
    "lab-mpirun": ("lab-openmpi", "launcher: mpirun, pmi: null"),
    "lab-pmix": ("lab-openmpi", "launcher: srun, pmi: pmix"),
    "lab-local": ("lab", "launcher: null, pmi: null"),
}
#: The one or two ranks add up their numbers by MPI, and the first one asks the other by TCP for what frameworks read.
SUM = """
import json, os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GLOO_SOCKET_IFNAME", "SLURM_PROCID"
own = [os.environ.get(name) for name in names]
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
server = socket.socket()
if world.rank == 0:
    server.bind(place)
    server.listen(1)
world.barrier()
if world.rank == 1:
    socket.create_connection(place, 10).sendall(json.dumps(own).encode())
if world.rank == 0:
    meet = [own] + [json.loads(server.accept()[0].recv(1000)) for other in range(1, world.size)]
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        found = {"sum": total, "input": os.read(0, 100).decode(), "library": MPI.Get_library_version()}
        json.dump({**found, "meet": meet}, stream)
"""


#: What each rank reads of its standard input.
READ = """
import json, os
from mpi4py import MPI
texts = MPI.COMM_WORLD.gather(os.read(0, 1000).decode())
if texts:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump({"texts": texts}, stream)
"""


#: Which ranks of a node share a container: the kernel's word for the namespace of each.
SHARED = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
spaces = set(world.allgather(os.readlink("/proc/self/ns/mnt")))
print("rank", world.rank, "of", world.size, "in one of", len(spaces))
"""


@pytest.fixture(scope="module")
def packed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return hello-mpi without its job, packed for the lab with each launcher."""
    folder = tmp_path_factory.mktemp("launchers")
    options: list[str | Path] = []
    for name, (base, said) in PROFILES.items():
        profile = folder / f"{name}.yaml"
        profile.write_text(
            f"{{format: 1, name: {name}, extends: {base}, source: {{kind: document, where: this test}},\n"
            f" scheduler: {{kind: {'local' if name == 'lab-local' else 'slurm'}}},\n"
            f" partitions: {{batch: {{{said}, node: {{cores: 2}}}}}}}}\n"
        )
        options += ["--site", profile]
    named = ["--image", "deployer/hello-mpi:1.0.0", "--name", "own", "--version", "1"]
    site.cli("pack", *named, *options, "-o", folder / "own.tar")
    return folder / "own.tar"


@pytest.fixture(scope="module")
def image(site: Site, packed: Path) -> Iterator[str]:
    """Yield the name of the bundle, on the lab."""
    site.cli("push", packed, "lab", "--without-plan", "--ssh-config", site.lab.ssh_config)
    yield "own"
    site.cli("remove", *site.options, "own")


@pytest.fixture(scope="module")
def one_node(site: Site, packed: Path) -> Iterator[Site]:
    """Yield a lab of one node, which has all cores of this machine, with the bundle on it."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core: nothing to pin")
    lab = Lab(f"pytest-one-{os.getpid()}")
    try:
        lab.up(nodes=1)
        site.cli("push", packed, "lab", "--without-plan", "--ssh-config", lab.ssh_config)
        yield Site(site.cli, lab)
    finally:
        lab.down(purge=True)


@pytest.fixture
def reserved(site: Site) -> Iterator[None]:
    """Reserve the nodes as "course", and say that they are "haswell": only an administrator can."""
    update = "scontrol update NodeName=cn1,cn2"
    features = f"{update} AvailableFeatures=haswell && {update} ActiveFeatures=haswell"
    reserve = "scontrol create reservation ReservationName=course StartTime=now Duration=30 Users=alice Nodes=ALL"
    site.lab.sh("login1", "root", f"{features} && {reserve}").check("reserve the nodes")
    yield
    end = "for i in $(seq 30); do scontrol delete ReservationName=course && exit; sleep 1; done; exit 1"
    site.lab.sh("login1", "root", end).check("end the reservation")


@pytest.mark.parametrize(("plan", "library"), OWN)
@pytest.mark.usefixtures("reserved")
def test_the_mpis_own_launcher_starts_the_job(site: Site, image: str, plan: str, library: str) -> None:
    asked = ["--account", "physics", "--constraint", "haswell", "--reservation", "course", "--time", "00:04:00"]
    asked.append("--directive=--comment=spring")
    result = site.run("--plan", plan, "--nodes", "2", *asked, "--", "python3", "-c", SUM, bundle=image)
    assert (result["site"], result["world_size"], result["exit_code"], result["findings"]) == (plan, 2, 0, [])
    assert [(rank["rank"], rank["task"], rank["host"]) for rank in result["ranks"]] == [(0, 0, "cn1"), (1, 1, "cn2")]
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(library)
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
    assert (result["payload"]["sum"], result["payload"]["input"]) == (3, "")
    assert result["payload"]["library"].startswith(library)
    assert result["payload"]["meet"] == [[rank, "2", "0", "1", rank, "eth0", rank] for rank in ("0", "1")]
    shown = site.alice(f"scontrol show job {result['job_id']}")
    for word in ("Account=physics", "Features=haswell", "Reservation=course", "TimeLimit=00:04:00", "Comment=spring"):
        assert word in shown


def test_every_rank_reads_the_job_s_input(site: Site, image: str) -> None:
    """Open MPI's launcher would give standard input to rank 0 alone."""
    asked = ["--plan", "lab-mpirun", "--nodes", "2", "--stdin", "/etc/passwd"]
    texts = site.run(*asked, "--", "python3", "-c", READ, bundle=image)["payload"]["texts"]
    assert len(texts) == 2
    assert texts[0] == texts[1]
    assert texts[0].startswith("root:")
    said = site.tool("run", image, *asked[:-1], "/etc/gone", "--", "true", code=3)
    assert "there is no /etc/gone, which is the job's stdin" in said


def test_what_slurm_does_not_have_is_refused_in_its_own_words(site: Site, image: str) -> None:
    for asked in (["--constraint", "cray"], ["--reservation", "none"], ["--partition", "fat"]):
        said = site.tool("run", image, "--plan", "lab-hydra", "--nodes", "2", *asked, "--", "true", code=3)
        assert "Slurm did not take the job: sbatch: error: " in said
        assert {"--constraint": "feature", "--reservation": "reservation", "--partition": "partition"}[asked[0]] in said


@pytest.mark.parametrize("plan", PLANS)
def test_one_rank_that_fails_before_mpi_starts_ends_the_job(site: Site, image: str, plan: str) -> None:
    """The other one would wait for it in MPI_Init until the time limit."""
    script = 'case "$OMPI_COMM_WORLD_RANK$PMI_RANK" in 1) exit 7 ;; esac; exec sleep 3600'
    result = site.run("--plan", plan, "--nodes", "2", "--", "sh", "-c", script, bundle=image, code=1)
    assert result["exit_code"] == 7
    assert [finding["code"] for finding in result["findings"]] == ["payload.failed"]
    assert "rank 1 on cn2 failed first, with exit code 7" in result["findings"][0]["message"]


#: Payloads whose first rank takes seconds for its goodbye, a checkpoint for example; the other one is done at once.
IN_SHELL = """
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$PMIX_RANK}}
trap 'sleep $((3 - 3 * rank)); : >/deployer/job/asked-$rank; exit 3' TERM
echo ready
while :; do sleep 0.2; done
"""
IN_MPI = """
import os, signal, time
from mpi4py import MPI
def goodbye(number, frame):
    time.sleep(3 - 3 * MPI.COMM_WORLD.rank)
    open("/deployer/job/asked-%d" % MPI.COMM_WORLD.rank, "w").close()
    os._exit(3)
signal.signal(signal.SIGTERM, goodbye)
print("ready", flush=True)
while True:
    time.sleep(0.2)
"""
GOODBYES = [
    pytest.param(plan, command, marks=marks)
    for plan, command, marks in [
        ("lab-hydra", ["sh", "-c", IN_SHELL], ()),
        ("lab-hydra", ["python3", "-c", IN_MPI], pytest.mark.slow),
        ("lab-mpirun", ["sh", "-c", IN_SHELL], pytest.mark.slow),
        ("lab-mpirun", ["python3", "-c", IN_MPI], ()),
        ("lab-srun", ["sh", "-c", IN_SHELL], ()),
        ("lab-srun", ["python3", "-c", IN_MPI], pytest.mark.slow),
        ("lab-pmix", ["python3", "-c", IN_MPI], pytest.mark.slow),
    ]
]


@pytest.mark.parametrize(("plan", "command"), GOODBYES)
def test_sigterm_reaches_the_payload_and_nothing_stays(
    site: Site, image: str, plan: str, command: Sequence[str]
) -> None:
    """Each rank has time for a goodbye, also when another one has said its own."""
    # Into files: mpirun's daemons end with the ranks, and what those print then is lost.
    said, tool = f"{WORKSPACE}/jobs/*/asked-*", f"python3 {WORKSPACE}/deployer.pyz"
    site.alice(f"rm -f {said}; {tool} run {image} --plan {plan} --nodes 2 -- {shlex.join(command)}")
    until = f"for i in $(seq 200); do {tool} logs | grep -c ready | grep -q 2 && break; sleep 0.2; done"
    site.alice(f"{until}; {tool} cancel; {tool} logs --follow || true")
    assert [path[-1] for path in site.alice(f"ls {said} || true").split()] == ["0", "1"]
    result = site.result()
    assert [finding["code"] for finding in result["findings"]] == ["job.stopped"]
    assert [rank["exit_code"] for rank in result["ranks"]] == [3, 3]
    for node in ("cn1", "cn2"):
        assert site.lab.sh(node, "root", "pgrep -u alice").stdout == ""


@pytest.mark.parametrize("plan", [*PLANS, pytest.param("lab-srun", marks=pytest.mark.slow)])
def test_each_rank_has_cores_of_its_own(one_node: Site, plan: str) -> None:
    """As the kernel says it in the ranks."""
    result = pinned(one_node, plan, ranks=2, threads=1)
    first, second = (set(parse_cpus(rank["cpus"])) for rank in result["ranks"])
    assert (len(first), len(second), first & second) == (1, 1, set())


@pytest.mark.slow
@pytest.mark.parametrize("plan", [*PLANS, "lab-srun"])
def test_a_rank_has_a_core_for_each_of_its_threads(one_node: Site, plan: str) -> None:
    (rank,) = pinned(one_node, plan, ranks=1, threads=2)["ranks"]
    assert len(set(parse_cpus(rank["cpus"]))) == 2


def pinned(site: Site, plan: str, ranks: int, threads: int) -> dict[str, Any]:
    """Run a job of so many ranks on the one node, and return its result, which is right."""
    layout = ["--nodes", "1", "--ranks-per-node", str(ranks), "--threads", str(threads)]
    result = site.run("--plan", plan, *layout, "--", "python3", "-c", SUM, bundle="own")
    assert (result["world_size"], result["exit_code"], result["findings"]) == (ranks, 0, [])
    return result


@pytest.mark.parametrize(
    ("plan", "start", "containers"),
    [
        pytest.param("lab-pmix", "srun --mpi=pmix -n2 -c1", 1, marks=pytest.mark.slow),
        ("lab-mpirun", "module load openmpi; mpirun -np 2", 1),
        pytest.param("lab-srun", "srun --mpi=pmi2 -n2 -c1", 2, marks=pytest.mark.slow),
        pytest.param("lab-hydra", "module load intel-mpi; mpiexec.hydra -n 2", 2, marks=pytest.mark.slow),
    ],
)
def test_two_tasks_of_a_users_own_script_are_one_world(one_node: Site, plan: str, start: str, containers: int) -> None:
    """And share a container where the plan says so, whichever launcher starts them."""
    (one_node.lab.home / "alice" / "shared.py").write_text(SHARED)
    command = f"python3 {WORKSPACE}/deployer.pyz exec own --plan {plan} --bind $HOME:/mnt -- python3 /mnt/shared.py"
    script = f"#!/bin/bash -l\n#SBATCH --ntasks=2 --output=own.log\n{start} {command}\n"
    (one_node.lab.home / "alice" / "own.sh").write_text(script)
    one_node.alice("chmod a+r shared.py; rm -f own.log")
    one_node.alice("id=$(sbatch --parsable own.sh); while squeue -h -j $id | grep -q .; do sleep 0.2; done")
    said = sorted(one_node.alice("cat own.log").splitlines())
    assert said == [f"rank {rank} of 2 in one of {containers}" for rank in range(2)]


def test_without_a_batch_system_the_job_runs_here(one_node: Site) -> None:
    """On the login node, which is taken for a machine that has no Slurm."""
    words = [
        "--plan",
        "lab-local",
        "--nodes",
        "1",
        "--ranks-per-node",
        "2",
        "--threads",
        "1",
        "--",
        "python3",
        "-c",
        SUM,
    ]
    result = one_node.run(*words, bundle="own")
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert {rank["host"] for rank in result["ranks"]} == {"login1"}
    assert result["payload"]["sum"] == 3
    assert "COMPLETED" in one_node.tool("status")
    assert result["job_id"].endswith(".login1")
