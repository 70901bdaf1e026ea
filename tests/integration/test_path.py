"""hello-mpi from a definition to a job on two nodes, with real Docker, ssh, Slurm, Charliecloud and Intel MPI."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import checked_records
from tests.integration.conftest import PYTHON, ROOT, SITES, WORKSPACE, Cli, Site


def test_the_job_runs_on_the_hosts_mpi(site: Site) -> None:
    result = site.run("--nodes", "2", "--ranks-per-node", "1", "--threads", "1")
    assert result["schema"] == "deployer.result"
    assert (result["bundle"], result["site"], result["runtime"]) == ("hello-mpi", "lab", "charliecloud")
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert sorted(rank["rank"] for rank in result["ranks"]) == [0, 1]
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["provider"] == "tcp"
        assert rank["threads"] == 1
        assert rank["allreduce"]["latency_us"] > 0
        assert rank["allreduce"]["bandwidth_mb_s"] > 0
        assert rank["memlock"] is None or rank["memlock"] > 0
    assert result["payload"]["world_size"] == 2


def test_the_same_bundle_runs_on_open_mpi(site: Site) -> None:
    result = site.run("--nodes", "2", site="lab-openmpi")
    assert (result["site"], result["world_size"], result["exit_code"]) == ("lab-openmpi", 2, 0)
    assert result["findings"] == []
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith("Open MPI v5.0.11")
        assert rank["mpi_path"] == "/opt/openmpi/5.0.11/lib/libmpi.so.40"
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
        assert rank["allreduce"]["latency_us"] > 0
    assert result["payload"]["mpi_library"].startswith("Open MPI v5.0.11")


def test_a_launcher_of_another_family_is_found_out(site: Site, tmp_path: Path) -> None:
    """PMI-2 says nothing to Open MPI 5: each rank would be rank 0 of 1, and the job would seem to have worked."""
    record = yaml.safe_load((ROOT / "site_profiles" / "lab-openmpi.yaml").read_text())
    record["name"] = "lab-openmpi-pmi2"
    record["partitions"]["batch"]["pmi"] = "pmi2"
    profile = tmp_path / "site.yaml"
    profile.write_text(yaml.safe_dump(record))
    bundle = tmp_path / "hello.tar"
    image = ["--image", "deployer/hello-mpi:1.0.0", "--name", "hello-pmi2", "--version", "1"]
    site.cli("pack", *image, "--site", profile, "-o", bundle)
    site.cli("push", bundle, "lab", "--without-plan", "--ssh-config", site.lab.ssh_config)
    try:
        result = site.run("--nodes", "2", "--", "true", bundle="hello-pmi2", site=str(profile), code=1)
    finally:
        site.cli("remove", *site.options, "hello-pmi2")
    assert [finding["code"] for finding in result["findings"]] == ["mpi.singletons"]
    assert result["exit_code"] == 3


def test_without_the_bind_the_evidence_shows_the_images_own_mpi(site: Site) -> None:
    bound = site.run("--plan", "lab", "--nodes", "2")
    own = site.run("--plan", "lab-own-mpi", "--nodes", "2")
    assert own["world_size"] == 2
    for rank in own["ranks"]:
        assert "MPICH" in rank["mpi_library"]
        assert "Intel" not in rank["mpi_library"]
    identities = {rank["mpi_identity"] for rank in own["ranks"]}
    assert identities.isdisjoint({rank["mpi_identity"] for rank in bound["ranks"]})


def test_by_hand_without_a_laptop_as_the_documents_say(site: Site) -> None:
    """The bundle came by any means: its own tool installs it, and runs it from the folder that it was installed to."""
    bundle = f"{WORKSPACE}/bundles/hello-mpi-1.0.0.tar"
    site.alice(
        f"mkdir fresh && cd fresh && tar -xf {bundle} deployer.pyz && python3 deployer.pyz install {bundle} --root R"
    )
    said = site.alice(
        "cd fresh && rm deployer.pyz && python3 R/deployer.pyz run hello-mpi --plan lab --wait --json 2>/dev/null"
    )
    assert json.loads(said)["exit_code"] == 0
    site.alice("cd fresh && python3 R/deployer.pyz remove --all && ls R && rm -r R && cd .. && rmdir fresh")


def test_dry_run_prints_the_script_and_submits_nothing(site: Site) -> None:
    before = site.alice("squeue -h; scontrol show jobs | grep -c JobId; true")
    text = site.tool("run", "hello-mpi", "--plan", "lab", "--nodes", "2", "--dry-run")
    assert text.startswith("#!/bin/bash -l")
    assert "--bind=/opt/intel/mpi/2021.15:/opt/intel/mpi/2021.15" in text
    assert site.alice("squeue -h; scontrol show jobs | grep -c JobId; true") == before


@pytest.mark.slow
def test_the_script_of_a_dry_run_gives_the_same_result_by_hand(site: Site) -> None:
    run = f"{PYTHON} {WORKSPACE}/deployer.pyz run hello-mpi --plan lab --nodes 2"
    text = site.alice(f"{run} --dry-run 2>/dev/null | tee hand.sh")
    folder = next(line[len("job=") :] for line in text.splitlines() if line.startswith("job="))
    site.alice("id=$(sbatch --parsable hand.sh) && while squeue -h -j $id | grep -q .; do sleep 0.3; done")
    by_hand = json.loads(site.alice(f"cat {folder}/result.json"))
    itself = site.run("--plan", "lab", "--nodes", "2")

    def lasting(result: dict[str, Any]) -> dict[str, Any]:
        """Return what of a result does not depend on when it was, and on what was measured."""
        ranks = [{**rank, "allreduce": None, "shm": None} for rank in result["ranks"]]
        return {**result, "ranks": ranks, "job": None, "job_id": None, "started": None, "seconds": None}

    assert by_hand["exit_code"] == 0
    assert lasting(by_hand) == lasting(itself)


def test_a_job_whose_submission_had_no_answer_is_found_by_its_script(site: Site) -> None:
    said = site.tool("run", "hello-mpi", "--plan", "lab", "--nodes", "2", "--wait", "--json", "2>/dev/null")
    job = json.loads(said)
    site.alice(f"rm {job['folder']}/job_id")  # as sbatch leaves it if it ends without an answer
    found = json.loads(site.tool("status", job["job"], "--json"))
    assert (found["job_id"], found["state"]) == (job["job_id"], "COMPLETED")


def test_the_script_of_the_how_to(site: Site, tmp_path: Path) -> None:
    """Each record that it reads is checked against its schema, too."""
    page = (ROOT / "docs" / "how-to" / "a-script.md").read_text()
    (tmp_path / "scaling.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    (tmp_path / "deployer").mkdir()
    (tmp_path / "deployer" / "config.yaml").write_text(f"ssh_config: {site.lab.ssh_config}\n")
    program = tmp_path / "bin" / "deployer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n"{ROOT}/.venv/bin/deployer" "$@" | tee "$0.$1"\n')
    program.chmod(0o755)
    environment = {**site.cli.environment, "XDG_CONFIG_HOME": str(tmp_path)}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    definition = tmp_path / "scaled"  # a name of its own: other tests run hello-mpi with its plans
    shutil.copytree(ROOT / "bundles" / "hello-mpi", definition)
    text = (definition / "bundle.yaml").read_text()
    (definition / "bundle.yaml").write_text(text.replace("name: hello-mpi", "name: scaled"))
    words = [sys.executable, "scaling.py", definition, "lab"]
    said = subprocess.check_output(words, cwd=tmp_path, env=environment, text=True, timeout=600)
    rows = [line.split(maxsplit=4) for line in said.splitlines()]
    assert [row[:3] for row in rows] == [["1", "COMPLETED", "0"], ["2", "COMPLETED", "0"]]
    assert all(row[4].startswith("Intel(R) MPI Library 2021.15") for row in rows)
    for command in "build", "pack", "check", "push", "run", "result":
        record = json.loads((tmp_path / "bin" / f"deployer.{command}").read_text())
        checked_records.check(command, record)
    site.cli("remove", *site.options, "scaled")


def test_exec_has_the_plans_binds_and_environment(site: Site) -> None:
    code = "import os; print(os.environ['LD_LIBRARY_PATH'], sorted(os.listdir('/opt/intel/mpi/2021.15/lib'))[:1])"
    said = site.tool("exec", "hello-mpi", "--plan", "lab", "--", "python3", "-c", f'"{code}"')
    assert said.startswith("/opt/intel/mpi/2021.15/lib")
    assert (
        site.tool("exec", "hello-mpi", "--plan", "lab", "--", "python3", "-c", "'import sys; sys.exit(7)'", code=7)
        == ""
    )


def test_a_job_cannot_write_to_the_image_nor_to_a_file_of_the_app(site: Site) -> None:
    """The image by its mount, the app by its modes: ch-run's binds are writable."""
    code = "import os; print([os.access(p, os.W_OK) for p in ('/', '/deployer/app/hello.py', '/deployer/app')])"
    said = site.tool("exec", "hello-mpi", "--plan", "lab", "--", "python3", "-c", f'"{code}"')
    assert said == "[False, False, True]\n"


def test_exec_leaks_nothing_of_the_host(site: Site) -> None:
    said = site.alice(
        f"export SECRET_TOKEN=1; python3 {WORKSPACE}/deployer.pyz exec hello-mpi --plan lab -- "
        "python3 -c 'import os; print(sorted(os.environ))'"
    )
    assert "SECRET_TOKEN" not in said


def test_bind_adds_data(site: Site) -> None:
    site.alice("mkdir -p data && echo 42 > data/answer")
    said = site.tool(
        "exec",
        "hello-mpi",
        "--plan",
        "lab",
        "--bind",
        "$HOME/data:/data",
        "--",
        "python3",
        "-c",
        "\"print(open('/data/answer').read())\"",
    )
    assert said.strip() == "42"
    assert "error" in site.tool("exec", "hello-mpi", "--plan", "lab", "--bind", "/nowhere:/data", "--", "true", code=2)


def test_shell_runs_what_is_typed(site: Site) -> None:
    said = site.alice(
        f"echo 'echo in $PWD; ls /deployer' | python3 {WORKSPACE}/deployer.pyz shell hello-mpi --plan lab"
    )
    assert "deployer.pyz" in said


def test_a_second_push_and_install_know_the_bundle(site: Site, bundle: Path) -> None:
    done = site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config, "--json")
    assert json.loads(done.stdout)["sent"] == 0
    assert "already installed" in site.tool("install", f"{WORKSPACE}/bundles/hello-mpi-1.0.0.tar")


def test_push_shows_the_progress_of_the_install_on_a_terminal(site: Site, tmp_path: Path) -> None:
    bundle = tmp_path / "progress.tar"
    image = ["--image", "deployer/hello-mpi:1.0.0", "--name", "progress", "--version", "1"]
    site.cli("pack", *image, "--site", "lab", "-o", bundle)
    argv = [ROOT / ".venv" / "bin" / "deployer", "push", bundle, "lab", "--ssh-config", site.lab.ssh_config]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))  # without columns there is no bar
    environment = {**site.cli.environment, "TERM": "xterm"}
    try:
        with subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=theirs) as push:
            os.close(theirs)
            shown = b""
            with suppress(OSError):  # the terminal's end, when the last of its writers has ended
                while data := os.read(ours, 4096):
                    shown += data
        assert push.returncode == 0, shown
        assert b"\rinstall: " in shown  # so small a bundle is installed before the bar moves far
        assert b"deployer-progress" not in shown
    finally:
        os.close(ours)
        site.cli("remove", *site.options, "progress", "--force")


def test_packing_again_gives_the_same_bytes(site: Site, bundle: Path, no_bind: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    site.cli("pack", "bundles/hello-mpi", *SITES, "--site", no_bind, "-o", again)
    assert again.read_bytes() == bundle.read_bytes()


def test_gzip_serves_sites_without_libzstd(built: Cli, tmp_path: Path) -> None:
    path = tmp_path / "gzip.tar"
    built("pack", "bundles/hello-mpi", "--codec", "gzip", "-o", path)
    assert "is intact" in built("verify", path).stdout


@pytest.mark.needs("skopeo", "podman", "zstd")
def test_tools_that_are_not_ours_read_it(site: Site, bundle: Path, tmp_path: Path) -> None:
    def tool(*argv: object) -> str:
        return subprocess.run(
            list(map(str, argv)), capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path
        ).stdout

    inspected = json.loads(tool("skopeo", "inspect", f"oci-archive:{bundle}"))
    assert inspected["Architecture"] == "amd64"
    with tempfile.TemporaryDirectory(prefix="podman-") as store:  # podman takes no path over 50 characters
        options = ["--root", f"{store}/root", "--runroot", f"{store}/run", "--storage-driver", "vfs"]
        assert "hello-mpi" in tool("podman", *options, "load", "-i", bundle)
    layer = inspected["Layers"][0].replace(":", "/")
    (tmp_path / "tree").mkdir()
    script = f"tar -xOf {bundle} blobs/{layer} | zstd -dc | tar -x -C tree"
    tool("sh", "-c", script)
    digest = site.tool("list", "--json")
    folder = next(image["folder"] for image in json.loads(digest)["images"] if image["name"] == "hello-mpi")
    installed = (site.lab.home / Path(folder).relative_to("/home") / "rootfs").resolve()  # a link to its layer's
    compared = ["diff", "-r", "--no-dereference", str(tmp_path / "tree"), str(installed)]
    for line in subprocess.run(compared, capture_output=True, text=True, timeout=120, check=False).stdout.splitlines():
        found = re.fullmatch(r"Only in (.+): (.+)", line)
        assert found, line
        made = Path(found[1], found[2])  # a mount point, which is made at install, and no part of the layer
        assert made.is_relative_to(installed), line
        assert all(path.is_dir() for path in (made, *made.rglob("*"))), line
