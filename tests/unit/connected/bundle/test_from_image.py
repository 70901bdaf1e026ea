"""init --from-image writes a definition that works from an image that exists; tests/integration has a real engine."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.bundle import from_image, pack, sources
from deployer.connected.image.definition.definition import load
from deployer.connected.image.lint import lint
from deployer.connected.linker import families
from tests import elves, tars

MPICH, OPENMPI = elves.library(["libmpi.so.12"]), elves.library(["libmpi.so.40"])
SYSTEM = {"bin/hostname": b"a", "bin/sh": b"b", "usr/bin/python3": b"c"}
SOLVER, OTHER, MODULE = "opt/solver", "opt/other", "usr/lib/python3/dist-packages/h5py.so"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    read = families.dynamic.read  # each linked file is a program, unless it is named as a library

    def program(read_at: families.dynamic.ReadAt) -> families.dynamic.Dynamic | None:
        found = read(read_at)
        return found._replace(interpreter="/lib64/ld") if found and read_at(0, 4096).endswith(b"program") else found

    monkeypatch.setattr(families.dynamic, "read", program)


def image(path: Path, files: dict[str, bytes], **config: Any) -> Path:
    """Write an image as `docker save` does, with these files and this configuration."""
    layer = tars.layer({**SYSTEM, **files}.items())
    members = tars.docker_archive([layer])
    manifest = json.loads(members["manifest.json"])
    record = {**json.loads(tars.image_config([layer])), "config": config}
    members[manifest[0]["Config"]] = json.dumps(record).encode()
    path.write_bytes(tars.archive(members))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("files", "config", "mpi", "job"),
    [
        ({}, {"Cmd": ["sh", "-c", "echo $X; date"]}, [], (["sh", "-c", "echo $X; date"], 1, None)),
        (
            {"srv/main.py": b""},
            {"Entrypoint": ["python3"], "Cmd": ["main.py"], "WorkingDir": "/srv"},
            [],
            (["python3", "main.py"], 1, "/srv"),
        ),
        ({}, {"Cmd": ["/bin/sh"]}, [], (["hostname"], 1, None)),
        ({}, {"Entrypoint": ["python3"]}, [], (["hostname"], 1, None)),
        ({}, {}, [], (["hostname"], 1, None)),
        ({SOLVER: OPENMPI + b"program"}, {"Cmd": ["/opt/solver", "in"]}, ["openmpi"], (["/opt/solver", "in"], 2, None)),
        ({SOLVER: OPENMPI + b"program"}, {"Cmd": ["sh"]}, [], (["hostname"], 1, None)),
        ({SOLVER: OPENMPI + b"program"}, {"Cmd": ["sh", "-c", "env"]}, [], (["sh", "-c", "env"], 1, None)),
        (
            {SOLVER: MPICH + b"program", "start.sh": b'#!/bin/sh\nexec /opt/solver "$@"\n'},
            {"Entrypoint": ["/start.sh"]},
            ["mpich-abi"],
            (["/start.sh"], 2, None),
        ),
        ({MODULE: OPENMPI, "a.py": b""}, {"Cmd": ["python3", "/a.py"]}, ["openmpi"], (["python3", "/a.py"], 2, None)),
        (
            {SOLVER: MPICH + b"program", OTHER: OPENMPI + b"program"},
            {"Cmd": ["/opt/other"]},
            ["openmpi"],
            (["/opt/other"], 2, None),
        ),
        (
            {SOLVER: MPICH + b"program", OTHER: OPENMPI + b"program"},
            {"Cmd": ["sh", "-c", "solver; other"]},
            [],
            (["sh", "-c", "solver; other"], 1, None),
        ),
    ],
)
def test_the_image_s_mpi_and_its_own_command(
    tmp_path: Path,
    files: dict[str, bytes],
    config: dict[str, Any],
    mpi: list[str],
    job: tuple[list[str], int, str | None],
) -> None:
    saved = image(tmp_path / "My.App.tar", files, **config)
    made = from_image.definition(str(saved), None, tmp_path)
    definition = load(made.folder)
    (first,) = definition.jobs.values()
    assert (definition.name, definition.version, definition.mpi) == ("my-app", "0.1.0", mpi)
    assert (first.command, first.nodes, first.workdir) == job
    assert (definition.base.archive, definition.base.sha256) == (
        "../My.App.tar",
        hashlib.sha256(saved.read_bytes()).hexdigest(),
    )
    assert lint.lint(definition).findings == []
    packed = pack.pack(sources.from_definition(definition), [], tmp_path / "b.tar")
    assert packed.manifest.jobs[0].command == first.command


def test_the_other_mpi_is_named_for_later_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = image(tmp_path / "x.tar", {SOLVER: OPENMPI + b"program"}, Cmd=["bash"])
    assert main(["init", "mine", "--from-image", str(saved), "--dry-run"]) == 0
    assert capsys.readouterr().out == "would write mine/bundle.yaml\n"
    assert main(["init", "mine", "--from-image", str(saved)]) == 0
    assert capsys.readouterr().err == "next: deployer lint mine\n"
    text = Path("mine/bundle.yaml").read_text()
    assert "\nmpi: [] # for jobs with MPI: [openmpi], as /opt/solver needs\n" in text
    assert main(["init", "--from-image", str(saved), "mine"]) == 2
    assert "mine already exists" in capsys.readouterr().err


def test_without_a_name_and_an_image_both_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 2
    assert "init requires NAME, or --from-image REF" in capsys.readouterr().err
    assert main(["init", "--from-image", "x", "--template", "jax"]) == 2
    assert "--template cannot be used with --from-image" in capsys.readouterr().err


def test_a_file_that_is_not_an_image_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"not a tar" * 1000)
    assert main(["init", "--from-image", "x.tar"]) == 2
    assert {path.name for path in tmp_path.iterdir()} - {"state"} == {"x.tar"}
