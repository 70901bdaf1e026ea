"""The real Apptainer, unprivileged, on the nodes of the lab: a job on two nodes, and what enters a container of it."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tomllib

from tests.integration.conftest import (
    FILES,
    OPEN_DRIVER,
    SENSITIVE,
    WORKSPACE,
    Site,
    check_driver,
    nothing_left,
    plan_record,
    stranger,
    with_driver,
)
from tests.lab import apptainer

Plan = Callable[..., str]

#: An administrator who lets everything in.
CARELESS = """
mount home = yes
mount hostfs = yes
mount tmp = yes
bind path = /usr/share/doc:/mnt
bind path = /etc/hostname
always use nv = yes
always use rocm = yes
"""
#: A user whose start files know Apptainer's variables, and what sites' modules set.
HOSTILE = {
    "APPTAINER_BIND": "/usr/share:/scratch",
    "SINGULARITY_BINDPATH": "/usr/share:/scratch",
    "APPTAINER_MOUNT": "type=bind,source=/usr/share,destination=/scratch",
    "APPTAINER_CONTAINALL": "1",
    "APPTAINER_WRITABLE_TMPFS": "1",
    "APPTAINER_HOME": "/home/alice:/home/alice",
    "APPTAINER_CWD": "/nowhere",
    "APPTAINER_NV": "1",
    "APPTAINERENV_LD_PRELOAD": "/evil.so",
    "APPTAINERENV_PREPEND_PATH": "/evil",
    "SINGULARITYENV_PYTHONPATH": "/evil",
    "LD_PRELOAD_OF": "host",
    "PYTHONSTARTUP": "/evil.py",
    "PS1": "evil",
    "http_proxy": "http://evil",
    "SECRET": "host",
}
#: What Apptainer itself puts into each container.
OWN = {
    "PROMPT_COMMAND": 'PS1="Apptainer> "; unset PROMPT_COMMAND',
    "PS1": "Apptainer> ",
}
#: Prints what a process in the container has, for a program to read.
SHOW = (
    "import json, os; lines = open('/proc/self/mountinfo').read().splitlines(); "
    "print(json.dumps({'mounts': [line.split()[4] for line in lines], 'environment': dict(os.environ), "
    "'root': open('/deployer/canary').read(), 'cwd': os.getcwd(), 'home': os.listdir('/home')}))"
)


@pytest.fixture(scope="module")
def nodes(site: Site) -> Iterator[Site]:
    """Yield the lab with Apptainer on its nodes."""
    apptainer.install(site.lab)
    yield site
    apptainer.remove(site.lab)


@pytest.fixture
def by(nodes: Site, plan: Plan) -> str:
    """Return the name of a plan that has Apptainer alone."""
    return plan(start_options=[_option(nodes, "lab")])


def _option(site: Site, profile: str, **fields: object) -> dict[str, Any]:
    changed = {"name": "apptainer-folder", "runtime": "apptainer", "staging": "folder", "max_nodes": None}
    return {**plan_record(site, profile)["start_options"][0], **changed, **fields}


def _exec(site: Site, plan: str, script: str, *words: str, code: int = 0) -> str:
    """Run a script that starts with ``exec IMAGE`` as alice on login1, in a login shell."""
    start = f"python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan {plan} {shlex.join(words)} --"
    return site.alice(f"bash -lc {shlex.quote(script.replace('INSIDE', start))}", code)


def test_a_job_on_two_nodes_with_the_host_s_mpi(nodes: Site, by: str) -> None:
    site = nodes
    with nothing_left(site.lab):
        site.alice(f"bash -lc 'python3 {WORKSPACE}/deployer.pyz run hello-mpi --plan {by} --nodes 2 --wait'")
    result = site.result()
    assert (result["runtime"], result["world_size"], result["exit_code"], result["findings"]) == ("apptainer", 2, 0, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    assert result["payload"]["sum"] == 1


def test_open_mpi_by_slurm_s_pmix(nodes: Site, plan: Plan) -> None:
    """A plan that wants the ranks to join; here they cannot, so their copies go through shared memory."""
    lab = plan_record(nodes, "lab-openmpi")
    option = _option(nodes, "lab-openmpi")
    assert option["join"]
    name = plan(**{**lab, "start_options": [option], "site": "changed"})
    nodes.alice(f"bash -lc 'python3 {WORKSPACE}/deployer.pyz run hello-mpi --plan {name} --nodes 2 --wait'")
    result = nodes.result()
    assert (result["runtime"], result["world_size"], result["exit_code"], result["findings"]) == ("apptainer", 2, 0, [])
    assert all(rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"])
    script = nodes.alice(f"cat $(ls -td {WORKSPACE}/jobs/* | head -n 1)/job.sh")
    assert "--set-env=OMPI_MCA_btl_vader_single_copy_mechanism=none" in script


def test_an_image_in_the_nodes_memory_leaves_nothing_behind(nodes: Site, plan: Plan) -> None:
    staged = _option(nodes, "lab", name="apptainer-memory", staging="memory", place="/dev/shm")
    name = plan(start_options=[staged])
    with nothing_left(nodes.lab):
        nodes.alice(f"bash -lc 'python3 {WORKSPACE}/deployer.pyz run hello-mpi --plan {name} --nodes 2 --wait'")
    result = nodes.result()
    assert (result["variant"], result["world_size"], result["exit_code"]) == ("apptainer-memory", 2, 0)
    assert result["findings"] == []


#: Prints what is mounted in the node's own namespace, for all ranks.
MOUNTS = "grep /dev/shm/deployer-stage- /proc/mounts || echo none"


@pytest.fixture
def packed(nodes: Site, plan: Plan) -> str:
    """Return the words that run hello-mpi from its SquashFS file in memory."""
    nodes.tool("squash", "hello-mpi")
    staged = _option(nodes, "lab", name="apptainer-squashfs", staging="squashfs", place="/dev/shm")
    return f"python3 {WORKSPACE}/deployer.pyz run hello-mpi --plan {plan(start_options=[staged])} --nodes 2"


def _begun(site: Site, packed: str) -> str:
    """Return the name of a job one of whose ranks is stopped."""
    job = json.loads(site.alice(f"bash -lc {shlex.quote(packed + ' --json 2>/dev/null')}"))["job"]
    stop = "for try in $(seq 1200); do pkill -STOP -u alice -f '^python3 -m mpi4py' && exit; sleep 0.05; done; exit 1"
    site.lab.sh("cn2", "root", stop, timeout=90).check("stop a rank")
    return str(job)


@pytest.mark.needs("squashfs")
@pytest.mark.parametrize("stop", ["exit 0", "mount --bind /bin/false /usr/bin/fusermount3"])
def test_a_node_mounts_a_squashfs_file_once_for_all_ranks_if_it_can(nodes: Site, packed: str, stop: str) -> None:
    """Otherwise each rank does."""
    site, once = nodes, stop == "exit 0"
    site.lab.sh("cn2", "root", stop).check(stop)
    try:
        with nothing_left(site.lab):
            job = _begun(site, packed)
            assert ("fuse.squashfuse_ll" in site.lab.sh("cn2", "alice", MOUNTS).stdout) is once
            assert site.lab.sh("cn2", "alice", "pgrep -c squashfuse").stdout.strip() == "1"
            site.lab.sh("cn2", "root", "pkill -CONT -u alice -f '^python3 -m mpi4py'").check("continue the rank")
            site.alice(f"python3 {WORKSPACE}/deployer.pyz status {job} --wait")
    finally:
        if not once:
            site.lab.sh("cn2", "root", "umount /usr/bin/fusermount3").check("umount")
    assert site.lab.sh("cn2", "alice", MOUNTS).stdout.strip() == "none"


@pytest.mark.needs("squashfs")
@pytest.mark.parametrize("all_killed", [False, True])
def test_a_killed_holder_leaves_no_mount(nodes: Site, packed: str, all_killed: bool) -> None:
    """If the processes of the mount are killed too, the next job on the node unmounts."""
    site, gone = nodes, "! grep -q deployer-stage- /proc/mounts"
    job = _begun(site, packed)
    assert "fuse.squashfuse_ll" in site.lab.sh("cn2", "alice", MOUNTS).stdout
    killed = "stage --image" + "|[s]quashfuse_ll|[f]usermount3|read -r _" * all_killed
    site.lab.sh("cn2", "root", f"pkill -KILL -f {shlex.quote(killed)}").check("kill")
    site.alice(f"python3 {WORKSPACE}/deployer.pyz cancel {job}; sleep 2")
    if all_killed:
        assert "fuse.squashfuse_ll" in site.lab.sh("cn2", "alice", MOUNTS).stdout
        site.alice(f"bash -lc {shlex.quote(packed + ' --wait')}")
        gone += " && ! ls -d /dev/shm/deployer-*"
    wait = f"for try in $(seq 100); do {gone} && exit; sleep 0.1; done; exit 1"
    site.lab.sh("cn2", "alice", wait).check("wait until nothing is mounted")


@pytest.mark.needs("squashfs")
def test_a_squashfs_file_in_the_nodes_memory(nodes: Site, plan: Plan) -> None:
    staged = _option(nodes, "lab", name="apptainer-squashfs", staging="squashfs", place="/dev/shm")
    name = plan(start_options=[staged])
    nodes.tool("squash", "hello-mpi")
    with nothing_left(nodes.lab):
        nodes.alice(f"bash -lc 'python3 {WORKSPACE}/deployer.pyz run hello-mpi --plan {name} --nodes 2 --wait'")
    result = nodes.result()
    assert (result["variant"], result["world_size"], result["exit_code"]) == ("apptainer-squashfs", 2, 0)
    assert result["findings"] == []
    assert all(rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"])


def test_nothing_of_the_host_enters_but_what_the_plan_lists(nodes: Site, by: str) -> None:
    config = nodes.lab.home / "apps/apptainer" / apptainer.CONFIG
    before = config.read_text()
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in HOSTILE.items())
    config.write_text(before + CARELESS)
    try:
        said = _exec(nodes, by, f"{exports} cd /usr/share; INSIDE python3 -c {shlex.quote(SHOW)} 2>/dev/null")
    finally:
        config.write_text(before)
    saw = json.loads(said)
    plain = json.loads(_exec(nodes, by, f"cd /usr/share; INSIDE python3 -c {shlex.quote(SHOW)}"))
    binds = {bind["target"] for bind in plan_record(nodes, "lab")["binds"]}
    places = [place for place in saw["mounts"] if place not in binds and not place.startswith("/deployer/")]
    system = ("/dev", "/proc", "/sys")
    assert {place for place in places if not place.startswith(system)} == {
        "/", "/tmp", "/etc/passwd", "/etc/group", "/etc/resolv.conf",
    }  # fmt: skip
    assert saw["root"].startswith("This is the root of an image")
    assert saw["home"] == []
    own = ("APPTAINER_", "SINGULARITY_", "HOME", "TMPDIR", "PWD")
    mine = {name: value for name, value in saw["environment"].items() if not name.startswith(own)}
    assert mine == {name: value for name, value in plain["environment"].items() if not name.startswith(own)}
    assert {name: mine[name] for name in OWN} == OWN
    assert not {"SECRET", "PYTHONSTARTUP", "http_proxy", "LD_PRELOAD", "USER_PATH", "TERM"} & set(mine)
    assert "/evil" not in said


def test_the_image_is_read_only_and_its_folder_and_exit_codes_are_the_payload_s(nodes: Site, by: str) -> None:
    said = _exec(nodes, by, "INSIDE sh -c 'touch /etc/new /deployer/app/new; id -u; cat /deployer/canary'")
    assert said.count("Read-only file system") >= 1
    assert said.startswith("2001\n")
    assert "This is the root of an image" in said
    _exec(nodes, by, "INSIDE sh -c 'exit 7'", code=7)
    _exec(nodes, by, "INSIDE sh -c 'kill -TERM $$'; exit $?", code=143)
    _exec(nodes, by, "INSIDE /no/such/program", code=255)


def test_a_driver_by_the_exact_map_and_a_shell(nodes: Site, plan: Plan) -> None:
    by = plan(start_options=[_option(nodes, "lab")], **with_driver(nodes))
    check_driver(nodes, _exec(nodes, by, f"INSIDE python3 -c {shlex.quote(OPEN_DRIVER)}"))
    typed = f"echo 'cat /deployer/canary; id -u; exit 5' | python3 {WORKSPACE}/deployer.pyz shell hello-mpi --plan {by}"
    said = nodes.alice(f"bash -lc {shlex.quote(typed)}", 5)
    assert "This is the root of an image" in said
    assert "\n2001\n" in said


def test_a_signal_reaches_the_payload_and_leaves_nothing(nodes: Site, by: str) -> None:
    said = _exec(
        nodes,
        by,
        "INSIDE sh -c 'trap \"echo got it; exit 9\" TERM; echo begun; while :; do sleep 0.1; done' >out & "
        "for try in $(seq 100); do grep -q begun out && break; sleep 0.1; done; "
        "kill -TERM $!; wait $!; echo ended $?; cat out; "
        "INSIDE sleep 977 & sleep 1; kill -KILL $!; sleep 0.5; pgrep -f '^sleep 977' || echo none left",
    )
    assert "ended 9" in said
    assert "got it" in said
    assert "none left" in said


def test_what_another_user_leaves_in_tmp_does_not_run(nodes: Site, by: str) -> None:
    with stranger(nodes.lab), nothing_left(nodes.lab, FILES, ["login1"]):
        said = _exec(nodes, by, f"INSIDE sh -c '{SENSITIVE}' 2>&1")
    assert "after" in said
    assert "STOLEN" not in said


def test_doctor_tells_the_image_s_root_from_the_host_s(nodes: Site, by: str) -> None:
    said = " ".join(nodes.alice(f"bash -lc 'python3 {WORKSPACE}/deployer.pyz doctor hello-mpi --plan {by}'").split())
    assert "its container sees its own root" in said
    assert "apptainer 1." in said


#: Prints the node, the ranks and the identity of the MPI library that this rank has mapped.
MAPPED = """
import os
from mpi4py import MPI
lines = [line.split() for line in open("/proc/self/maps")]
mapped = {line[4] for line in lines if len(line) > 5 and os.path.basename(line[5]).startswith("libmpi.so")}
print("rank", os.uname()[1], MPI.COMM_WORLD.size, *mapped, flush=True)
"""


@pytest.mark.needs("squashfs")
def test_apptainer_alone_starts_a_sif_with_the_plan_s_mpi(nodes: Site, by: str) -> None:
    nodes.tool("squash", "hello-mpi")
    place = json.loads(
        nodes.alice(f"bash -lc 'python3 {WORKSPACE}/deployer.pyz where hello-mpi --plan {by} --sif mine.sif --json'")
    )
    assert place["image"].endswith("/mine.sif")
    words = ["apptainer", "exec", *place["options"], place["image"], "python3", "-c", MAPPED]
    said = nodes.alice(f"bash -lc {shlex.quote('srun --nodes 2 --mpi=pmi2 ' + shlex.join(words))}")
    ranks = sorted(line.split()[1:] for line in said.splitlines() if line.startswith("rank "))
    assert [rank[:2] for rank in ranks] == [["cn1", "2"], ["cn2", "2"]], said
    bound = [source for source in place["binds"].values() if source.startswith("/opt/")]
    theirs = nodes.alice(f"find -L {shlex.join(bound)} -name 'libmpi.so*' -exec stat -L -c %i {{}} +").split()
    assert all(len(rank) == 3 and rank[2] in theirs for rank in ranks), (ranks, theirs, bound)


#: The keys of an Environment Definition File, and their types (sarus-suite/raster 20f75bd3, src/schema/edf.json).
_EDF = {
    "base_environment": (str, list), "image": str, "workdir": str, "entrypoint": bool, "writable": bool, "mounts": list,
    "env": dict, "annotations": dict, "devices": list,
}  # fmt: skip


@pytest.mark.needs("squashfs")
def test_an_edf_and_pyxis_have_the_same_image_mounts_and_variables(nodes: Site, by: str) -> None:
    nodes.tool("squash", "hello-mpi")
    start = f"python3 {WORKSPACE}/deployer.pyz where hello-mpi --plan {by}"
    read = tomllib.loads(nodes.alice(f"bash -lc '{start} --format edf'"))
    assert all(isinstance(value, _EDF[key]) for key, value in read.items())
    assert read["annotations"] == {"com": {"hooks": {"cxi": {"enabled": "false"}}}}
    assert all(isinstance(value, str) for value in read["env"].values())
    assert all(re.fullmatch("[^:]+:[^:]+", mount) for mount in read["mounts"])
    own = json.loads(nodes.alice(f"bash -lc '{start} --json'"))
    assert read["env"] == own["environment"]
    assert read["mounts"] == [f"{source}:{target}" for target, source in own["binds"].items()]
    nodes.alice(f"test -f {read['image']}")
    words = shlex.split(nodes.alice(f"bash -lc '{start} --format pyxis'").splitlines()[1].partition(" ")[2])
    given = dict(word.split("=", 1) for word in words if "=" in word)
    assert given.pop("--container-image") == read["image"]
    assert given.pop("--container-mounts").split(",") == read["mounts"]
    assert given.pop("--container-workdir") == read["workdir"]
    assert given == read["env"]
