"""The launcher of a rehearsal gives each rank its numbers, and the variables of Slurm's srun at a site with Slurm."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.connected.rehearse.world import far_launcher

#: What srun of Slurm 22.05 gave to the second of two ranks on two nodes of the lab, without what only its Slurm knows:
#: the cluster, the ports, the masks of CPUs and the settings of the site.
SEEN = {
    "SLURMD_NODENAME": "cn2", "SLURM_CPUS_ON_NODE": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_GTIDS": "1",
    "SLURM_JOBID": "1", "SLURM_JOB_CPUS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "seen",
    "SLURM_JOB_NODELIST": "cn[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "batch", "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_NODELIST": "cn[1-2]", "SLURM_NPROCS": "2", "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "cn[1-2]", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip
#: Of these the values are the simulated site's own.
OWN = {
    "SLURM_JOB_UID", "SLURM_JOB_USER", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_STEPID", "SLURM_STEP_ID", "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
}  # fmt: skip
#: In place of a shell on a node: the rank's environment.
AGENT = '#!/bin/bash\nNODE=$1 exec env -i NODE="$1" /bin/bash -c "$2"\n'


def ranks(
    folder: Path, known: object, *words: str, nodes: tuple[str, ...] = ("node1", "node2")
) -> list[dict[str, str]]:
    """Return the environments of the ranks that the launcher starts, in order."""
    own = folder / "bin"
    own.mkdir()
    program = own / "mpiexec.hydra"
    # No name server knows the nodes here.
    text = Path(far_launcher.__file__).read_text().replace("socket.gethostbyname(nodes[0])", "'10.77.0.11'")
    program.write_text(text)
    if known is not None:
        (own / far_launcher.SLURM).write_text(json.dumps(known))
    (folder / "agent").write_text(AGENT)
    (folder / "agent").chmod(0o700)
    (folder / "machines").write_text("".join(f"{node}:1\n" for node in nodes))
    given = ["-bootstrap", "ssh", "-bootstrap-exec", str(folder / "agent"), "-f", str(folder / "machines"), *words]
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [sys.executable, program, *given, sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=60
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(found, key=lambda each: int(each["PMI_RANK"]))


def test_at_a_site_with_slurm_ranks_see_what_srun_gave_them_in_the_lab(tmp_path: Path) -> None:
    known = {"SLURM_JOB_NAME": "seen", "SLURM_JOB_PARTITION": "batch"}
    second = ranks(tmp_path, known, "-n", "2", "-ppn", "1", "-bind-to", "core:1")[1]
    found = {name: value.replace("node", "cn") for name, value in second.items() if name.startswith("SLURM")}
    assert {name: value for name, value in found.items() if name not in OWN} == SEEN
    assert set(found) >= OWN
    assert (second["SLURM_LAUNCH_NODE_IPADDR"], second["SLURM_SUBMIT_HOST"]) == ("10.77.0.11", socket.gethostname())
    assert second["SLURM_JOB_UID"] == str(os.getuid())
    assert (second["PMI_RANK"], second["PMI_SIZE"]) == ("1", "2")


def test_several_ranks_of_a_node_have_numbers_of_their_own(tmp_path: Path) -> None:
    found = ranks(tmp_path, {}, "-n", "4", "-ppn", "2", "-bind-to", "core:3")
    names = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_CPUS_ON_NODE")
    assert [[each[name] for name in names] for each in found] == [
        ["0", "0", "0", "0,1", "4", "6"], ["1", "0", "1", "0,1", "4", "6"],
        ["2", "1", "0", "2,3", "4", "6"], ["3", "1", "1", "2,3", "4", "6"],
    ]  # fmt: skip
    assert {each["SLURM_TASKS_PER_NODE"] for each in found} == {"2(x2)"}


def test_one_node_is_named_without_brackets(tmp_path: Path) -> None:
    (rank,) = ranks(tmp_path, {}, "-n", "1", "-ppn", "1", "-bind-to", "core:1", nodes=("node1",))
    assert (rank["SLURM_STEP_NODELIST"], rank["SLURM_TASKS_PER_NODE"], rank["SLURM_JOB_CPUS_PER_NODE"]) == (
        "node1", "1", "1",
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_PROCID", "SLURMD_NODENAME"])
def test_elsewhere_ranks_have_no_variables_of_slurm(tmp_path: Path, name: str) -> None:
    assert name not in ranks(tmp_path, None, "-n", "2", "-ppn", "1", "-bind-to", "core:1")[0]
