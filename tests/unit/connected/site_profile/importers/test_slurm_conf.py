"""slurm.conf with gres.conf and included files."""

from pathlib import Path

import pytest

from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.importers import slurm_conf
from deployer.connected.site_profile.importers.draft import Draft
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import UsageError
from tests.lab import config
from tests.lab.site import Site

SLURM = """\
# a cluster
ClusterName=Big  # its name
SlurmctldHost=ctl
GresTypes=gpu
NodeName=DEFAULT ThreadsPerCore=2 State=UNKNOWN
include /etc/slurm/nodes.conf
NodeName=cpu[001-100,110] Sockets=2 CoresPerSocket=24 \\
    RealMemory=190000 Feature=skylake,cpu
PartitionName=DEFAULT MaxTime=2-0 MaxNodes=16
PartitionName=test Nodes=cpu[001-002] MaxTime=30
PARTITIONNAME=main Default=YES Nodes=cpu[001-100],cpu110,gpu[1-4] QOS=limits AllowGroups=staff
PartitionName=gone Nodes=cpu001 State=DOWN
"""
NODES = """\
NodeName=gpu[1-4] Sockets=2 CoresPerSocket=16 RealMemory=512000 MemSpecLimit=2000 \\
    Gres=gpu:a100:4(S:0-1) Feature=a100
"""
GRES = "NodeName=gpu[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-15\n"


def draft(tmp_path: Path, **texts: str) -> Draft:
    paths = [tmp_path / f"{name}.conf" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return importers.draft(paths)


def test_facts(tmp_path: Path) -> None:
    found = draft(tmp_path, slurm=SLURM, nodes=NODES, gres=GRES)
    tree = found.tree()
    assert tree["name"] == "big"
    assert tree["scheduler"] == {"kind": "slurm", "gpu_request": "gres"}
    skylake = {"sockets": 2, "cores": 48, "threads_per_core": 2, "memory_mb": 190000}
    parts = tree["partitions"]
    assert parts["test"] == {"nodes": 2, "max_nodes": 16, "max_time": "0-00:30:00", "node": skylake}
    # Two kinds of node, which features tell apart.
    assert parts["main-a100"] == {
        "queue": "main", "constraint": "a100", "nodes": 4, "max_nodes": 16, "max_time": "2-00:00:00",
        "node": {
            "sockets": 2, "cores": 32, "threads_per_core": 2, "memory_mb": 510000,
            "gpus": {"count": 4, "type": "a100", "kind": "nvidia"},
        },
    }  # fmt: skip
    assert (parts["main-cpu"]["nodes"], parts["main-cpu"]["node"]) == (101, skylake)
    assert next(iter(parts)).startswith("main-")  # the default
    assert found.sources()["partitions.test.node.cores"] == ["slurm.conf:7"]
    (tmp_path / "draft.yaml").write_text(found.yaml())
    assert load(str(tmp_path / "draft.yaml")).partitions["main-a100"].constraint == "a100"


def test_the_labs_own_file_agrees_with_its_profile(tmp_path: Path) -> None:
    """Slurm itself starts from this text (docs/lab.md)."""
    site = Site(compute_nodes=2, host_cpus=(0, 1), memory_mb=8000)
    tree = draft(tmp_path, slurm=config.slurm_conf(site)).tree()
    known = load("lab")
    assert tree["name"] == known.name
    assert tree["scheduler"] == {"kind": "slurm"}
    node = known.partitions["batch"].node
    assert node is not None
    assert tree["partitions"]["batch"] == {
        "nodes": known.partitions["batch"].nodes,
        "max_time": "infinite",
        "node": node.model_dump(exclude_unset=True),
    }


def test_what_is_not_expressed(tmp_path: Path) -> None:
    found = draft(tmp_path, slurm=SLURM, gres=GRES)
    said = {str(each) for each in found.unexpressed}
    assert "slurm.conf:6: an included file that was not given: /etc/slurm/nodes.conf" in said
    unknown = "main: 4; so its number and kind of nodes are not known"
    assert f"slurm.conf:11: nodes that the files do not describe: {unknown}" in said
    assert set(found.tree()["partitions"]["main"]) == {"max_nodes", "max_time"}
    assert "slurm.conf:11: who may use a partition: main: allowgroups=staff" in said
    assert "slurm.conf:12: a partition that is not in use: gone State=DOWN" in said
    assert "gres.conf:1: which cores are near a GPU: 0-15" in said


def test_a_template_is_not_a_configuration(tmp_path: Path) -> None:
    text = """NodeName={{ node }} CPUs={{ cpus }}
PartitionName=a Nodes={{ ','.join(nodes) }}
PartitionName=b Nodes=n1
"""
    found = draft(tmp_path, slurm=text)
    assert found.tree()["partitions"] == {"b": {}}
    assert [each.origin.line for each in found.unexpressed if each.kind == "a line of a template"] == [1, 2]


def test_an_include_does_not_read_files_that_were_not_given(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("PartitionName=secret\n")
    found = draft(tmp_path, slurm=f"ClusterName=a\nInclude {tmp_path}/secret\nInclude secret\n")
    assert "partitions" not in found.tree()


def test_different_nodes_without_a_telling_feature_have_only_common_facts(tmp_path: Path) -> None:
    text = """NodeName=a Sockets=2 CoresPerSocket=8 RealMemory=1000
NodeName=b Sockets=2 CoresPerSocket=16 RealMemory=1000
PartitionName=p Nodes=ALL MaxTime=INFINITE
"""
    found = draft(tmp_path, slurm=text)
    assert found.tree()["partitions"] == {
        "p": {
            "nodes": 2,
            "max_time": "infinite",
            "node": {"sockets": 2, "threads_per_core": 1, "memory_mb": 1000},
        }
    }
    assert "a partition of different nodes" in {each.kind for each in found.unexpressed}


@pytest.mark.parametrize(
    "text",
    [
        "NodeName=n[1-999999999]\n",
        "NodeName=n[1-9999]x[1-9999]\n",
        "NodeName=n[1-" + "9" * 5000 + "]\n",
        "ClusterName=a\nInclude slurm.conf\n",
    ],
)
def test_too_many_nodes_and_circles(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"more than 200000 nodes|in a circle"):
        draft(tmp_path, slurm=text)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("90", "0-01:30:00"),
        ("10:30", "0-00:10:30"),
        ("36:00:00", "1-12:00:00"),
        ("7-12", "7-12:00:00"),
        ("UNLIMITED", "infinite"),
    ],
)
def test_times_of_slurm(tmp_path: Path, written: str, read: str) -> None:
    tree = draft(tmp_path, slurm=f"PartitionName=p MaxTime={written}\n").tree()
    assert tree["partitions"]["p"]["max_time"] == read


def test_an_included_file_is_read_where_it_is_included(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_text("NodeName=DEFAULT RealMemory=7000\nNodeName=b\nPartitionName=p Nodes=a,b\n")
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nNodeName=a\nInclude /etc/nodes.conf\n")
    paths = [tmp_path / "nodes.conf", tmp_path / "slurm.conf"]
    found, other = importers.draft(paths, name="c"), importers.draft(paths[::-1], name="c")
    assert found.get("partitions", "p", "node", "memory_mb") is None
    assert found.tree()["partitions"] == other.tree()["partitions"]
    assert found.unexpressed == other.unexpressed


@pytest.mark.parametrize(
    "nodes",
    ["n" * 257, "n" * 200 + "[1-9]" + "m" * 100, "n" + "[]" * 200, f"n[{'0' * 5000}1-2]", f"n[{'0' * 5000}-1]"],
)
def test_long_names_of_nodes_are_refused(tmp_path: Path, nodes: str) -> None:
    with pytest.raises(UsageError, match=r"slurm\.conf:1: .*more than"):
        draft(tmp_path, slurm=f"NodeName={nodes}\n")


def test_nodes_that_many_lines_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_conf, "_MAX_MEMBERS", 4000)
    with pytest.raises(UsageError, match="nodes together"):
        draft(tmp_path, slurm="NodeName=n[1-90]\n" * 50)
