"""result --follow with real ssh and Slurm: files of a running job arrive while it runs, through a cut line too."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Cli
from tests.lab import Lab

#: Writes a metric each second, an event file of over 1 MiB to which it appends, and a checkpoint that it replaces.
_PROGRAM = """
import os, pathlib, time
job = pathlib.Path("/deployer/job")
(job / "tb").mkdir()
open(job / "large.bin", "wb").truncate(101_000_000)
for step in range(int(os.environ.get("STEPS", "16"))):
    with open(job / "metrics.csv", "a") as stream:
        print(step, time.time(), file=stream)
    with open(job / "tb" / "events.out.tfevents.1", "ab") as stream:
        stream.write(bytes([step]) * 200_000)
    if step % 5 == 0:
        with open(job / "new", "wb") as stream:
            stream.write(os.urandom(2_000_000))
        os.rename(job / "new", job / "checkpoint.bin")
    time.sleep(1)
"""


def _until(path: Path, ours: "subprocess.Popen[bytes]", enough: int) -> str:
    """Wait until a file has some lines. Return it."""
    end = time.monotonic() + 60
    while not path.is_file() or path.read_text().count("\n") < enough:
        assert ours.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    return path.read_text()


def _connection(pid: int) -> int:
    """Return the process of a command's open connection."""
    shown = subprocess.run(["pgrep", "-P", str(pid), "-f", "ControlMaster=yes"], capture_output=True, check=True).stdout
    return int(shown)


@pytest.mark.timeout(300)
def test_files_of_a_running_job_arrive_through_a_cut_line(built: Cli, lab: Lab, tmp_path: Path) -> None:
    settings = {"DEPLOYER_SITE": "lab", "DEPLOYER_SSH_CONFIG": str(lab.ssh_config)}
    cli = Cli({**built.environment, **settings, "XDG_CONFIG_HOME": str(tmp_path)})
    definition = tmp_path / "hello-follow"
    shutil.copytree(ROOT / "bundles" / "hello-mpi", definition)
    text = (definition / "bundle.yaml").read_text()
    (definition / "bundle.yaml").write_text(text.replace("name: hello-mpi\n", "name: hello-follow\n"))
    (definition / "app" / "hello.py").write_text(_PROGRAM)
    words = ["deploy", definition, "lab", "hello", "--nodes", "1", "--ranks-per-node", "1", "-o", tmp_path / "b.tar"]
    job = json.loads(cli(*words, "--no-follow", "--json").stdout)["job"]

    copy = tmp_path / "copy"
    argv = [ROOT / ".venv" / "bin" / "deployer", "result", "--follow", "-o", copy, "--every", "1", "--json", job]
    with (
        open(tmp_path / "said", "wb") as said,
        subprocess.Popen(argv, cwd=ROOT, env=cli.environment, stdout=subprocess.PIPE, stderr=said) as ours,
    ):
        try:
            arrived = _until(copy / "metrics.csv", ours, 2)
            assert time.time() - float(arrived.split()[-1]) < 10
            os.kill(_connection(ours.pid), signal.SIGKILL)
            _until(copy / "metrics.csv", ours, arrived.count("\n") + 4)
            shown, _ = ours.communicate(timeout=120)
        finally:
            ours.kill()
    errors = (tmp_path / "said").read_text()
    assert ours.returncode == 0, errors
    assert "trying again in 1 s" in errors
    assert "not copied, because of the size: large.bin" in errors
    assert json.loads(shown)["result"]["ranks"]

    whole = tmp_path / "whole"
    cli("result", job, "-o", whole)
    _same_files(whole, copy)

    again = cli(*words, "--follow", tmp_path / "deployed", "--env", "STEPS=3")
    (deployed,) = (tmp_path / "deployed").iterdir()
    assert f"copied to {deployed}" in again.stderr
    cli("result", deployed.name, "-o", tmp_path / "second")
    _same_files(tmp_path / "second", deployed)


def _same_files(whole: Path, copy: Path) -> None:
    names = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()} - {"large.bin"}
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} - {".deployer-job"}
    # job.sh removes the batch system's own log, which may have been copied before
    assert names == {name for name in copied if name in names or not name.startswith("batch-system-")}
    assert [name for name in names if (whole / name).read_bytes() != (copy / name).read_bytes()] == []
