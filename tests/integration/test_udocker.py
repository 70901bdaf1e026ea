"""udocker on the lab: the kit's engine runs a job as Charliecloud does, where namespaces are forbidden, and ends as it
should. The image is hello-mpi's under another name."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import (
    DIFFICULT,
    FILES,
    ROOT,
    SENSITIVE,
    WORKSPACE,
    Cli,
    Site,
    look,
    nothing_left,
    stranger,
)
from tests.lab import Lab

NAME = "hello-udocker"
#: Plans of one bundle: the policy with udocker alone, and with Charliecloud before it; the latter where nobody has
#: tried whether the nodes have user namespaces; and the site with Open MPI, started by Slurm's PMIx and by its own.
ALONE, BOTH, UNTRIED = "lab-udocker", "lab-both", "lab-untried"
PMIX, MPIRUN, PMIX_CHARLIECLOUD = "lab-udocker-pmix", "lab-udocker-mpirun", "lab-charliecloud-pmix"
NODES = ("cn1", "cn2")
#: No user namespaces, for a command and what it starts.
FORBIDDEN = (
    "unshare -U --map-current-user --keep-caps bash -c '"
    "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --ambient-caps=-all --inh-caps=-all bash -s'"
)
#: A machine without the program that udocker would fetch with.
NO_CURL = (
    "unshare -U --map-current-user --keep-caps -m bash -c '"
    "mount --bind /dev/null /usr/bin/curl; exec setpriv --ambient-caps=-all --inh-caps=-all bash -s'"
)
#: Two threads take turns at growing the heap, and say whether each began where the other ended.
TURNS = (
    "import ctypes, threading; grow = ctypes.CDLL(None).sbrk; grow.restype = ctypes.c_void_p; found = [grow(4096)]; "
    "turn = lambda: found.append(grow(4096)); thread = threading.Thread(target=turn); thread.start(); thread.join(); "
    "turn(); print([place - found[0] for place in found])"
)


#: A task shows the other one a piece of its memory, which that reads, as MPI libraries do for long messages (CMA).
CMA = """
import ctypes, os, sys, time
class Piece(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("size", ctypes.c_size_t)]
text = ctypes.create_string_buffer(b"read in the other's memory")
if os.environ["SLURM_LOCALID"] == "0":
    with open("/data/new", "w") as stream:
        stream.write("%d %d" % (os.getpid(), ctypes.addressof(text)))
    os.rename("/data/new", "/data/there")
    while not os.path.exists("/data/done"):
        time.sleep(0.05)
    sys.exit()
while not os.path.exists("/data/there"):
    time.sleep(0.05)
pid, place = map(int, open("/data/there").read().split())
libc, mine = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(len(text))
here, there = Piece(ctypes.addressof(mine), len(mine)), Piece(place, len(mine))
count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(mine.value.decode() if count == len(mine) else os.strerror(ctypes.get_errno()), flush=True)
open("/data/done", "w").close()
"""
#: Says goodbye when it is asked to stop, and writes that down where the job is seen; it imports what it had not yet.
GOODBYE = """
import os, signal, sys, time
def bye(*_):
    time.sleep(1)
    import wave
    with open("/deployer/job/goodbye", "a") as stream:
        stream.write(os.uname().nodename + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
print("begun", flush=True)
time.sleep(600)
"""
MORE_JOBS = """
  goodbye: {command: [python3, /mnt/goodbye.py], nodes: 1, ranks_per_node: 1, threads: 1, time: "00:05:00"}
  here: {command: [pwd], nodes: 1, ranks_per_node: 1, threads: 1, time: "00:05:00"}
  anything: {command: [env], nodes: 1, ranks_per_node: 1, threads: 1, time: "00:05:00"}
"""


def _profile(folder: Path, name: str, runtimes: list[str], base: str = "lab", **batch: object) -> Path:
    record = yaml.safe_load((ROOT / "site_profiles" / f"{base}.yaml").read_text())
    record["name"] = name
    record["policy"]["runtimes"] = runtimes
    record["partitions"]["batch"].update(batch)
    if name == UNTRIED:
        del record["user_namespaces"]
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(record))
    return path


@pytest.fixture(scope="module")
def udocker(built: Cli, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the lab with a bundle on it that carries udocker."""
    folder = tmp_path_factory.mktemp("udocker")
    definition = folder / NAME
    shutil.copytree(ROOT / "bundles" / "hello-mpi", definition)
    text = (definition / "bundle.yaml").read_text()
    (definition / "bundle.yaml").write_text(text.replace("name: hello-mpi", f"name: {NAME}") + MORE_JOBS)
    both = ["charliecloud", "udocker"]
    sites = [
        _profile(folder, ALONE, ["udocker"]),
        _profile(folder, BOTH, both),
        _profile(folder, UNTRIED, both),
        _profile(folder, PMIX, ["udocker"], "lab-openmpi"),
        _profile(folder, MPIRUN, ["udocker"], "lab-openmpi", launcher="mpirun", pmi=None),
        _profile(folder, PMIX_CHARLIECLOUD, ["charliecloud"], "lab-openmpi"),
    ]
    bundle = folder / "bundle.tar"
    built("build", definition)
    built("pack", definition, *(word for path in sites for word in ("--site", path)), "-o", bundle)
    built("push", bundle, "lab", "--without-plan", "--ssh-config", lab.ssh_config)
    site = Site(built, lab)
    yield site
    built("remove", *site.options, "--force", NAME)


def job(site: Site, *words: str, plan: str = ALONE, code: int = 0) -> dict[str, Any]:
    return site.run("--plan", plan, "--nodes", "2", *words, bundle=NAME, code=code)


def inside(site: Site, command: str, code: int = 0) -> str:
    """Run a shell's command in the container on login1."""
    return site.tool("exec", NAME, "--plan", ALONE, "--", "sh", "-c", f"'{command}'", code=code)


def test_the_kit_is_a_part_of_the_bundle(udocker: Site) -> None:
    names = udocker.alice(f"tar -tf {WORKSPACE}/bundles/{NAME}-1.0.0.tar | grep -E 'kit/|overlays/engine'").split()
    kit = {"README.udocker", "proot", "proot.patch", "proot_5.4.0.orig.tar.gz"}
    assert {name.rpartition("/")[2].partition("-")[0] for name in names} == {*kit, "engine.tar"}


def test_a_job_is_the_same_as_with_charliecloud(udocker: Site) -> None:
    by_proot, by_charliecloud = job(udocker), job(udocker, plan=BOTH)
    assert (by_proot["runtime"], by_charliecloud["runtime"]) == ("udocker", "charliecloud")
    for result in (by_proot, by_charliecloud):
        assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
        assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
        for rank in result["ranks"]:
            assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
            assert rank["mpi_identity"] == rank["host_mpi_identity"]
            assert rank["provider"] == "tcp"
    assert by_proot["payload"] == by_charliecloud["payload"]


@pytest.mark.parametrize("plan", [PMIX, pytest.param(MPIRUN, marks=pytest.mark.slow)])
def test_open_mpi_starts_by_pmix_and_by_its_own_launcher(udocker: Site, plan: str) -> None:
    result = job(udocker, plan=plan)
    assert (result["runtime"], result["world_size"], result["exit_code"]) == ("udocker", 2, 0)
    assert result["findings"] == []
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Open MPI v5.0.11")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    assert result["payload"]["sum"] == 1


def test_an_image_in_the_nodes_memory_with_its_engine_leaves_nothing_behind(udocker: Site) -> None:
    with nothing_left(udocker.lab):
        udocker.tool("run", NAME, "here", "--plan", ALONE, "--staging", "memory", "--wait")
        assert "/deployer/job\n" in udocker.tool("logs")
        result = job(udocker, "--staging", "memory")
    assert (result["variant"], result["world_size"], result["exit_code"]) == ("udocker-memory", 2, 0)
    assert result["findings"] == []
    assert {rank["mpi_seen_in"] for rank in result["ranks"]} == {"payload"}


def test_without_user_namespaces_udocker_is_taken_where_the_policy_has_it(udocker: Site) -> None:
    run = f"python3 {WORKSPACE}/deployer.pyz run {NAME} --nodes 2 --dry-run --plan"
    said = udocker.alice(f"{FORBIDDEN} <<'END'\n{run} {UNTRIED}\nEND")
    assert "variant udocker-folder: first in the plan for 2 nodes" in said
    assert "skipped: charliecloud-folder (no user namespaces here: No space left on device)" in said
    assert "variant charliecloud-folder: first in the plan" in udocker.alice(f"{run} {UNTRIED}")


@pytest.mark.slow
def test_a_login_node_without_user_namespaces_does_not_speak_for_nodes_that_have_them(udocker: Site) -> None:
    run = f"python3 {WORKSPACE}/deployer.pyz run {NAME} --nodes 2 --plan {BOTH} --wait"
    udocker.alice(f"{FORBIDDEN} <<'END'\n{run}\nEND")
    result = udocker.result()
    assert (result["runtime"], result["world_size"], result["findings"]) == ("charliecloud", 2, [])
    # For a process here it counts what is here.
    here = f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {BOTH} -- cat /proc/self/comm"
    assert udocker.alice(f"{FORBIDDEN} <<'END'\n{here}\nEND") == "cat\n"


@pytest.mark.slow
def test_a_node_without_user_namespaces_ends_the_job_with_a_word_of_it(udocker: Site) -> None:
    wrapper = FORBIDDEN.replace("bash -s'", '/tmp/ch-run "$@"\' -')
    script = f"cp /usr/bin/ch-run /tmp/; cat >/tmp/wrapper <<'END'\n#!/bin/sh\nexec {wrapper} \"$@\"\nEND\n"
    lab = udocker.lab
    lab.sh("cn2", "root", f"{script}chmod 755 /tmp/wrapper; mount --bind /tmp/wrapper /usr/bin/ch-run").check(
        "cover it"
    )
    try:
        result = job(udocker, plan=BOTH, code=1)
    finally:
        lab.sh("cn2", "root", "umount -l /usr/bin/ch-run; rm /tmp/wrapper /tmp/ch-run").check("uncover ch-run")
    assert result["exit_code"] == 3
    [finding] = result["findings"]
    assert (finding["code"], finding["subject"]) == ("runtime.namespaces", "cn2")
    assert "charliecloud needs user namespaces, which the node does not allow: ch-run" in finding["message"]
    assert "No space left on device" in finding["message"]


def test_a_broken_proot_stops_the_job_before_the_payload(udocker: Site) -> None:
    """Debian's build of proot 5.4.0 runs the program in the host's root, with exit code 0."""
    [folder] = [
        image["folder"] for image in json.loads(udocker.tool("list", "--json"))["images"] if image["name"] == NAME
    ]
    proot = f"{folder}/engine/bin/proot"
    fake = '#!/bin/sh\nwhile [ "$1" != -w ]; do shift; done\nshift 2\nexec "$@"\n'
    udocker.alice(f"mv {proot} {proot}.right && cat >{proot} <<'END'\n{fake}END\nchmod 755 {proot}")
    try:
        result = job(udocker, code=1)
    finally:
        udocker.alice(f"mv -f {proot}.right {proot}")
    assert result["exit_code"] == 3
    assert [finding["code"] for finding in result["findings"]] == ["runtime.root"]
    assert result["findings"][0]["subject"] == "2 nodes: cn1-cn2"
    assert "/deployer/canary: No such file" in result["findings"][0]["message"]
    assert result["payload"] is None


def test_the_container_is_the_image_and_nothing_of_the_host(udocker: Site) -> None:
    said = udocker.alice(
        f"export SECRET=1; python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- "
        "sh -c 'env; id -u; ls /home; touch /etc/new 2>&1; cat /deployer/canary'"
    )
    assert "SECRET" not in said
    assert "container_" not in said
    assert "HOME=/tmp/deployer-home-2001-" in said
    assert "\n2001\n" in said
    assert "alice" not in said
    assert "This is the root of an image" in said
    assert "touch: /etc/new: Permission denied" in said


def test_variables_of_the_user_are_in_the_container_as_they_are(udocker: Site) -> None:
    for verb, job in (("exec", []), ("run", ["anything"])):
        found = look(udocker, verb, NAME, [*job, "--plan", ALONE])
        assert [seen.variables for seen in found] == [DIFFICULT]


def test_what_another_user_leaves_in_tmp_does_not_run(udocker: Site) -> None:
    with stranger(udocker.lab), nothing_left(udocker.lab, FILES, ["login1", *NODES]):
        said = udocker.alice(f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- sh -c '{SENSITIVE}' 2>&1")
        job(udocker)
    assert "after" in said
    assert "STOLEN" not in said
    assert "STOLEN" not in udocker.tool("logs")


def test_the_current_folder_may_be_any_and_nothing_is_left_in_it(udocker: Site) -> None:
    run = f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- echo started"
    assert udocker.alice(f"mkdir here; cd here; {run}; ls -A; cd /; {run}") == "started\nstarted\n"
    assert ".mountpoints" not in udocker.alice("ls -A")


def test_nothing_is_fetched_so_there_may_be_nothing_to_fetch_with(udocker: Site) -> None:
    run = f"test ! -x /usr/bin/curl && python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- echo started"
    assert udocker.alice(f"{NO_CURL} <<'END'\n{run}\nEND").endswith("started\n")


def test_threads_share_one_heap(udocker: Site) -> None:
    """As proot is published, a thread of glibc 2.34 or newer has a heap of its own account: Open MPI dies of it."""
    said = udocker.tool("exec", NAME, "--plan", ALONE, "--", "python3", "-c", f"'{TURNS}'")
    assert said.endswith("[0, 4096, 8192]\n")


def test_exit_codes_are_the_command_s(udocker: Site) -> None:
    inside(udocker, "exit 7", code=7)
    inside(udocker, "true; kill -9 $$", code=137)
    inside(udocker, "(sleep 1; exit 9) & exit 4", code=4)


def test_sigterm_reaches_the_command_and_nothing_is_left(udocker: Site) -> None:
    # The quotes keep pgrep from finding the script that asks.
    script = 'trap "echo asked >/tmp/$0; exit 5" TERM; sleep 3""00 & echo $$ >/tmp/$0; wait'
    said = udocker.alice(
        f"rm -f /tmp/mark; python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- sh -c '{script}' mark & "
        "for i in $(seq 300); do [ -s /tmp/mark ] && break; sleep 0.1; done; "
        "kill -TERM $!; wait $!; echo code $?; cat /tmp/mark; ls -d /tmp/deployer-udocker-* 2>/dev/null; "
        "for i in $(seq 50); do pgrep -f 'sleep 3[0]0' || break; sleep 0.1; done >/dev/null; "
        "pgrep -f 'sleep 3[0]0' || echo none"
    )
    assert said.split("\n")[-4:] == ["code 5", "asked", "none", ""]


def test_a_killed_start_takes_the_command_with_it(udocker: Site) -> None:
    said = udocker.alice(
        f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- sh -c 'sleep 3\"\"01; true' & "
        "for i in $(seq 300); do pgrep -f 'sleep 3[0]1' && break; sleep 0.1; done; kill -KILL $!; wait $!; "
        "for i in $(seq 100); do pgrep -f 'sleep 3[0]1' >/dev/null || break; sleep 0.1; done; "
        "pgrep -f 'sleep 3[0]1' || echo none; rm -rf /tmp/deployer-udocker-*"
    )
    assert said.split()[0].isdigit()
    assert "none" in said


def test_eight_start_at_once(udocker: Site) -> None:
    said = udocker.alice(
        f"for i in 1 2 3 4 5 6 7 8; do python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} -- "
        "python3 -c 'import ctypes, os; print(os.getuid())' & done; wait"
    )
    assert said.split() == ["2001"] * 8


@pytest.mark.slow
def test_eight_ranks_of_a_node_make_one_world(udocker: Site) -> None:
    """In a user's own allocation, of a node that has fewer cores."""
    said = udocker.alice(
        f"salloc -Q -N1 srun --mpi=pmi2 -N1 -n8 --overcommit python3 {WORKSPACE}/deployer.pyz exec {NAME} "
        f"--plan {ALONE} -- python3 -m mpi4py /deployer/app/hello.py </dev/null"
    )
    for rank in range(8):
        assert f"rank {rank} of 8 on cn" in said


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ALONE, "read in the other's memory"),
        (PMIX_CHARLIECLOUD, "read in the other's memory"),  # the plan has them share a container
        (BOTH, "Operation not permitted"),  # each its own
    ],
)
def test_ranks_of_a_node_read_each_others_memory(udocker: Site, plan: str, said: str) -> None:
    exec_ = f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {plan} --bind $HOME/cma:/data"
    shown = udocker.alice(
        f"rm -rf cma; mkdir cma; cat >cma/cma.py <<'END'\n{CMA}END\n"
        f"salloc -Q -N1 srun --mpi=none -N1 -n2 --overcommit {exec_} -- python3 /data/cma.py </dev/null"
    )
    assert shown == said + "\n"


def test_sigterm_of_slurm_lets_the_payload_say_goodbye(udocker: Site) -> None:
    """Slurm signals all processes of a step; udocker alone would die of it, and the step with it."""
    code = (
        "import signal, sys, time\n"
        "def bye(*_):\n"
        "    time.sleep(1)\n"
        "    open('/data/saved', 'a').write('once ')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "open('/data/started', 'w').close()\n"
        "while True: time.sleep(1)\n"
    )
    run = f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {ALONE} --bind $HOME/bye:/data -- python3 /data/bye.py"
    said = udocker.alice(
        f"rm -rf bye; mkdir bye; cat >bye/bye.py <<'END'\n{code}END\n"
        f"cat >bye/job.sh <<'END'\n#!/bin/bash\nsrun -n1 {run}\nEND\n"
        "id=$(sbatch --parsable --output=$HOME/bye/log -N1 bye/job.sh)\n"
        "for i in $(seq 300); do [ -e bye/started ] && break; sleep 0.1; done; scancel $id\n"
        'for i in $(seq 300); do [ -n "$(squeue -h -j $id 2>/dev/null)" ] || break; sleep 0.1; done; cat bye/saved'
    )
    assert said == "once "


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_time_limit_asks_the_payload_and_leaves_nothing(udocker: Site) -> None:
    """Slurm's own, of a minute: the shortest that there is. Two of the jobs run at a time, on a node each."""
    path = udocker.lab.home / "alice" / "goodbye.py"
    path.write_text(GOODBYE)
    path.chmod(0o644)
    asked = ["--nodes", "1", "--time", "00:01:00", "--bind", "$HOME:/mnt", "--json"]
    folders = {}
    with nothing_left(udocker.lab):
        for plan in (ALONE, BOTH):
            for staging in ("folder", "memory"):
                said = udocker.tool("run", NAME, "goodbye", "--plan", plan, "--staging", staging, *asked)
                folders[plan, staging] = json.JSONDecoder().raw_decode(said)[0]["folder"]
        udocker.alice('while [ -n "$(squeue -h -u alice)" ]; do sleep 1; done', timeout=800)
    for (plan, staging), folder in folders.items():
        result = json.loads(udocker.alice(f"cat {folder}/result.json"))
        runtime = "udocker" if plan == ALONE else "charliecloud"
        assert result["variant"] == f"{runtime}-{staging}"
        assert "job.time-limit" in [finding["code"] for finding in result["findings"]], result["findings"]
        assert result["exit_code"] == 143
        assert [rank["exit_code"] for rank in result["ranks"]] == [0]  # it ended by itself
        assert udocker.alice(f"cat {folder}/goodbye").split() == [result["ranks"][0]["host"]]
        state = json.JSONDecoder().raw_decode(udocker.tool("status", Path(folder).name, "--json"))[0]
        assert (state["state"], state["active"]) == ("TIMEOUT", False)


@pytest.mark.slow
def test_doctor_climbs_where_udocker_is_all(udocker: Site) -> None:
    options = ["--site", "lab", "--ssh-config", str(udocker.lab.ssh_config)]
    found = json.loads(udocker.cli("doctor", *options, NAME, "--plan", ALONE, "--json").stdout)
    assert found["healthy"]
    steps = {rung["name"]: rung for rung in found["rungs"]}
    assert {name for name in steps if steps[name]["state"] != "ok"} == {"horovod"}
    assert steps["runtime"]["saw"] == "udocker, of the bundle's kit"
    assert "sees its own root" in steps["image"]["saw"]
