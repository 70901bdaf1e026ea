"""`deployer profile import`: several files, files that are not what they seem, and what is printed."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import UsageError

SLURM = "ClusterName=one\nNodeName=n[1-2] Sockets=1 CoresPerSocket=4 Gres=gpu:4\nPartitionName=p Nodes=ALL\n"
GRES = "NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-3]\n"


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    (tmp_path / "slurm.conf").write_text(SLURM)
    (tmp_path / "gres.conf").write_text(GRES)
    return [str(tmp_path / "slurm.conf"), str(tmp_path / "gres.conf")]


def test_several_files_make_one_draft(tmp_path: Path, both: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "site.yaml"
    assert main(["profile", "import", *both, "-o", str(target), "--name", "here"]) == 0
    profile = load(str(target))
    assert (profile.name, list(profile.partitions)) == ("here", ["p"])
    assert "kind: slurm  # slurm.conf:3" in target.read_text()
    assert "kind: nvidia  # gres.conf:1" in target.read_text()
    assert f"in {target}; not expressed: 0" in capsys.readouterr().out


def test_an_existing_file_is_kept(tmp_path: Path, both: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "site.yaml"
    target.write_text("mine\n")
    assert main(["profile", "import", *both, "-o", str(target)]) != 0
    assert target.read_text() == "mine\n"
    assert f"{target} exists" in capsys.readouterr().err


def test_the_draft_goes_to_stdout_and_the_summary_apart(
    both: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["profile", "import", *both]) == 0
    shown = capsys.readouterr()
    (tmp_path / "out.yaml").write_text(shown.out)
    assert load(str(tmp_path / "out.yaml")).name == "one"
    assert "not expressed: 0" in shown.err


def test_a_record_for_programs(both: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "import", "--json", *both]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sources"]["partitions.p.node.gpus.kind"] == ["gres.conf:1"]
    assert record["profile"]["partitions"]["p"]["nodes"] == 2
    assert record["not_expressed"] == []


def test_contradictions_are_listed(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(SLURM + "PartitionName=p Nodes=n1\n")
    found = importers.draft([tmp_path / "slurm.conf"])
    assert found.tree()["partitions"]["p"]["nodes"] == 2
    assert "slurm.conf:4: partitions.p.nodes differs from slurm.conf:3: 1" in map(str, found.unexpressed)


def test_a_name_that_no_profile_can_have(both: list[str]) -> None:
    with pytest.raises(UsageError, match="--name My Site is not a name") as caught:
        importers.draft([Path(path) for path in both], name="My Site")
    assert caught.value.hint == "write --name my-site"


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nodes.conf").write_text(f"NodeName={folder} CPUs=4\nPartitionName={folder} Nodes=ALL\n")
    found = importers.draft([tmp_path / "a" / "nodes.conf", tmp_path / "b" / "nodes.conf"])
    assert found.sources()["partitions.b"] == [f"{tmp_path}/b/nodes.conf:2"]


def test_a_value_that_the_model_refuses_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("NodeName=n Gres=gpu:+*:3\nPartitionName=p Nodes=n\n")
    found = importers.draft([tmp_path / "slurm.conf"])
    assert found.tree()["partitions"]["p"]["node"] == {"gpus": {"count": 3}}
    assert "a value that a profile cannot have: partitions.p.node.gpus.type: +*" in str(found.unexpressed[0])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("slurm.conf", b""),
        ("slurm.conf", b"\x00\x01\xff"),
        ("slurm.conf", b"\xff"),
        ("slurm.conf", b"NodeName=a\n" * 100_000),
        ("slurm.conf", b"NodeName=a\x00\n"),
        ("slurm.conf", b"\x1b[2JNodeName"),
        ("a.config", b"process { executor = 'slurm' }\n"),
        ("packages.yaml", b"packages: {mpich: {externals: []}}\n"),
        ("readme.txt", b"nothing of this kind\n"),
    ],
)
def test_hostile_files_are_one_clear_line(
    tmp_path: Path, name: str, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    target = tmp_path / "out.yaml"
    assert main(["profile", "import", str(tmp_path / name), "-o", str(target)]) != 0
    shown = capsys.readouterr().err
    errors = [line for line in shown.splitlines() if not line.startswith(("hint: ", "more: ", "  "))]
    assert len(errors) == 1
    assert errors[0].startswith("deployer: error: ")
    assert name in shown
    assert shown.replace("\n", "").isprintable()
    assert not target.exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "PartitionName=p Nodes=" + "a," * 10_000 + "\n" + "x" * 50_000 + "\n",
        "NodeName=a Gres=" + "gpu:1," * 10_000 + "\n",
        "\n" * 100_000 + "NodeName=a\n",
        "NodeName=a\n" + "\n".join(f"x{number}" for number in range(100_000)),
        "NodeName=a Gres=gpu" + "(" * 200_000 + "\n",
        f"NodeName=DEFAULT Gres={'gpu:1,' * 20_000}\n" + "NodeName=a\n" * 2_000,
    ],
)
def test_long_files_take_no_long_time(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm.conf").write_text(text)
    importers.draft([tmp_path / "slurm.conf"])  # the test's own time limit counts


def test_odd_values_are_not_facts_and_no_errors(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("NodeName=n Gres=gpu:\u00b2\nPartitionName=p Nodes=n MaxNodes=\u00b2\n")
    partition = importers.draft([tmp_path / "slurm.conf"]).tree()["partitions"].popitem()[1]
    assert "max_nodes" not in partition


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        importers.draft([tmp_path / "missing.conf"])
    with pytest.raises(UsageError, match="cannot read"):
        importers.draft([tmp_path])
