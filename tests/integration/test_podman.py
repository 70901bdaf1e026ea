"""podman on the lab: a job runs as with Charliecloud, on nodes without ranges of extra user numbers and without control
groups of the user's own, whatever the settings of the admin and of the user are, and ends as it should."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import WORKSPACE, Site, homes, plan_record

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
    first = record["variants"][0]
    more = {"memory": {"place": "/dev/shm", "room_mb": 4000}}
    return [
        {**first, "name": f"podman-{each}", "runtime": "podman", "staging": each, **more.get(each, {})}
        for each in stagings
    ]


@pytest.fixture
def podman(site: Site, plan: Callable[..., str]) -> Iterator[Site]:
    """Yield the lab with a plan of podman, on nodes with hostile settings and without ranges of numbers."""
    plan(variants=_options(plan_record(site, "lab"), "folder", "memory"))
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


def left(site: Site) -> str:
    """Return what of alice's is on the nodes: processes, and files of deployer's or podman's."""
    look = "sleep 2; pgrep -u alice -a; find /dev/shm /tmp /run -mindepth 1 -user alice"
    return "".join(site.lab.sh(node, "root", look).stdout for node in NODES[1:])


@pytest.mark.parametrize("staging", ["folder", "memory"])
def test_a_job_on_two_nodes(podman: Site, staging: str) -> None:
    result = podman.run("--plan", "changed", "--nodes", "2", "--staging", staging)
    assert (result["runtime"], result["variant"]) == ("podman", f"podman-{staging}")
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    assert left(podman) == ""
    assert homes(podman.lab) == []


def test_open_mpi_starts_by_pmix(podman: Site, plan: Callable[..., str]) -> None:
    record = plan_record(podman, "lab-openmpi")
    plan(**{**record, "site": "changed", "variants": _options(record, "folder")})
    result = podman.run("--plan", "changed", "--nodes", "2")
    assert (result["runtime"], result["world_size"], result["exit_code"]) == ("podman", 2, 0)
    assert all(rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"])


def test_exit_codes_and_standard_input(podman: Site) -> None:
    inside(podman, "exit 7", code=7)
    inside(podman, "kill -9 $$", code=137)
    assert podman.alice(f"echo said | python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed -- cat").endswith(
        "said\n"
    )
