"""capture HOST in the lab: one command makes a profile of its login node and of a node of each of two partitions."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from tests.integration.conftest import ROOT, Cli
from tests.lab import Lab

#: test_maintenance.py makes a profile with one command in each run of the smoke tier.
pytestmark = pytest.mark.slow


@pytest.fixture
def debug(lab: Lab) -> Iterator[str]:
    """Give the lab a second partition, of cn2 alone, for one test."""
    lab.sh("login1", "root", "scontrol create PartitionName=debug Nodes=cn2 MaxTime=60 State=UP").check("create it")
    yield "debug"
    lab.sh("login1", "root", "scontrol delete PartitionName=debug").check("delete it")


def words(lab: Lab, output: Path, *more: str) -> list[str]:
    return ["capture", "login1", "--ssh-config", str(lab.ssh_config), "-o", str(output), *more]


def test_one_command_makes_a_profile(cli: Cli, lab: Lab, debug: str, bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "lab.yaml"
    home = "find $HOME -not -path '*/.cache*' | sort; squeue --noheader"
    before = lab.sh("login1", "alice", home).stdout
    shown = json.loads(cli(*words(lab, output, "--dry-run", "--json")).stdout)
    assert list(shown["jobs"]) == ["batch", debug]
    assert "#SBATCH --partition=debug\n" in shown["jobs"][debug]
    said = json.loads(cli(*words(lab, output, "--json")).stdout)
    print(f"| capture HOST, login node and 2 partitions | {said['seconds']:.1f} s |")
    assert lab.sh("login1", "alice", home).stdout == before
    assert [(each["name"], each["state"]) for each in said["partitions"]] == [
        ("batch", "captured"),
        (debug, "captured"),
    ]
    assert [each["key"] for each in said["decisions"]] == [
        "workspace", "policy.runtimes", "partitions.batch.mpi", "partitions.debug.mpi",
    ]  # fmt: skip
    assert said["missing"] == []
    profile = profiles.load(str(output))
    assert (profile.name, profile.login.host) == ("lab", "login1")
    assert profile.login.reaches_nodes
    sources = {name: profile.partition(name)[1].source for name in profile.partitions}
    assert {name: source.where for name, source in sources.items() if source} == {"batch": "cn1", debug: "cn2"}
    for name in profile.partitions:
        plan = make_plan(profile, "tiny:1", (), name)
        assert plan.mpi is not None
        assert plan.mpi.identity is not None
    assert json.loads(cli("check", bundle, "--site", output, "--json").stdout)["verdict"] == "RUN"


def test_what_was_cut_continues_and_decisions_stay(cli: Cli, lab: Lab, debug: str, tmp_path: Path) -> None:
    output = tmp_path / "lab.yaml"
    lab.sh("login1", "alice", "sbatch --parsable -p debug --wrap 'sleep 600' -o /dev/null").check("occupy cn2")
    queue = "squeue --noheader --name=capture --partition=debug --format=%i"
    argv = [str(ROOT / ".venv" / "bin" / "deployer"), *words(lab, output)]
    with subprocess.Popen(argv, env=cli.environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        until = time.monotonic() + 120
        lines = []
        while not any("batch: captured" in line for line in lines) and time.monotonic() < until:
            lines.append(process.stderr.readline())
        process.send_signal(signal.SIGKILL)
    assert any(line.startswith("deployer: debug: waiting") for line in lines)
    (job,) = lab.sh("login1", "alice", queue).stdout.split()
    lab.sh("login1", "alice", "scancel --name=wrap").check("free cn2")
    said = json.loads(cli(*words(lab, output, "--json")).stdout)
    assert [each["state"] for each in said["partitions"]] == ["captured", "captured"]
    ended = lab.sh("login1", "alice", f"scontrol show job {job}").stdout
    assert "JobState=COMPLETED" in ended
    output.write_text(output.read_text().replace('"~/deployer"', '"/project/mine"'))
    again = cli(*words(lab, output, "--partitions", "batch", "--redact", "--json"))
    said = json.loads(again.stdout)
    assert (said["decisions"], [each["name"] for each in said["partitions"]]) == ([], ["batch"])
    assert profiles.load(str(output)).workspace == "/project/mine"
    text = output.with_name("lab-captured.json").read_text()
    assert not [word for word in ("alice", "login1", "cn1") if word in text]


def test_wrong_words_are_one_line(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    said = cli(*words(lab, tmp_path / "lab.yaml", "--partitions", "nope"), code=2).stderr
    assert "there is no partition nope" in said
    assert "hint: there are: batch" in said
