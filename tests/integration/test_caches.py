"""Compiled code survives from job to job: Numba on two nodes, whose second job finds what the first one compiled."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import WORKSPACE, Cli, Site, nothing_left

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker"), pytest.mark.slow]  # about two minutes

BUNDLE = """\
name: compiles
version: "1"
base: {debian: bookworm, include: [python3]}
python: {requirements: requirements.txt}
jobs:
  compile:
    command: [python3, -m, mpi4py, /deployer/app/compile.py]
    nodes: 2
    keep: [numba, ~/own]
"""
DOCKERFILE = "ARG BASE\nFROM deployer/hello-mpi:1.0.0\n"
REQUIREMENTS = "numba==0.61.2\nnumpy==2.2.6\n"
#: Compiles a function, and leaves links and special files in its home.
PROGRAM = """\
import json, os, socket, sys, time
import numba, numpy
from mpi4py import MPI

@numba.njit(cache=True, fastmath=True)
def field(points):
    total = numpy.zeros(points.shape[0])
    for i in range(points.shape[0]):
        d = numpy.sqrt(((points - points[i]) ** 2).sum(axis=1))
        total[i] = numpy.sort(d)[:8].mean()
    return total

begun = time.perf_counter()
field(numpy.random.rand(20, 3))
seconds = time.perf_counter() - begun
own = os.path.expanduser("~/own")
if not os.path.isdir(own):
    os.makedirs(own)
    for name, target in (("link", "/etc/passwd"), ("folder", "/etc")):
        os.symlink(target, os.path.join(own, name))
    os.mkfifo(os.path.join(own, "pipe"))
    open(os.path.join(own, "two\\nlines"), "w").close()
    os.mkdir(os.path.join(own, "good"))
    with open(os.path.join(own, "good", "file"), "w") as stream:
        stream.write("good")
seen = sorted(os.path.relpath(os.path.join(top, name), own) for top, _, names in os.walk(own) for name in names)
hits, misses = (sum(counts.values()) for counts in (field.stats.cache_hits, field.stats.cache_misses))
every = MPI.COMM_WORLD.gather([socket.gethostname(), hits, misses, seconds, seen])
if every:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump(every, stream)
if sys.argv[1:]:
    print("waits", flush=True)
    time.sleep(120)
"""
GOOD = ["good/file"]
KEPT = f"{WORKSPACE}/caches-2001"


@pytest.fixture(scope="module")
def compiles(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("compiles")
    (folder / "app").mkdir()
    texts = {"bundle.yaml": BUNDLE, "Dockerfile": DOCKERFILE, "requirements.txt": REQUIREMENTS}
    for name, text in {**texts, "app/compile.py": PROGRAM}.items():
        (folder / name).write_text(text)
    cli: Cli = site.cli
    cli("build", folder, "--quiet")
    cli("pack", folder, "--site", "lab", "-o", folder / "compiles.tar")
    cli("push", folder / "compiles.tar", "lab", "--ssh-config", site.lab.ssh_config)
    yield site
    site.alice(f"rm -rf {KEPT}")
    if "compiles" in site.tool("list"):
        site.tool("remove", "compiles")


def run(site: Site, *words: str) -> list[Any]:
    """Run the job, and return hits, misses, seconds and own files of both nodes, by name."""
    with nothing_left(site.lab):
        result = site.run(*words, bundle="compiles")
    assert {node[0] for node in result["payload"]} == {"cn1", "cn2"}
    return sorted(result["payload"])


def compare(first: list[Any], second: list[Any]) -> None:
    print("seconds to compile:", [node[3] for node in first], "and from the cache:", [node[3] for node in second])
    assert [node[1:3] for node in first] == [[0, 1]] * 2
    assert [node[1:3] for node in second] == [[1, 0]] * 2
    assert min(node[3] for node in first) > 2 * max(node[3] for node in second)


@pytest.mark.parametrize("staging", ["folder", "memory"])
def test_the_second_job_finds_what_the_first_one_compiled_on_both_nodes(compiles: Site, staging: str) -> None:
    compiles.alice(f"rm -rf {KEPT}")
    first = run(compiles, "--staging", staging)
    log = compiles.tool("logs")
    assert "deployer: kept " in log
    assert "warning" not in log
    modes = compiles.alice(f"stat -c '%a %F' {KEPT} {KEPT}/*")
    assert modes == "700 directory\n600 regular file\n"
    second = run(compiles, "--staging", staging)
    compare(first, second)
    assert [node[4] for node in second] == [GOOD] * 2  # neither links nor pipes
    assert "deployer: kept " not in compiles.tool("logs")  # nothing is new


@pytest.mark.parametrize("staging", ["folder", "memory"])
def test_a_cancelled_job_keeps_what_it_compiled(compiles: Site, staging: str) -> None:
    compiles.alice(f"rm -rf {KEPT}")
    with nothing_left(compiles.lab):
        compiles.tool("run", "compiles", "--staging", staging, "--", "wait")
        log = f"$(ls -td {WORKSPACE}/jobs/* | head -n 1)/output.log"
        compiles.alice(f"until grep -c waits {log} 2>/dev/null | grep -qx 2; do sleep 0.2; done")
        compiles.tool("cancel")
        until = time.monotonic() + 60
        while compiles.alice("squeue -h").strip() and time.monotonic() < until:
            time.sleep(0.2)
    assert "deployer: kept " in compiles.alice(f"cat {log}")
    assert [node[1:3] for node in run(compiles, "--staging", staging)] == [[1, 0]] * 2


def test_a_folder_that_others_can_enter_is_not_used_and_archives_go_with_their_image(compiles: Site) -> None:
    run(compiles)
    compiles.alice(f"chmod 755 {KEPT}")
    assert [node[1:3] for node in run(compiles)] == [[0, 1]] * 2
    assert f"compiled code: {KEPT} is not this user's own folder" in compiles.tool("logs")
    compiles.alice(f"chmod 700 {KEPT}")
    assert KEPT not in compiles.tool("gc", "--dry-run")
    compiles.tool("remove", "compiles")
    assert compiles.alice(f"ls -A {KEPT}") == ""
