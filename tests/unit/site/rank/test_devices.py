"""Each rank sees its own GPUs, whoever counted them."""

import subprocess
import sys

import pytest

from deployer.site.rank import devices

CUDA = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("wanted", "given", "local", "own"),
    [
        ("1:" + CUDA, None, 2, "2"),  # nobody has said which: the driver's numbers
        ("2:" + CUDA, None, 1, "2,3"),
        ("1:" + CUDA, "4,6", 1, "6"),  # the batch system's
        ("1:" + CUDA, "GPU-5a,MIG-7b", 1, "MIG-7b"),
        (f"2:{CUDA}=2,3,0,1", "0,1,2,3", 1, "0,1"),  # the plan's, near the rank's CPUs
        ("1:ZE_AFFINITY_MASK", "0.0,0.1", 1, "0.1"),
    ],
)
def test_a_rank_sees_its_own(wanted, given, local, own):
    name = wanted.partition(":")[2].partition("=")[0]
    environment = {"LOCAL_RANK": str(local), **({name: given} if given else {})}
    assert devices.variables(wanted, environment) == {**environment, name: own}


def test_no_rank_shares_one_with_another(tmp_path):
    with pytest.raises(devices.TooFewDevices):
        devices.variables("1:" + CUDA, {"LOCAL_RANK": "2", CUDA: "0,1"})
    code = "import sys; from deployer.site.rank import rank; sys.exit(rank.main(sys.argv[1:]))"
    words = ["--out", str(tmp_path), "--meet", "1,4,,,", "--gpus", "2:" + CUDA, "--", "touch", str(tmp_path / "ran")]
    environment = {"SLURM_PROCID": "1", CUDA: "0,1,2", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, *words], env=environment, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert b"local rank 1 needs 2 GPUs after 2 others, but CUDA_VISIBLE_DEVICES names 3: 0,1,2" in done.stderr
    assert not (tmp_path / "ran").exists()
