"""Jobs and commands with enroot's words on the lab: by a stand-in that makes containers as enroot does, or by the real
one that ``DEPLOYER_ENROOT`` names (tests/lab/enroot.py)."""

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import PROCESSES, WORKSPACE, Site, image_folder, nothing_left, plan_record
from tests.lab import enroot

#: Files of the image that enroot would obey, and what they would let in.
HOSTILE = {
    "etc/fstab": "/usr/share /srv none x-create=dir,rbind\n",
    "etc/environment": "LEAK_ENVIRONMENT=1\n",
    "etc/rc": 'echo LEAK_RC; exec "$@"\n',
}
#: What a job could leave; by itself enroot makes folders in the home.
LEFT = f"{PROCESSES}; find /dev/shm /tmp /run -mindepth 1 -user alice; find /home/alice -name enroot"
#: What a user's start files could set.
LEAKS = "export LEAK=1 ENROOT_REMAP_ROOT=y ENROOT_ROOTFS_WRITABLE=y ENROOT_LOGIN_SHELL=y ENROOT_UNSHARE_NET=y; "


def _options(record: dict[str, Any], *stagings: str) -> list[dict[str, Any]]:
    more = {"memory": {"place": "/dev/shm", "room_mb": 4000}}
    first = record["start_options"][0]
    return [
        {**first, "name": f"enroot-{each}", "runtime": "enroot", "staging": each, **more.get(each, {})}
        for each in stagings
    ]


@pytest.fixture
def nodes(site: Site, plan: Callable[..., str]) -> Iterator[Site]:
    """Yield the lab with enroot on its nodes and a plan of it; its image has files that enroot obeys."""
    enroot.install(site.lab)
    plan(start_options=_options(plan_record(site, "lab"), "folder", "memory"))
    rootfs = image_folder(site) / "rootfs"
    before = {name: (rootfs / name).read_text() if (rootfs / name).exists() else None for name in HOSTILE}
    for name, text in HOSTILE.items():
        (rootfs / name).write_text(text)
    yield site
    for name, old in before.items():
        if old is None:
            (rootfs / name).unlink()
        else:
            (rootfs / name).write_text(old)
    enroot.remove(site.lab)


def inside(site: Site, command: str, code: int = 0) -> str:
    """Run a shell's command in the container on login1."""
    start = f"python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed -- sh -c {shlex.quote(command)}"
    return site.alice(f"bash -lc {shlex.quote(LEAKS + start)}", code)


def test_a_job_on_two_nodes_and_what_its_image_s_own_files_can_do(nodes: Site) -> None:
    with nothing_left(nodes.lab, LEFT):
        start = f"python3 {WORKSPACE}/deployer.pyz run hello-mpi --plan changed --nodes 2 --staging folder --wait"
        nodes.alice(f"bash -lc {shlex.quote(LEAKS + start)}")
    result = nodes.result()
    assert (result["runtime"], result["world_size"], result["exit_code"]) == ("enroot", 2, 0)
    assert result["findings"] == []
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]


@pytest.mark.slow
def test_an_image_in_memory_and_open_mpi_by_pmix(nodes: Site, plan: Callable[..., str]) -> None:
    result = nodes.run("--plan", "changed", "--nodes", "2", "--staging", "memory")
    assert (result["variant"], result["world_size"], result["exit_code"]) == ("enroot-memory", 2, 0)
    record = plan_record(nodes, "lab-openmpi")
    plan(**{**record, "site": "changed", "start_options": _options(record, "folder")})
    result = nodes.run("--plan", "changed", "--nodes", "2")
    assert (result["runtime"], result["world_size"], result["exit_code"]) == ("enroot", 2, 0)
    assert all(rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"])


@pytest.mark.slow
def test_the_container_is_the_image_and_nothing_of_the_host(nodes: Site) -> None:
    said = inside(
        nodes,
        "exec 2>&1; env; echo USER; id -un; id -u; cat /deployer/canary; touch /etc/new; "
        "echo MOUNTS; cut -d' ' -f5 /proc/self/mountinfo",
    )
    assert "LEAK" not in said
    variables, _, rest = said.partition("USER\n")
    user, _, mounts = rest.partition("MOUNTS\n")
    assert user.startswith("alice\n2001\nThis is the root of an image")
    assert "Read-only file system" in user
    of_the_image, of_the_shell = {"PATH", "LANG"}, {"PWD", "SHLVL"}
    of_the_plan = {
        "HOME", "TMPDIR", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "FI_PROVIDER", "I_MPI_ROOT", "MPI4PY_MPIABI"
    }  # fmt: skip
    assert {line.partition("=")[0] for line in variables.splitlines()} == of_the_image | of_the_plan | of_the_shell
    systems = ("/proc", "/sys", "/dev")
    assert {path for path in mounts.splitlines() if not path.startswith(systems)} == {
        "/", "/tmp", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf",
        "/deployer/app", "/deployer/host", "/opt/intel/mpi/2021.15",
    }  # fmt: skip
    assert not (image_folder(nodes) / "rootfs" / ".lock").exists()


@pytest.mark.slow
def test_exit_codes_signals_and_standard_input(nodes: Site) -> None:
    inside(nodes, "exit 7", code=7)
    inside(nodes, "kill -9 $$", code=-9)  # it is the command itself that was killed
    start = f"python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan changed --"
    assert nodes.alice(f"bash -lc {shlex.quote(f'echo said | {start} cat')}") == "said\n"
    script = 'trap "exit 5" TERM; echo $$ >/tmp/began; while :; do sleep 0.1; done'  # the number is the host's
    for signal, expected in (("TERM", "code 5"), ("KILL", "code 137")):
        said = nodes.alice(
            f"source /etc/profile; rm -f /tmp/began; {start} sh -c '{script}' & "
            "for i in $(seq 300); do [ -s /tmp/began ] && break; sleep 0.1; done; "
            f"kill -{signal} $!; wait $!; echo code $?; pid=$(cat /tmp/began); rm /tmp/began; "
            "for i in $(seq 80); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done; "
            "kill -0 $pid 2>/dev/null || echo none"
        )
        assert said.startswith(f"{expected}\nnone\n")


@pytest.mark.slow
def test_doctor_capture_and_shell_know_it(nodes: Site) -> None:
    start = f"python3 {WORKSPACE}/deployer.pyz"
    said = nodes.alice(f"bash -lc {shlex.quote(f'{start} doctor --plan changed hello-mpi')}", timeout=300)
    assert "enroot" in said
    capture = (
        f"{start} capture --node --partition batch -o enroot.json >/dev/null 2>&1; cat enroot.json; rm enroot.json"
    )
    facts = json.loads(nodes.alice(f"bash -lc {shlex.quote(capture)}"))["partitions"]["batch"]["runtimes"]["enroot"]
    assert facts == {"version": "4.1.2", "starts": True}
    assert not nodes.alice("find ~ -name enroot")  # its folders in the home
    words = f"echo 'cat /deployer/canary; id -u; exit 5' | {start} shell hello-mpi --plan changed"
    said = nodes.alice(f"bash -lc {shlex.quote(words)}", 5)
    assert "This is the root of an image" in said
    assert "2001" in said.split()
