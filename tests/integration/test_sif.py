"""SIF files and definition files of the real Apptainer become bundles."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Cli
from tests.lab import apptainer

pytestmark = [pytest.mark.needs("root", "mmdebstrap", "squashfs", "sqfs2tar"), pytest.mark.slow]

RECIPE = r"""
Bootstrap: localimage
From: FROM

%files
    note.txt /opt/note.txt

%post
    mkdir -p /srv
    printf 'made by %s\n' "$(cat /opt/note.txt)" >/srv/made.txt

%environment
    export GREETING="hello \$world"
    export PATH=/opt/bin:$PATH

%labels
    Author Alice

%runscript
    exec cat /srv/made.txt "$@"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with base.sif, made from a folder, mine.sif, made from mine.def, and the key that signed it."""
    work = tmp_path_factory.mktemp("sif")
    (work / "root/bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", work / "root/bin/busybox")
    for name in ("sh", "cat", "mkdir", "printf", "env"):
        (work / "root/bin" / name).symlink_to("busybox")
    (work / "root/etc").mkdir()
    (work / "note.txt").write_text("the note")
    (work / "mine.def").write_text(RECIPE.replace("FROM", "base.sif"))
    key = ["--name", "Alice", "--email", "alice@example.org", "--comment", "", "--password", "", "--push=false"]
    commands = [["build", "base.sif", "root"], ["build", "mine.sif", "mine.def"], ["key", "newpair", *key]]
    for words in [*commands, ["sign", "mine.sif"]]:
        done = apptainer.here(["apptainer", *words], work)
        assert done.returncode == 0, done.stderr
    return work


def deployer(folder: Path, *words: str, code: int = 0) -> str:
    """Run the command line where apptainer is."""
    own = [sys.executable, "-c", "import sys; from deployer.cli.laptop.main import main; sys.exit(main())", *words]
    done = apptainer.here(own, folder)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def pack(file: str, name: str = "mine") -> list[str]:
    return ["pack", "--archive", file, "--name", name, "--version", "1", "-o", f"{name}.tar"]


def test_a_sif_is_packed_with_its_signature_verified(folder: Path, cli: Cli) -> None:
    said = deployer(folder, *pack("mine.sif"))
    assert "verified: Alice <alice@example.org>" in said
    config = cli("inspect", folder / "mine.tar", "--json").stdout
    own = apptainer.here(["apptainer", "exec", "--cleanenv", "mine.sif", "env"], folder).stdout.splitlines()
    for name in ("PATH", "GREETING"):
        line = next(line for line in own if line.startswith(f"{name}="))
        assert line.replace('"', '\\"') in config
    assert '"/.singularity.d/runscript"' in config


def test_a_changed_sif_is_refused_and_nothing_is_left(folder: Path) -> None:
    data = bytearray((folder / "mine.sif").read_bytes())
    data[60000] ^= 1
    (folder / "bad.sif").write_bytes(data)
    said = deployer(folder, *pack("bad.sif", "bad"), code=4)
    assert "it is not what was signed with" in said
    assert "data object integrity compromised: 3" in said
    assert not (folder / "bad.tar").exists()


def test_the_translated_dockerfile_makes_what_apptainer_makes(folder: Path, built: Cli) -> None:
    environment = {**built.environment, "PYTHONPATH": str(ROOT)}
    own = [sys.executable, "-c", "import sys; from deployer.cli.laptop.main import main; sys.exit(main())"]
    for words in (
        ["init", "--from-image", "mine.def", "theirs"],
        ["build", "theirs"],
        ["pack", "theirs", "-o", "theirs.tar"],
        pack("mine.sif"),
    ):
        done = subprocess.run(
            [*own, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
    trees = [_files(built, folder / f"{name}.tar") for name in ("mine", "theirs")]
    assert trees[0] == trees[1]
    assert "/srv/made.txt" in "".join(trees[0])


def _files(cli: Cli, bundle: Path) -> list[str]:
    """Return the files of a bundle, without their modes and what only one of the two ways has."""
    apart = ("/.singularity.d", "/run", "/tmp/post.sh")
    lines = [line.split() for line in cli("inspect", bundle, "--files").stdout.splitlines()]
    return sorted(" ".join(words[1:]) for words in lines if not words[3:4] or not words[3].startswith(apart))
