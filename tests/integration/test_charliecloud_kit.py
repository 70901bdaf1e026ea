"""The ch-run of the bundle's kit on nodes without Charliecloud: it needs nothing of the site but user namespaces. The
image is hello-mpi's under another name."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import ROOT, WORKSPACE, Cli, Site, nothing_left
from tests.lab import Lab

NAME = "hello-carried"
#: Plans of one bundle: a site that has no Charliecloud, whose policy allows udocker before it, and one that should have
#: it, of a version that nobody wrote down.
WITHOUT, UNKNOWN = "lab-without", "lab-unknown"
NODES = ("login1", "cn1", "cn2")
#: Hides the files of Charliecloud and of its libraries on a node, and shows them again.
HIDE = """
for path in /usr/bin/ch-run $(ls /usr/lib/x86_64-linux-gnu/lib{squashfuse,squashfuse_ll,fuse3}.so.* \
    /lib/x86_64-linux-gnu/lib{squashfuse,squashfuse_ll,fuse3}.so.* 2>/dev/null); do
    [ ! -s "$path" ] || mount --bind /dev/null "$path" || exit
done
"""
SHOW = "awk '$4 == \"/null\" && $5 ~ /ch-run|squashfuse|fuse3/ {print $5}' /proc/self/mountinfo | xargs -r umount -l"
#: Says that it is asked to stop, and ends.
GOODBYE = 'trap "echo asked >/tmp/$0; exit 5" TERM; sleep 3""00 & echo $$ >/tmp/$0; wait'


def _profile(folder: Path, name: str, policy: list[str], runtimes: dict[str, object] | None) -> Path:
    record = yaml.safe_load((ROOT / "site_profiles" / "lab.yaml").read_text())
    record["name"] = name
    record["policy"]["runtimes"] = policy
    record["runtimes"] = runtimes
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in record.items() if value is not None}))
    return path


@pytest.fixture(scope="module")
def bare(built: Cli, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the lab without Charliecloud, and with a bundle on it that carries ch-run."""
    folder = tmp_path_factory.mktemp("carried")
    definition = folder / NAME
    shutil.copytree(ROOT / "bundles" / "hello-mpi", definition)
    text = (definition / "bundle.yaml").read_text()
    (definition / "bundle.yaml").write_text(text.replace("name: hello-mpi", f"name: {NAME}"))
    sites = [
        _profile(folder, WITHOUT, ["udocker", "charliecloud"], None),
        _profile(folder, UNKNOWN, ["charliecloud"], {"charliecloud": {}}),
    ]
    bundle = folder / "bundle.tar"
    built("build", definition)
    packed = [word for path in sites for word in ("--site", path)]
    built("pack", definition, *packed, "--kit", "squashfs-tools", "-o", bundle)
    for node in NODES:
        lab.sh(node, "root", HIDE).check("hide Charliecloud")
    site = Site(built, lab)
    try:
        built("push", bundle, "lab", "--without-plan", "--ssh-config", lab.ssh_config)
        yield site
        built("remove", *site.options, "--force", NAME)
    finally:
        for node in NODES:
            lab.sh(node, "root", SHOW).check("show Charliecloud")


def job(site: Site, *words: str, plan: str = WITHOUT, code: int = 0) -> dict[str, Any]:
    return site.run("--plan", plan, "--nodes", "2", *words, bundle=NAME, code=code)


def engine(site: Site) -> str:
    """Return the folder of the carried ch-run."""
    images = json.loads(site.tool("list", "--json"))["images"]
    [folder] = [image["folder"] for image in images if image["name"] == NAME]
    return f"{folder}/engine/charliecloud"


def test_the_nodes_have_no_charliecloud(bare: Site) -> None:
    for node in NODES:
        assert bare.lab.sh(node, "alice", "ch-run --version").returncode in (126, 127)


def test_a_job_has_the_host_s_mpi_and_the_image_s_root(bare: Site) -> None:
    result = job(bare)
    assert (result["variant"], result["runtime"]) == ("charliecloud-kit-folder", "charliecloud-kit")
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    assert result["payload"]["sum"] == 1


@pytest.mark.parametrize(
    "staging",
    [pytest.param("memory", marks=pytest.mark.slow), pytest.param("squashfs", marks=pytest.mark.needs("squashfs"))],
)
def test_a_staged_image_with_its_ch_run_leaves_nothing_behind(bare: Site, staging: str) -> None:
    if staging == "squashfs":
        bare.alice(f"python3 {WORKSPACE}/deployer.pyz install {WORKSPACE}/bundles/{NAME}-1.0.0.tar --squashfs")
    with nothing_left(bare.lab):
        result = job(bare, "--staging", staging)
    assert (result["variant"], result["world_size"]) == (f"charliecloud-kit-{staging}", 2)
    assert (result["exit_code"], result["findings"]) == (0, [])


def test_the_site_s_own_is_passed_over_with_the_reason(bare: Site) -> None:
    said = bare.alice(
        "mkdir -p old; printf '#!/bin/sh\\necho 0.26\\n' >old/ch-run; chmod 755 old/ch-run\n"
        "export PATH=$PWD/old:$PATH\n"
        f"python3 {WORKSPACE}/deployer.pyz run {NAME} --nodes 2 --dry-run --plan {UNKNOWN}"
    )
    assert "variant charliecloud-kit-folder: first in the plan for 2 nodes" in said
    assert "skipped: charliecloud-folder (ch-run 0.26 is too old: deployer uses 0.31 or newer)" in said


def test_the_host_s_libraries_do_not_reach_it(bare: Site) -> None:
    """A module's folders come first for programs of the host, and what is preloaded comes before all."""
    said = bare.alice(
        "mkdir -p 'odd libs'; for name in libfuse3.so.3 libz.so.1 libzstd.so.1; do echo no >'odd libs'/$name; done\n"
        f"cp -r {engine(bare)} 'with space'\n"
        f'for start in {engine(bare)}/run "$PWD/with space/run"; do\n'
        '    env LD_LIBRARY_PATH="$PWD/odd libs" LD_PRELOAD=libz.so.1 "$start" --version 2>&1 | tail -n 1\n'
        "done"
    )
    assert said.splitlines() == ["0.31", "0.31"]


def test_exec_ends_as_the_command_does(bare: Site) -> None:
    run = f"python3 {WORKSPACE}/deployer.pyz exec {NAME} --plan {WITHOUT} --"
    said = bare.alice(
        f"export SECRET=1 LD_LIBRARY_PATH=/nowhere; {run} sh -c 'env; cat /deployer/canary'; {run} sh -c 'exit 7'", 7
    )
    assert "SECRET" not in said
    assert "/nowhere" not in said
    assert "This is the root of an image" in said
    said = bare.alice(
        f"rm -f /tmp/mark; {run} sh -c '{GOODBYE}' mark & "
        "for i in $(seq 300); do [ -s /tmp/mark ] && break; sleep 0.1; done; "
        "kill -TERM $!; wait $!; echo code $?; cat /tmp/mark; pkill -f 'sleep 3[0]0'"
    )
    assert said.split("\n")[-3:] == ["code 5", "asked", ""]


def test_a_broken_ch_run_is_found_before_the_job(bare: Site) -> None:
    run = f"python3 {WORKSPACE}/deployer.pyz run {NAME} --nodes 2 --dry-run --plan"
    libc = f"{engine(bare)}/libc.so.6"
    said = bare.alice(f"mv {libc} {libc}.right; echo no >{libc}; {run} {WITHOUT}; mv -f {libc}.right {libc}")
    assert "variant udocker-folder" in said
    assert "charliecloud-kit-folder (" in said
    assert "does not start: " in said


@pytest.mark.slow
def test_a_ch_run_that_shows_the_host_s_root_stops_the_job(bare: Site) -> None:
    start = f"{engine(bare)}/run"
    fake = (
        '#!/bin/sh\n[ "$1" != --version ] || exec echo 0.31\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    bare.alice(f"mv {start} {start}.right && cat >{start} <<'END'\n{fake}END\nchmod 755 {start}")
    try:
        result = job(bare, code=1)
    finally:
        bare.alice(f"mv -f {start}.right {start}")
    assert result["exit_code"] == 3
    assert [finding["code"] for finding in result["findings"]] == ["runtime.root"]
    assert result["payload"] is None


@pytest.mark.slow
def test_doctor_finds_it(bare: Site) -> None:
    options = ["--site", "lab", "--ssh-config", str(bare.lab.ssh_config)]
    found = json.loads(bare.cli("doctor", *options, NAME, "--plan", WITHOUT, "--json").stdout)
    steps = {rung["name"]: rung for rung in found["rungs"]}
    assert steps["runtime"]["saw"] == "charliecloud-kit, of the bundle's kit"
    assert "sees its own root" in steps["image"]["saw"]
    assert found["healthy"]
