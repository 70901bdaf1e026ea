"""push on a real line with real OpenSSH: cuts, odd login shells, full disks, one authentication."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests import bundles
from tests.integration.conftest import ROOT, WORKSPACE, Cli
from tests.lab import Lab

#: A cut may cost one part, and what the line says beside its payload (TCP, ssh, the list of what is held).
PART = 8 * 1024 * 1024
BESIDE = 512 * 1024

#: A part takes a second on the line.
RATE = "40mbit"


@pytest.fixture(autouse=True)
def _mended(lab: Lab) -> Iterator[None]:
    """Bring the lab into order after each test, and remove what it put on the site."""
    yield
    lab.up()
    alice(lab, f"rm -rf {WORKSPACE}/incoming/* {WORKSPACE}/bundles/tiny* $HOME/.bashrc $HOME/scratch/*")
    alice(lab, f"for i in $(grep -ls '\"tiny\"' {WORKSPACE}/images/*/receipt.json); do rm -rf $(dirname $i); done")


def alice(lab: Lab, script: str) -> str:
    done = lab.sh("login1", "alice", script, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make(path: Path, megabytes: int, version: str, seed: int = 0) -> Path:
    """Write a bundle of that size that nothing compresses and no other bundle has a piece of."""
    chance = random.Random(f"{seed} {version}")
    extra = [(f"deployer/wheels/{number}", chance.randbytes(1_000_000)) for number in range(megabytes)]
    path.write_bytes(bundles.build(extra=extra, version=version))
    return path


def push(cli: Cli, lab: Lab, bundle: Path, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    options = ["--without-plan", "--ssh-config", lab.ssh_config]
    return cli("push", bundle, "lab", *options, *words, code=code)


def assert_kept(lab: Lab, bundle: Path, version: str) -> None:
    there = alice(lab, f"sha256sum {WORKSPACE}/bundles/tiny-{version}.tar").split()[0]
    here = subprocess.run(["sha256sum", bundle], capture_output=True, text=True, check=True).stdout.split()[0]
    assert there == here
    assert alice(lab, f"ls -A {WORKSPACE}/incoming") == ""


# ---------------------------------------------------------------- cuts


def sent_by_the_laptop(lab: Lab) -> int:
    """Return the bytes that left the laptop's wire so far."""
    table = Path(f"/proc/{lab.holder('laptop')}/net/dev").read_text()
    return int(next(line for line in table.splitlines() if "out0:" in line).split(":")[1].split()[8])


def children(pid: int) -> list[int]:
    """Return the ssh processes below ``pid``, those that carry commands first."""
    found = []
    for name in os.listdir("/proc"):
        try:
            parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            if name.isdigit() and parent == pid and Path("/proc", name, "comm").read_text() == "ssh\n":
                found.append(int(name))
        except (OSError, ValueError):
            continue
    return found


def cut(lab: Lab, child: "subprocess.Popen[str]", kind: str) -> str:
    """Cut a running push; return what it said, empty when it was done before."""
    if kind == "laptop":
        child.kill()
    elif kind == "ssh":
        while not children(child.pid) and child.poll() is None:
            time.sleep(0.02)
        for pid in children(child.pid):
            with suppress(ProcessLookupError):  # it ended by itself
                os.kill(pid, signal.SIGKILL)
    else:
        lab.fault("link-down", "laptop")
    _, said = child.communicate(timeout=120)
    if kind == "line":
        lab.fault("link-up", "laptop")
        lab.fault("link-slow", "laptop", RATE)
    if child.returncode == 0:
        return ""
    assert child.returncode == (-signal.SIGKILL if kind == "laptop" else 5), said
    assert kind == "laptop" or ("deployer: error: " in said and "hint: " in said and "Traceback" not in said)
    return said or kind


def push_with_cuts(cli: Cli, lab: Lab, tmp_path: Path, cuts: int, megabytes: int, seed: int) -> None:
    """Push bundle after bundle, each again and again, until ``cuts`` cuts fell into a push that ran."""
    chance = random.Random(seed)
    push(cli, lab, make(tmp_path / "first.tar", 0, "0"))  # the site half is there from now on
    done = number = 0
    while done < cuts:
        number += 1
        bundle = make(tmp_path / "b.tar", megabytes, f"{number}", seed)
        lab.fault("link-slow", "laptop", RATE)
        before, mine = sent_by_the_laptop(lab), 0
        argv = [
            ROOT / ".venv" / "bin" / "deployer",
            "push",
            bundle,
            "lab",
            "--without-plan",
            "--ssh-config",
            lab.ssh_config,
        ]
        while done < cuts:
            child = subprocess.Popen(
                argv, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            time.sleep(chance.uniform(0.8, 3.5))
            if not cut(lab, child, chance.choice(["laptop", "ssh", "ssh", "line"])):
                break
            done += 1
            mine += 1
        lab.fault("link-up", "laptop")
        push(cli, lab, bundle)
        assert_kept(lab, bundle, f"{number}")
        cost = sent_by_the_laptop(lab) - before - bundle.stat().st_size
        assert cost <= mine * PART + (mine + 2) * BESIDE + bundle.stat().st_size // 50, f"{mine} cuts cost {cost}"
        print(f"bundle {number}: {mine} cuts cost {cost} bytes")


@pytest.mark.timeout(300)
def test_a_few_cuts(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    push_with_cuts(cli, lab, tmp_path, cuts=2, megabytes=16, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_cuts(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    push_with_cuts(cli, lab, tmp_path, cuts=50, megabytes=60, seed=50)


# ---------------------------------------------------------------- the far end


def test_a_disk_that_fills_up_meanwhile(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    record = yaml.safe_load((ROOT / "site_profiles" / "lab.yaml").read_text())
    record["workspace"] = "/home/alice/scratch/deployer"
    (tmp_path / "scratch.yaml").write_text(yaml.safe_dump(record))
    bundle = make(tmp_path / "b.tar", 16, "1")
    argv = [
        ROOT / ".venv/bin/deployer",
        "push",
        bundle,
        tmp_path / "scratch.yaml",
        "--without-plan",
        "--ssh-config",
        lab.ssh_config,
    ]
    lab.fault("link-slow", "laptop", "40mbit")
    child = subprocess.Popen(argv, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if alice(lab, "find scratch/deployer/incoming -name '*.begun' -size +8192 2>/dev/null; true"):
            break
        time.sleep(0.1)
    lab.fault("disk-full")
    _, said = child.communicate(timeout=60)
    assert child.returncode == 6, said
    assert "no space" in said.lower()
    assert "hint: " in said
    assert alice(lab, "ls -A scratch/deployer/images; ls scratch/deployer/bundles 2>/dev/null; true") == ""
    assert ".tmp" not in alice(lab, "ls scratch/deployer/incoming/*")
    lab.fault("disk-free")
    again = json.loads(cli(*argv[1:], "--json").stdout)
    assert again["sent"] < bundle.stat().st_size - 4_000_000


@pytest.mark.needs("tcsh")
def test_a_login_shell_that_is_tcsh_and_prints_noise(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    # sshd's bash reads .bashrc: from there on it is a tcsh that was given the same command line.
    noise = 'echo "Welcome to login1!"; echo "{}"; echo "motd" >&2\n'
    (lab.home / "alice" / ".bashrc").write_text(
        f'{noise}[ -z "$BASH_EXECUTION_STRING" ] || exec tcsh -c "$BASH_EXECUTION_STRING"\n'
    )
    assert lab.ssh("echo $version").stdout.splitlines()[-1].startswith("tcsh")
    alice(lab, f"rm -f {WORKSPACE}/deployer.pyz")
    bundle = make(tmp_path / "b.tar", 6, "1")
    push(cli, lab, bundle)
    assert_kept(lab, bundle, "1")


def test_one_authentication_and_none_with_the_users_own_master(
    cli: Cli, lab: Lab, tmp_path: Path, counted: tuple[Path, Path]
) -> None:
    config, log = counted
    push(cli, lab, make(tmp_path / "a.tar", 1, "1"), "--ssh-config", config)
    assert len(log.read_text()) == 1
    short = tempfile.mkdtemp(prefix="deployer-test-")  # tmp_path is too long for a socket
    config.write_text(config.read_text() + f"  ControlMaster auto\n  ControlPath {short}/%C\n  ControlPersist 60\n")
    subprocess.run(["ssh", "-F", config, "login1", "true"], check=True, stderr=subprocess.DEVNULL)
    push(cli, lab, make(tmp_path / "b.tar", 1, "2"), "--ssh-config", config)
    assert len(log.read_text()) == 2
    subprocess.run(["ssh", "-F", config, "-O", "exit", "login1"], check=True, capture_output=True)
    shutil.rmtree(short, ignore_errors=True)  # the master answers first, and takes its socket away then


def test_without_multiplexing(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    long = tmp_path / ("long" * 30)  # a socket's path has at most 107 bytes
    long.mkdir()
    bundle = make(tmp_path / "b.tar", 6, "1")
    push(Cli({**cli.environment, "TMPDIR": str(long)}), lab, bundle)
    assert_kept(lab, bundle, "1")


def test_through_a_transfer_host(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    bundle = make(tmp_path / "b.tar", 12, "1")
    push(cli, lab, bundle, "--transfer-host", "login1")
    assert_kept(lab, bundle, "1")


def test_media(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    bundle = make(tmp_path / "b.tar", 6, "1")
    cli("push", bundle, "--to", tmp_path / "media")
    subprocess.run(["scp", "-qrF", lab.ssh_config, tmp_path / "media", "login1:media"], check=True)
    python = "$(ls /opt/python/3.6/bin/python3.6 2>/dev/null || echo python3)"
    assert "digest sha256:" in alice(lab, f"{python} media/deployer.pyz receive media --root {WORKSPACE}; rm -rf media")
    assert_kept(lab, bundle, "1")
