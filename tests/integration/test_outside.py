"""Benchmarks in C, in an image without Python: their ranks are watched from outside the container."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Site, image_folder

SOURCES = Path(__file__).with_name("hosted")
NAME = "bench"


def compiled(folder: Path, *words: object) -> None:
    subprocess.run(["cc", "-O1", "-w", *map(str, words)], cwd=folder, check=True, timeout=60)


@pytest.fixture(scope="module")
def bench(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of an image with three programs, what they load, and nothing else: no shell, no Python."""
    folder = tmp_path_factory.mktemp("bench")
    root = folder / "root"
    for name in ("bin", "dev", "etc", "lib64", "proc", "sys", "tmp", "usr/lib", "usr/own"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    own, source = SOURCES / "own_mpi.c", SOURCES / "bench.c"
    compiled(folder, own, "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", "libmpi.so.12")
    compiled(folder, source, "libmpi.so.12", "-o", root / "bin/shared")
    compiled(folder, source, "libmpi.so.12", "-Wl,--disable-new-dtags,-rpath,/usr/own", "-o", root / "bin/own")
    compiled(folder, source, own, "-static", "-o", root / "bin/static")
    shutil.copy(folder / "libmpi.so.12", root / "usr/own")
    said = subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout
    for word in said.split():
        if word.startswith("/"):
            place = root / ("lib64" if "ld-linux" in word else "usr/lib") / Path(word).name
            shutil.copy(word, place)
    for name in ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"):
        shutil.copy(f"/lib/x86_64-linux-gnu/{name}", root / "usr/lib")
    bundle = folder / "bench.tar"
    packed = site.cli("pack", "--rootfs", root, "--name", NAME, "--version", "1", "--site", "lab", "-o", bundle)
    assert "proof.outside" in packed.stdout + packed.stderr
    checked = json.loads(site.cli("check", bundle, "--site", "lab", "--json", code=8).stdout)
    (note,) = [each for each in checked["findings"] if each["code"] == "proof.outside"]
    assert note["severity"] == "note"
    site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config)
    yield NAME
    site.cli("remove", *site.options, NAME, "--force")


def run(site: Site, *words: str, code: int = 0) -> dict[str, Any]:
    return site.run(*words, bundle=NAME, code=code)


def codes(result: dict[str, Any]) -> list[str]:
    return [each["code"] for each in result["findings"] if not each["code"].startswith("check.")]


@pytest.mark.parametrize("staging", ["folder", "memory"])
def test_ranks_without_python_show_their_library_and_their_place(site: Site, bench: str, staging: str) -> None:
    result = run(site, "--nodes", "2", "--staging", staging, "--", "/bin/shared")
    assert (result["exit_code"], result["world_size"], codes(result)) == (0, 2, ["proof.outside"])
    assert result["payload"] == {"counted": 2}
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    for rank in result["ranks"]:
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert (rank["threads"], rank["exit_code"]) == (1, 0)
        assert rank["cpus"]
    assert len({rank["host"] for rank in result["ranks"]}) == 2


@pytest.mark.parametrize(("program", "code"), [("/bin/own", "mpi.not-host-library"), ("/bin/static", "mpi.static")])
def test_another_library_than_the_host_s_fails_the_job(site: Site, bench: str, program: str, code: str) -> None:
    result = run(site, "--nodes", "2", "--", program, code=1)
    assert (result["exit_code"], codes(result)) == (3, [code, "proof.outside"])


def test_ranks_that_cannot_find_each_other_fail_the_job(site: Site, bench: str) -> None:
    """Each is a world of one, counts to one, and ends well."""
    image = image_folder(site, NAME)
    record = json.loads((image / "plans/lab.json").read_text())
    made = image / "plans/alone.json"
    made.write_text(json.dumps({**record, "site": "alone", "pass_environment": ["SLURM_*"]}))
    made.chmod(0o644)
    try:
        result = run(site, "--plan", "alone", "--nodes", "2", "--", "/bin/shared", code=1)
    finally:
        made.unlink()
    assert result["payload"] == {"counted": 1}
    assert (result["exit_code"], result["world_size"], codes(result)) == (3, None, ["mpi.alone", "proof.outside"])
    assert "PMI_FD is not in its environment" in result["findings"][0]["message"]


@pytest.mark.needs("podman")
@pytest.mark.parametrize("alone", [False, True])
def test_podman_s_ranks_are_no_descendants_of_podman_and_are_seen(site: Site, bench: str, alone: bool) -> None:
    image = image_folder(site, NAME)
    record = json.loads((image / "plans/lab.json").read_text())
    option = {**record["start_options"][0], "name": "podman-folder", "runtime": "podman", "staging": "folder"}
    passed = ["SLURM_*"] if alone else record["pass_environment"]
    made = image / "plans/podman.json"
    made.write_text(json.dumps({**record, "site": "podman", "start_options": [option], "pass_environment": passed}))
    made.chmod(0o644)
    try:
        result = run(site, "--plan", "podman", "--nodes", "2", "--", "/bin/shared", code=int(alone))
    finally:
        made.unlink()
    expected = (3, None, ["mpi.alone", "proof.outside"]) if alone else (0, 2, ["proof.outside"])
    assert (result["exit_code"], result["world_size"], codes(result)) == expected


def test_a_checkpoint_with_a_relative_path_is_in_the_jobs_folder(site: Site, bench: str) -> None:
    result = run(site, "--", "/bin/shared", "checkpoint-1.h5")
    assert (result["exit_code"], codes(result)) == (0, ["proof.outside"])
    assert (site.lab.home / "alice/deployer/jobs" / result["job"] / "checkpoint-1.h5").exists()


def test_what_a_program_says_last_is_its_cause(site: Site, bench: str) -> None:
    result = run(site, "--", "/bin/shared", "/no-place", code=1)
    assert codes(result) == ["payload.read-only", "payload.failed", "proof.outside"]
    assert result["findings"][1]["message"].endswith("; last line: /no-place: Read-only file system")
