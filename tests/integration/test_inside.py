"""Images with Debian's MPICH and Open MPI on two nodes: their own launchers start the ranks, a container per node."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import WORKSPACE, Cli, Site
from tests.lab import Lab, roots

PROGRAM = "/usr/local/bin/add-ranks"
#: The images: packages, the library that the program is linked to, a word for the compiler, what the library says.
IMAGES = {
    "mpich": (("python3", "mpich"), "libmpich.so.12", "-DMPICH", "MPICH Version: 4.0.2"),
    "openmpi": (("python3", "openmpi-bin", "libopenmpi3"), "libmpi.so.40", "-DOPEN_MPI", "Open MPI v4.1.4"),
}
#: Each rank says goodbye for three seconds, and shows by files that it has begun and ended in good order.
GOODBYE = """
import os, signal, socket, sys, time
def bye(*_):
    time.sleep(3)
    open("/deployer/job/bye-" + socket.gethostname(), "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
open("/deployer/job/up-" + socket.gethostname(), "w").close()
time.sleep(200)
"""


@pytest.fixture(scope="module")
def inside(cli: Cli, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Site]]:
    """Yield a function that puts an image on the lab, with a plan for a runtime, and returns the lab."""
    folder = tmp_path_factory.mktemp("inside")
    site, there = Site(cli, lab), set()

    def put(name: str, runtime: str) -> Site:
        packages, library, word, _ = IMAGES[name]
        top = folder / name
        if not top.exists():
            shutil.copytree(roots.root("bookworm", packages, f"image-{packages[1]}"), top, symlinks=True)
            source = Path(__file__).with_name("hosted") / "inside.c"
            linked = ["-Wl,--allow-shlib-undefined", top / "usr/lib/x86_64-linux-gnu" / library]
            words = ["cc", "-O1", "-w", word, source, *linked, "-o", f"{top}{PROGRAM}"]
            subprocess.run(list(map(str, words)), check=True, timeout=60)
        profile = folder / f"{runtime}.yaml"
        profile.write_text(
            "{format: 1, name: lab-inside, extends: lab, source: {kind: document, where: this test}, launch: inside,\n"
            f" policy: {{runtimes: [{runtime}]}}, runtimes: {{{runtime}: {{}}}}}}\n"
        )
        bundle = folder / f"{name}-{runtime}.tar"
        named = ["--name", f"own-{name}", "--version", runtime]
        cli("pack", "--rootfs", top, *named, "--site", profile, "-o", bundle)
        assert json.loads(cli("check", bundle, "--site", profile, "--json").stdout)["verdict"] == "RUN"
        cli("push", bundle, profile, "--ssh-config", lab.ssh_config)
        there.add(f"own-{name}")
        return site

    yield put
    for name in there:
        cli("remove", *site.options, name, "--force")


def run(site: Site, image: str, *words: str, code: int = 0) -> dict[str, Any]:
    site.cli(
        "run",
        *site.options,
        image,
        "--plan",
        "lab-inside",
        "--nodes",
        "2",
        "--wait",
        "--",
        *words,
        code=code,
        timeout=300,
    )
    return site.result()


def left(site: Site) -> str:
    """Return alice's processes on the nodes."""
    return "".join(site.lab.sh(node, "root", "ps -u alice -o args= || true").stdout for node in ("cn1", "cn2"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        pytest.param("mpich", "charliecloud", marks=pytest.mark.slow),
        pytest.param("openmpi", "charliecloud", marks=pytest.mark.slow),
        pytest.param("mpich", "podman", marks=[pytest.mark.slow, pytest.mark.needs("podman")]),
        pytest.param("openmpi", "podman", marks=[pytest.mark.slow, pytest.mark.needs("podman")]),
    ],
)
def test_two_containers_are_one_world(inside: Callable[[str, str], Site], name: str, runtime: str) -> None:
    site, image = inside(name, runtime), f"own-{name}:{runtime}"
    result = run(site, image, PROGRAM)
    assert (result["exit_code"], result["world_size"], result["runtime"]) == (0, 2, runtime)
    assert [each["code"] for each in result["findings"]] == []
    assert result["payload"] == {"size": 2, "sum": 1}
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(IMAGES[name][3])
        assert rank["mpi_seen_in"] == "payload"
    assert run(site, image, PROGRAM, "7", code=1)["exit_code"] == 7
    assert "inside" not in left(site)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", ["charliecloud", pytest.param("podman", marks=pytest.mark.needs("podman"))])
@pytest.mark.parametrize("name", list(IMAGES))
def test_each_rank_says_goodbye_and_nothing_is_left(
    inside: Callable[[str, str], Site], name: str, runtime: str
) -> None:
    site = inside(name, runtime)
    words = ["python3", "-c", GOODBYE]
    site.cli("run", *site.options, f"own-{name}:{runtime}", "--plan", "lab-inside", "--nodes", "2", "--", *words)
    job = site.alice(f"ls -td {WORKSPACE}/jobs/* | head -n 1").strip()
    until(lambda: site.alice(f"ls {job}").count("up-") == 2, "both ranks")
    site.cli("cancel", *site.options, job.rpartition("/")[2])
    until(lambda: '"exit_code": 143' in site.alice(f"cat {job}/result.json"), "the end")
    assert site.alice(f"ls {job}").count("bye-") == 2
    until(lambda: "inside" not in left(site), "no process")


def until(found: Callable[[], Any], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, f"no sign of {what}"
        time.sleep(0.5)
