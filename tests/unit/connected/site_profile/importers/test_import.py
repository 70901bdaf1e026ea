"""`deployer profile import`: several files, files that are not what they seem, and what is printed."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.profile import load
from deployer.contract.errors import UsageError

SLURM = "ClusterName=one\nNodeName=n[1-2] Sockets=1 CoresPerSocket=4\nPartitionName=p Nodes=ALL\n"
SPACK = """packages:
  mpich:
    externals:
    - spec: mpich@4.1
      prefix: /opt/mpich
  slurm:
    externals: [{spec: slurm@23.02, prefix: /usr}]
"""


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    (tmp_path / "slurm.conf").write_text(SLURM)
    (tmp_path / "packages.yaml").write_text(SPACK)
    return [str(tmp_path / "slurm.conf"), str(tmp_path / "packages.yaml")]


def test_several_files_make_one_draft(tmp_path: Path, both: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "site.yaml"
    assert main(["profile", "import", *both, "-o", str(target), "--name", "here"]) == 0
    profile = load(str(target))
    assert (profile.name, list(profile.partitions), list(profile.mpi)) == ("here", ["p"], ["mpich-4.1"])
    assert "kind: slurm  # slurm.conf:3, packages.yaml:7" in target.read_text()
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
    assert record["sources"]["mpi.mpich-4.1.prefix"] == ["packages.yaml:5"]
    assert record["profile"]["partitions"]["p"]["nodes"] == 2
    assert record["not_expressed"] == []


def test_contradictions_are_listed(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(SLURM)
    (tmp_path / "a.config").write_text("process.executor = 'lsf'\nprocess.queue = 'p'\n")
    found = importers.draft([tmp_path / "slurm.conf", tmp_path / "a.config"])
    assert found.tree()["scheduler"]["kind"] == "slurm"
    assert "a.config:1: scheduler.kind differs from slurm.conf:3: lsf" in map(str, found.unexpressed)


def test_the_parts_of_one_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.config").write_text("process.executor = 'lsf'\nincludeConfig 'b.config'\n")
    (tmp_path / "b.config").write_text("process.clusterOptions = '-P x'\nsingularity.runOptions = '-B /lustre'\n")
    (tmp_path / "c.config").write_text("process { withLabel: big { queue = 'large' } }\n")
    found = importers.draft([tmp_path / f"{name}.config" for name in "ab"]).tree()
    assert found["scheduler"] == {"kind": "lsf", "account": "x"}
    assert (found["partitions"], found["mounts"]) == ({"default": {"queue": ""}}, ["/lustre"])
    found = importers.draft([tmp_path / f"{name}.config" for name in "abc"]).tree()
    assert found["partitions"] == {"large": {}}


def test_a_name_that_no_profile_can_have(both: list[str]) -> None:
    with pytest.raises(UsageError, match="--name My Site is not a name") as caught:
        importers.draft([Path(path) for path in both], name="My Site")
    assert caught.value.hint == "write --name my-site"


def test_an_entry_without_a_required_value_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "packages.yaml").write_text(SPACK.replace("/opt/mpich", "opt/mpich"))
    found = importers.draft([tmp_path / "packages.yaml"])
    assert "mpi" not in found.tree()
    assert "mpi.mpich-4.1.prefix: opt/mpich:" in str([str(each) for each in found.unexpressed])


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "packages.yaml").write_text(SPACK.replace("/opt", f"/opt/{folder}"))
    found = importers.draft([tmp_path / "a" / "packages.yaml", tmp_path / "b" / "packages.yaml"])
    assert found.sources()["mpi.mpich-4.1-2.prefix"] == [f"{tmp_path}/b/packages.yaml:5"]


def test_a_value_that_the_model_refuses_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.config").write_text(
        "process.executor = 'slurm'\nsingularity { enabled = true\nrunOptions = '-B /usr,/work' }\n"
    )
    found = importers.draft([tmp_path / "a.config"])
    assert found.tree()["mounts"] == ["/work"]
    assert any("a value that a profile cannot have: mounts: /usr:" in str(each) for each in found.unexpressed)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.config", b""),
        ("a.config", b"\x00\x01\xff"),
        ("a.config", b"\xff\xfe"),
        ("a.config", b"\x00" * 1000),
        ("a.config", b"process { executor = 'slurm' }\n" * 40_000),
        ("a.config", b"process {\n" * 5000),
        ("a.config", b"process.executor = " + b"(" * 5000),
        ("a.config", b"\x1b[2Jprocess"),
        ("a.py", b"\x00"),
        ("a.yaml", b"packages: " + b"[" * 1_000),
        ("a.yaml", b"packages: {a: &a [*a, *a]}"),
        ("a.yaml", b""),
        ("a.yaml", b"other: 1\n"),
        ("a.json", b'{"systems": 3}'),
        ("slurm.conf", b"\xff"),
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
    ("name", "text"),
    [
        ("a.config", "process.queue = " + "'a' " * 5_000 + "\n"),
        ("a.config", "process.queue = " + "x ? 'a' : " * 5_000 + "'b'\n"),
        ("a.config", "params.a = " + "'x' + " * 5_000 + "'y'\nprocess.queue = " + '"${params.a}${params.a}"' + "\n"),
        ("a.config", "params.a = params.b\nparams.b = params.a\nprocess.queue = params.a\n"),
        ("a.config", "process.queue = 'q' +" + "\n" * 50_000),
        ("slurm.conf", "PartitionName=p Nodes=" + "a," * 10_000 + "\n" + "x" * 50_000 + "\n"),
        (
            "a.config",
            "process.executor = 'slurm'\nsingularity { enabled = true\nrunOptions = '" + "-B /usr/x " * 3_000 + "' }\n",
        ),
        ("slurm.conf", "NodeName=a Gres=" + "gpu:1," * 10_000 + "\n"),
        ("slurm.conf", "\n" * 100_000 + "NodeName=a\n"),
        ("a.config", "\n" * 100_000 + "process.queue = 'a'\n"),
        ("site", "\n" * 100_000 + "process.queue = 'a'\n"),
        ("slurm.conf", "NodeName=a\n" + "\n".join(f"x{number}" for number in range(100_000))),
        ("a.config", "process.queue = 'a'\n" + "\n".join(f"env.A{number} = 'x'" for number in range(10_000))),
        ("slurm.conf", "NodeName=a Gres=gpu" + "(" * 200_000 + "\n"),
        ("slurm.conf", f"NodeName=DEFAULT Gres={'gpu:1,' * 20_000}\n" + "NodeName=a\n" * 2_000),
    ],
)
def test_long_files_take_no_long_time(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    importers.draft([tmp_path / name])  # the test's own time limit counts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.config", "process { executor = 'slurm'; queue = 'a'; clusterOptions = '-A x -' }\n"),
        ("a.config", f"process {{ executor = 'slurm'; queue = 'a' }}\nparams.max_memory = {'9' * 400}.GB\n"),
        ("a.config", "process { executor = 'slurm'; queue = 'a'; beforeScript = \"${it's}\" }\n"),
        ("slurm.conf", "NodeName=n Gres=gpu:\u00b2\nPartitionName=p Nodes=n MaxNodes=\u00b2\n"),
    ],
)
def test_odd_values_are_not_facts_and_no_errors(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    partition = importers.draft([tmp_path / name]).tree()["partitions"].popitem()[1]
    assert not {"max_nodes", "memory_mb", "scripts"} & set(partition)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        importers.draft([tmp_path / "missing.config"])
    with pytest.raises(UsageError, match="cannot read"):
        importers.draft([tmp_path])


def test_a_system_needs_a_file_that_has_systems(both: list[str]) -> None:
    with pytest.raises(UsageError, match="--system selects a part"):
        importers.draft([Path(path) for path in both], system="x")
