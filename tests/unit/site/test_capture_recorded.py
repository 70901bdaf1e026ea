"""capture of a site with several partitions and kinds of nodes, from recordings of real ones: see tests/mixed.py.

If a question of ``capture`` is not in the recordings, record again: docs/lab.md.
"""

import glob
import json
import os

import pytest

from deployer.contract.base.shell import quoted
from deployer.site.capture import machine, node
from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.capture.capture_files import merge
from deployer.site.capture.software import mpi
from deployer.site.capture.tools import Tools
from deployer.site.jobs.schedulers import SCHEDULERS
from tests import mixed
from tests import running as made

FOLDER = os.path.join(os.path.dirname(os.path.realpath(mixed.__file__)), "recordings")
RECORDINGS = sorted(glob.glob(os.path.join(FOLDER, "slurm-*.json")))
KERNEL = {"sockets": 9, "cores": 9, "threads_per_core": 9, "numa_domains": 1, "memory_total_mb": 9}


@pytest.fixture(params=RECORDINGS, ids=os.path.basename)
def recorded(request, tmp_path, monkeypatch):
    """Put programs into PATH that print what the real ones printed; return the recording."""
    return replay(tmp_path, monkeypatch, request.param)


def replay(folder, monkeypatch, path):
    with open(path) as stream:
        recording = json.load(stream)
    for program in {words.split()[0] for words in recording}:
        cases = [
            "{}) cat <<'EOF'\n{}\nEOF\n;;".format(quoted([words.partition(" ")[2]]), "\n".join(lines))
            for words, lines in recording.items()
            if words.split()[0] == program
        ]
        unknown = '*) echo "not recorded: $*" >&2; exit 9 ;;'
        made.program(folder, program, 'case "$*" in\n{}\n{}\nesac'.format("\n".join(cases), unknown))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("SLURM_JOB_PARTITION", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return recording


def test_there_are_recordings():
    assert [os.path.basename(path) for path in RECORDINGS] == [
        "slurm-22.05.json",
        "slurm-24.11.json",
        "slurm-26.05.json",
    ]


def test_each_field_of_each_partition(recorded):
    tools = Tools()
    found = SCHEDULERS["slurm"].facts(tools)
    assert found.partitions == mixed.TRUTH
    assert next(iter(found.partitions)) == "batch"  # the default one
    assert found.cluster == "mixed"
    assert found.spool == "/var/spool/slurmd"
    assert mixed.CLOSED in tools.notes
    assert not [note for note in tools.notes if "not recorded" in note]


@pytest.mark.parametrize("kind", mixed.KINDS, ids=["thin", "fat", "accelerated"])
def test_each_field_of_each_kind_of_nodes(recorded, kind):
    expected = {
        mixed.THIN: {"sockets": 2, "cores": 4, "threads_per_core": 1, "memory_mb": 8000},
        mixed.FAT: {"sockets": 1, "cores": 4, "threads_per_core": 2, "memory_mb": 31000},
        mixed.ACCELERATED: {
            "sockets": 2, "cores": 6, "threads_per_core": 1, "memory_mb": 16000, "gpus": {"type": "a100", "count": 4},
        },
    }  # fmt: skip
    for name in kind.nodes:
        assert SCHEDULERS["slurm"].own_node(Tools(), name) == expected[kind]


@pytest.mark.thorough
def test_a_node_says_of_its_partition_what_is_true_of_all_its_nodes(recorded, monkeypatch):
    """Which node the job gets does not matter: a second capture on another one shows no drift."""
    monkeypatch.setattr(node, "node", lambda tools: dict(KERNEL))
    monkeypatch.setattr(machine, "machine", lambda tools, words: {"runtimes": {}})
    monkeypatch.setattr(mpi, "_USUAL", ())
    login = capture(CaptureRequest(), SCHEDULERS.values())
    nodes = {"batch": ("cn1", "cn2"), "all-thin": ("cn1", "cn2"), "accelerated": ("cn4", "cn5"), "large": ("cn3",)}
    for partition, hosts in nodes.items():
        for host in hosts:
            monkeypatch.setenv("SLURMD_NODENAME", host)
            own = capture(CaptureRequest(node=True, partition=partition), SCHEDULERS.values())
            merged = merge([login, own]).profile["partitions"][partition]
            kernel = {key: KERNEL[key] for key in ("numa_domains", "memory_total_mb")}
            assert merged["node"] == dict(mixed.TRUTH[partition]["node"], **kernel)
    monkeypatch.setenv("SLURMD_NODENAME", "cn3")
    # an entry of the profile, with a queue of Slurm's
    own = capture(CaptureRequest(node=True, partition="mine"), SCHEDULERS.values())
    assert own.profile["partitions"]["mine"]["node"]["memory_mb"] == 31000
    assert "partition mine: Slurm reports cores 4, the kernel 9" in own.profile["notes"]


def test_each_field_of_a_real_grid_engine(tmp_path, monkeypatch):
    replay(tmp_path, monkeypatch, os.path.join(FOLDER, "gridengine-8.1.json"))
    tools = Tools()
    found = SCHEDULERS["gridengine"].facts(tools)
    assert found.partitions == mixed.OF_GRID_ENGINE
    assert found.scheduler == {"kind": "gridengine", "version": "8.1.9", "gpu_request": "gpu"}
    assert [note.partition(":")[0] for note in tools.notes] == ["partition batch"]  # its nodes differ in GPUs


def test_each_field_of_a_real_pbs(tmp_path, monkeypatch):
    replay(tmp_path, monkeypatch, os.path.join(FOLDER, "pbs-23.06.json"))
    tools = Tools()
    found = SCHEDULERS["pbs"].facts(tools)
    assert found.scheduler == {"kind": "pbs", "version": "23.06.06"}
    assert found.partitions == mixed.OF_PBS
    assert next(iter(found.partitions)) == "batch"  # the default queue leads there
    assert tools.notes == mixed.PBS_CLOSED


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", {"count": 4}),
        ("gpu:a100:4(S:0,2)", {"type": "a100", "count": 4}),
        ("gpu:2080ti:2", {"type": "2080ti", "count": 2}),
        ("gpu:tesla:no_consume:4", {"type": "tesla", "count": 4}),
        ("craynetwork:4,gpu:8", {"count": 8}),
        ("gpu:a100:4,gpu:v100:2", {"count": 6}),  # without a type, Slurm gives any of them
        ("gpu:a100:3(S:0),gpu:1g.5gb:7(S:1),shard:8", {"count": 10}),
        ("gpu:1g.5gb:7", {"type": "1g.5gb", "count": 7}),
        ("shard:8", None),
        ("(null)", None),
    ],
)
def test_gpus_in_the_words_of_slurm(tmp_path, monkeypatch, gres, gpus):
    made.program(tmp_path, "sinfo", f"echo 'p|1|2|24|2|96000|{gres}|1:00|1-16|96|(null)|n1'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert SCHEDULERS["slurm"].own_node(Tools(), "n1").get("gpus") == gpus
