"""Ranks without MPI find each other on two nodes of the lab, and jobs whose ranks cannot end before their payload."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import WORKSPACE, Cli, Site
from tests.lab import Lab

#: Each rank tells the first one by TCP what it got.
HELLO = """
import json, os, socket
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GLOO_SOCKET_IFNAME"
own = [os.environ[name] for name in names]
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.create_server(place)
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump([own, json.loads(server.accept()[0].recv(1000))], stream)
else:
    for attempt in range(100):
        try:
            connection = socket.create_connection(place, 10)
            break
        except ConnectionRefusedError:
            import time; time.sleep(0.1)
    connection.sendall(json.dumps(own).encode())
"""

#: As PyTorch's tutorials do it.
TRAIN = """
import json, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(10, 5))
model(torch.randn(20, 10)).sum().backward()
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
if dist.get_rank() == 0:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump({"world": dist.get_world_size(), "sum": total.item()}, stream)
dist.destroy_process_group()
"""

#: A program that does not use what it gets: a world of one rank on each node.
ALONE = """
import time
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29771", rank=0, world_size=1)
time.sleep(8)
"""


def define(folder: Path, name: str, base: str, jobs: str, **programs: str) -> Path:
    """Write a definition without MPI."""
    (folder / "app").mkdir(parents=True)
    (folder / "bundle.yaml").write_text(f"name: {name}\nversion: '1'\nbase: {base}\nmpi: []\njobs:\n{jobs}")
    for program, text in programs.items():
        (folder / "app" / f"{program}.py").write_text(text)
    return folder


@pytest.fixture
def wrong_network(lab: Lab) -> Iterator[str]:
    """Yield an interface of both nodes that leads nowhere, as a fabric whose cables are out."""
    for number, node in enumerate(("cn1", "cn2"), 1):
        make = f"ip link add fab0 type bridge && ip addr add 10.77.0.{number}/24 dev fab0 && ip link set fab0 up"
        lab.sh(node, "root", make).check("make an interface")
    yield "fab0"
    for node in ("cn1", "cn2"):
        lab.sh(node, "root", "ip link delete fab0")


def pushed(built: Cli, lab: Lab, definition: Path, bundle: Path) -> Site:
    built("build", definition, timeout=900)
    built("pack", definition, "--site", "lab", "-o", bundle)
    built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
    return Site(built, lab)


def test_ranks_meet_or_the_job_ends_before_them(built: Cli, lab: Lab, tmp_path: Path, wrong_network: str) -> None:
    jobs = '  hello: {command: [python3, /deployer/app/hello.py], nodes: 2, time: "00:03:00"}\n'
    definition = define(tmp_path / "meet", "meet", "{debian: bookworm, include: [python3]}", jobs, hello=HELLO)
    site = pushed(built, lab, definition, tmp_path / "meet.tar")
    try:
        result = site.run(bundle="meet")
        assert (result["exit_code"], result["findings"], result["world_size"]) == (0, [], 2)
        assert result["payload"] == [[rank, "2", "0", "1", rank, "eth0"] for rank in ("0", "1")]
        assert (result["network"]["nodes"], len(result["network"]["connections"])) == (2, 2)
        assert result["network"]["bandwidth_mb_s"] > 1
        result = site.run("--env", f"GLOO_SOCKET_IFNAME={wrong_network}", bundle="meet", code=1)
        assert [(item["code"], item["subject"]) for item in result["findings"]] == [("net.unreachable", "cn2")]
        assert (result["exit_code"], result["payload"]) == (3, None)
        assert result["seconds"] < 40  # within 10 s; starting the steps takes the rest
        result = site.run("--env", "GLOO_SOCKET_IFNAME=ib0", bundle="meet", code=1)
        assert [item["code"] for item in result["findings"]] == ["net.none"]
    finally:
        built("remove", *site.options, "meet")


@pytest.fixture(scope="module")
def torch(built: Cli, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a lab with a bundle of Debian's PyTorch, whose jobs start in each way."""
    folder = tmp_path_factory.mktemp("torch")
    base = "{debian: trixie, include: [python3, python3-numpy, python3-torch]}"
    jobs = "".join(
        f'  {name}: {{command: [python3, /deployer/app/{program}.py], nodes: 2, time: "00:05:00", launch: {launch}, '
        'environment: {USE_LIBUV: "0"}}\n'  # Debian's PyTorch is built without; so its torchrun does not work
        for name, program, launch in (
            ("ranks", "train", "ranks"),
            ("node", "train", "node"),
            ("alone", "alone", "ranks"),
        )
    )
    site = pushed(built, lab, define(folder / "d", "torch", base, jobs, train=TRAIN, alone=ALONE), folder / "torch.tar")
    yield site
    built("remove", *site.options, "torch")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", ["ranks", "node"])
def test_each_way_to_launch_makes_one_world(torch: Site, job: str) -> None:
    torch.cli("run", *torch.options, "torch", job, "--wait", timeout=900)
    result = torch.result()
    assert (result["exit_code"], result["findings"], result["world_size"]) == (0, [], 2)
    assert result["payload"] == {"world": 2, "sum": 3.0}
    for rank in result["ranks"]:
        communication: dict[str, Any] = rank["communication"]
        assert communication["connected"] is not False
        assert any("libtorch_cpu" in item["path"] for item in communication["libraries"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_torchrun_starts_the_workers_of_its_node(built: Cli, lab: Lab, tmp_path: Path) -> None:
    """With PyTorch's own wheel for CPUs: Debian's PyTorch has no libuv, which torchrun needs."""
    wheel = "torch==2.13.0+cpu"
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--python-version", "3.11"]
    words = [*asked, "--only-binary", ":all:", "--dest", str(tmp_path / "wheels"), wheel]
    if subprocess.run(words, capture_output=True, check=False, timeout=600).returncode:
        pytest.skip(f"pip finds no {wheel}: let its settings name a place with PyTorch's wheels for CPUs")
    jobs = '  train: {command: [python3, /deployer/app/train.py], nodes: 2, launch: torchrun, time: "00:05:00"}\n'
    definition = define(tmp_path / "d", "torchrun", "{debian: bookworm, include: [python3]}", jobs, train=TRAIN)
    (definition / "packages.txt").write_text(f"{wheel}\nnumpy\n")
    with (definition / "bundle.yaml").open("a") as stream:
        stream.write("python: {requirements: packages.txt}\n")
    site = pushed(built, lab, definition, tmp_path / "torchrun.tar")
    try:
        result = site.run(bundle="torchrun")
        assert (result["exit_code"], result["findings"]) == (0, [])
        assert result["payload"] == {"world": 2, "sum": 3.0}
        log = site.alice(f"cat $(ls -td {WORKSPACE}/jobs/* | head -n 1)/job.sh")
        assert "python3 -m torch.distributed.run --nnodes=2 --nproc_per_node=1" in log
    finally:
        built("remove", *site.options, "torchrun")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_worlds_of_one_are_found(torch: Site) -> None:
    torch.cli("run", *torch.options, "torch", "alone", "--wait", code=1, timeout=900)
    result = torch.result()
    assert [(item["code"], item["severity"]) for item in result["findings"]] == [("net.alone", "error")]
    assert [rank["communication"]["connected"] for rank in result["ranks"]] == [False, False]
