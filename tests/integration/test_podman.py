"""podman on the lab: a job runs as with Charliecloud, on nodes without ranges of extra user numbers and without control
groups of the user's own, whatever the settings of the admin and of the user are, and ends as it should."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import (
    OPEN_DRIVER,
    PROCESSES,
    WORKSPACE,
    Site,
    check_driver,
    nothing_left,
    plan_record,
    with_driver,
)

pytestmark = pytest.mark.needs("podman")

NODES = ("login1", "cn1", "cn2")
#: What an admin or a user can set: variables and mounts for each container, programs to run, places.
HOSTILE = """\
[containers]
env = ["LEAK_CONF=1"]
env_host = true
volumes = ["/opt:/mnt"]
mounts = ["type=bind,source=/opt,destination=/srv"]
annotations = ["leak=1"]
init = true
[engine]
hooks_dir = ["/tmp/hooks"]
runtime = "nowhere"
"""
_SET = f"""
mkdir -p $HOME/hostile && cat >$HOME/hostile/containers.conf <<'END'
{HOSTILE}END
echo /opt:/media >$HOME/hostile/mounts.conf
"""
LEAKS = (
    "export LEAK=1 http_proxy=http://leak CONTAINER_HOST=unix:///x "
    "CONTAINERS_CONF_OVERRIDE=$HOME/hostile/containers.conf; "
)


def _options(record: dict[str, Any], *stagings: str) -> list[dict[str, Any]]:
    """Return podman's start options like the first of a plan."""
    first = record["start_options"][0]
    more = {"memory": {"place": "/dev/shm", "room_mb": 4000}}
    return [
        {**first, "name": f"podman-{each}", "runtime": "podman", "staging": each, **more.get(each, {})}
        for each in stagings
    ]


@pytest.fixture
def podman(site: Site, plan: Callable[..., str]) -> Iterator[Site]:
    """Yield the lab with a plan of podman, on nodes with hostile settings and without ranges of numbers."""
    plan(start_options=_options(plan_record(site, "lab"), "folder", "memory"))
    site.alice(_SET)
    covers = [
        ("mount --bind /home/alice/hostile /etc/containers", "umount /etc/containers"),
        ("mount --bind /dev/null /etc/subuid", "umount /etc/subuid"),
        ("mount --bind /dev/null /etc/subgid", "umount /etc/subgid"),
    ]
    for node in NODES:
        for cover, _ in covers:
            site.lab.sh(node, "root", cover).check(cover)
    yield site
    for node in NODES:
        for _, uncover in covers:
            site.lab.sh(node, "root", uncover).check(uncover)
    site.alice("rm -rf hostile")


def inside(site: Site, command: str, code: int = 0) -> str:
    """Run a shell's command in the container on login1."""
    words = f"exec hello-mpi --plan changed -- sh -c '{command}'"
    return site.alice(f"{LEAKS} python3 {WORKSPACE}/deployer.pyz {words}", code)


@pytest.mark.parametrize("staging", ["folder", "memory"])
def test_a_job_on_two_nodes(podman: Site, staging: str) -> None:
    found = "find /dev/shm /tmp /run -mindepth 1 -user alice"
    with nothing_left(podman.lab, f"{PROCESSES}; {found}"), nothing_left(podman.lab, found, ["login1"]):
        result = podman.run("--plan", "changed", "--nodes", "2", "--staging", staging)
    assert (result["runtime"], result["variant"]) == ("podman", f"podman-{staging}")
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]


def test_where_gives_podman_the_same_container(site: Site, plan: Callable[..., str]) -> None:
    """By hand, as a workflow manager would, without deployer's own start of podman."""
    plan(start_options=_options(plan_record(site, "lab"), "folder"))
    place = json.loads(site.tool("where", "hello-mpi", "--plan", "changed", "--format", "podman", "--json"))
    code = "import json, os; print(json.dumps([dict(os.environ), os.listdir('/deployer'), os.listdir('/opt/intel')]))"
    # Without ranges of user numbers, control groups of the user's own and a new /proc, as on a node of the lab.
    start = "env XDG_RUNTIME_DIR=/tmp/p _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=2001"
    start += " _CONTAINERS_ROOTLESS_GID=2001 unshare --user --map-root-user --mount podman --cgroup-manager=cgroupfs"
    start += " --storage-driver=vfs --root=/tmp/p/root --runroot=/tmp/p/run --tmpdir=/tmp/p/tmp --events-backend=none"
    start += " run --rm --read-only --network=host --pid=host --volume=/proc:/proc:rslave --volume=/sys:/sys:rslave"
    words = [*start.split(), *place["options"], "--rootfs", place["image"], "python3", "-c", code]
    ours, theirs = (
        json.loads(said.splitlines()[-1])
        for said in (
            site.tool("exec", "--plan", "changed", "hello-mpi", "--", "python3", "-c", shlex.quote(code)),
            site.alice("mkdir -p /tmp/p; " + shlex.join(words)),
        )
    )
    assert ours[1:] == theirs[1:]
    assert "/opt/intel/mpi/2021.15" in place["binds"]
    assert {name: theirs[0].get(name) for name in place["environment"]} == place["environment"]
    assert set(ours[0]) - set(theirs[0]) <= {"HOME", "TMPDIR"}  # private, for each process


def test_open_mpi_starts_by_pmix(podman: Site, plan: Callable[..., str]) -> None:
    record = plan_record(podman, "lab-openmpi")
    plan(**{**record, "site": "changed", "start_options": _options(record, "folder")})
    result = podman.run("--plan", "changed", "--nodes", "2")
    assert (result["runtime"], result["world_size"], result["exit_code"]) == ("podman", 2, 0)
    assert all(rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"])


def test_the_container_is_the_image_and_nothing_of_the_host(podman: Site) -> None:
    said = inside(
        podman,
        "exec 2>&1; env; echo USER; id -un; id -u; cat /deployer/canary; ls /mnt /srv /home; touch /etc/new; "
        'echo MOUNTS; cut -d" " -f5 /proc/self/mountinfo',
    )
    assert "LEAK" not in said.upper()
    variables, _, rest = said.partition("USER\n")
    user, _, mounts = rest.partition("MOUNTS\n")
    assert user.startswith("alice\n2001\nThis is the root of an image")
    assert re.search("/etc/new'?: Read-only file system\n$", user)
    of_the_image = {"PATH", "LANG"}
    of_the_plan = {
        "HOME", "TMPDIR", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "FI_PROVIDER", "I_MPI_ROOT", "MPI4PY_MPIABI"
    }  # fmt: skip
    of_podman_and_the_shell = {"HOSTNAME", "PWD", "SHLVL"}
    names = {line.partition("=")[0] for line in variables.splitlines()}
    assert names == of_the_image | of_the_plan | of_podman_and_the_shell
    systems = re.compile("/(proc|sys|dev)(/|$)")
    of_podman_5 = {"/run/.containerenv"}
    assert {path for path in mounts.splitlines() if not systems.match(path)} - of_podman_5 == {
        "/", "/tmp", "/run", "/etc/passwd", "/etc/group", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf",
        "/deployer/app", "/deployer/host", "/opt/intel/mpi/2021.15",
    }  # fmt: skip


def test_exit_codes_and_standard_input(podman: Site) -> None:
    inside(podman, "exit 7", code=7)
    inside(podman, "kill -9 $$", code=137)
    assert podman.alice(f"echo said | python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed -- cat").endswith(
        "said\n"
    )


@pytest.mark.parametrize("streams", ["| cat", "</dev/null", "2>/dev/null </dev/null"])
def test_some_streams_are_a_terminal(podman: Site, streams: str) -> None:
    """As for a person who reads the output in a pager, and for the ranks of Open MPI's mpirun.

    Not all of them: the lab's nodes have no /dev/console, where crun mounts a container's own terminal.
    """
    run = f"python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed -- sh -c 'echo said; exit 7' {streams}"
    said = podman.alice(f"script -qec {shlex.quote(f'set -o pipefail; {run}')} /dev/null </dev/null", 7)
    assert said.replace("\r", "").endswith("said\n")


def test_sigterm_reaches_the_command_and_a_killed_start_takes_it_along(podman: Site) -> None:
    script = 'trap "exit 5" TERM; echo $$ >/tmp/began; while :; do sleep 0.1; done'  # the number is the host's
    for signal, expected in (("TERM", "code 5"), ("KILL", "code 137")):
        said = podman.alice(
            f"rm -f /tmp/began; python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed -- sh -c '{script}' & "
            "for i in $(seq 300); do [ -s /tmp/began ] && break; sleep 0.1; done; "
            f"kill -{signal} $!; wait $!; echo code $?; pid=$(cat /tmp/began); rm /tmp/began; "
            "for i in $(seq 80); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done; "
            "kill -0 $pid 2>/dev/null || echo none"
        )
        assert said.startswith(f"{expected}\nnone\n")


def test_a_killed_start_takes_all_of_its_container_along(podman: Site) -> None:
    said = podman.alice(
        f"python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed -- sh -c 'sleep 976 & sleep 976' & "
        "for i in $(seq 300); do pgrep -fxc 'sleep 976' | grep -qx 2 && break; sleep 0.1; done; "
        "pgrep -fxc 'sleep 976'; kill -KILL $!; "
        "for i in $(seq 80); do pgrep -fx 'sleep 976' >/dev/null || break; sleep 0.1; done; "
        "pgrep -fxc 'sleep 976' || true"
    )
    assert said.startswith("2\n0\n")


def test_a_driver_by_the_exact_map_and_a_shell(podman: Site, plan: Callable[..., str]) -> None:
    plan(start_options=_options(plan_record(podman, "lab"), "folder"), **with_driver(podman))
    start = f"python3 {WORKSPACE}/deployer.pyz"
    check_driver(podman, podman.alice(f'{start} exec hello-mpi --plan changed -- python3 -c "{OPEN_DRIVER}"'))
    said = podman.alice(f"echo 'cat /deployer/canary; id -u; exit 5' | {start} shell hello-mpi --plan changed", 5)
    assert "This is the root of an image" in said
    assert "2001" in said.split()


def test_capture_and_doctor_know_it(podman: Site) -> None:
    podman.tool("capture", "--node", "--partition", "batch", "-o", "podman.json")
    facts = json.loads(podman.alice("cat podman.json; rm podman.json"))
    podman_of_the_node = facts["partitions"]["batch"]["runtimes"]["podman"]
    assert (podman_of_the_node["starts"], podman_of_the_node.get("failure")) == (True, None)  # it was tried
    said = podman.tool("doctor", "--plan", "changed", "hello-mpi")
    assert "podman " in said
