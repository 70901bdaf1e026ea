"""Images in SIF and SquashFS files: their files, and what their scripts say, without running them."""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import archive, sif
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import sif as form
from tests.running import program as write_program

needs_squashfs = pytest.mark.needs("squashfs", "sqfs2tar")
DOCKER = r"""#!/bin/sh
export PATH="/usr/bin:/bin"
export LANG="${LANG:-"C.UTF-8"}"
export PRICE="${PRICE:-"5\$ \"net\" \\"}"
"""
CUSTOM = """#!/bin/sh
# Custom environment shell code should follow

    export GREETING="hello world"
    export PATH=/opt/bin:$PATH
    export NEVER=`touch /tmp/owned`
    OTHER=${GREETING}!
    if true; then
"""


def image(path: Path, **files: str) -> Path:
    """Write a SIF file with these files in /.singularity.d."""
    root = path.parent / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tool").write_text("#!/bin/sh\n")
    (root / "usr/bin/tool").chmod(0o755)
    os.link(root / "usr/bin/tool", root / "usr/bin/same")
    os.mkfifo(root / "pipe")
    for name, text in files.items():
        there = root / ".singularity.d" / name.replace("__", "/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
    packed = path.with_suffix(".sqfs")
    subprocess.run(["mksquashfs", root, packed, "-quiet", "-no-progress", "-all-root"], check=True, timeout=60)
    path.write_bytes(form.header(packed.stat().st_size, "amd64") + packed.read_bytes())
    return path


def read(path: Path) -> archive.ArchiveImage:
    with Scratch(path.parent) as scratch:
        return archive.read_image(path, scratch)


@needs_squashfs
def test_variables_labels_and_the_runscript_are_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = {"env__10-docker2singularity.sh": DOCKER, "env__90-environment.sh": CUSTOM}
    labels = '{"Author": "Alice"}'
    path = image(tmp_path / "a.sif", **scripts, **{"labels.json": labels, "runscript": "#!/bin/sh\nexec tool"})
    found = read(path)
    assert found.architecture == "amd64"
    assert found.config == {
        "Env": [
            "PATH=/opt/bin:/usr/bin:/bin", "LANG=C.UTF-8", 'PRICE=5$ "net" \\', "GREETING=hello world",
            "OTHER=hello world!",
        ],
        "Entrypoint": ["/.singularity.d/runscript"],
        "Labels": {"Author": "Alice"},
    }  # fmt: skip
    said = capsys.readouterr().err
    assert "a.sif: not signed" in said
    assert "not taken over from its environment: export NEVER=`touch /tmp/owned` / if true; then" in said


@needs_squashfs
def test_a_sif_is_packed_with_its_files_like_the_folder_that_it_was_made_from(tmp_path: Path) -> None:
    path = image(tmp_path / "a.sif")
    options = ["--name", "a", "--version", "1", "--no-cache", "-o"]
    assert main(["pack", "--archive", str(path), *options, str(tmp_path / "a.tar")]) == 0
    assert main(["pack", "--image", str(path), *options, str(tmp_path / "b.tar")]) == 0
    assert main(["pack", "--archive", str(tmp_path / "a.sqfs"), *options, str(tmp_path / "c.tar")]) == 0
    assert main(["pack", "--rootfs", str(tmp_path / "root"), *options, str(tmp_path / "d.tar")]) == 0
    layers = [_layers(tmp_path / f"{name}.tar") for name in "abcd"]
    assert layers[0] == layers[1] == layers[2] == layers[3]


def _layers(bundle: Path) -> list[str]:
    """Return the digests of the layers in a bundle, which is an OCI archive."""
    with tarfile.open(bundle) as opened:

        def document(name: str) -> Any:
            member = opened.extractfile(name)
            assert member
            return json.load(member)

        digest = document("index.json")["manifests"][0]["digest"]
        return [layer["digest"] for layer in document("blobs/" + digest.replace(":", "/"))["layers"]]


@needs_squashfs
@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [(0, 96, "its SquashFS cannot be read"), (200, 4000, "its SquashFS cannot be read")],
)
def test_a_damaged_squashfs_is_refused(tmp_path: Path, start: int, end: int, reason: str) -> None:
    path = image(tmp_path / "a.sif")
    data = bytearray(path.read_bytes())
    data[32768 + start : 32768 + end] = b"\xff" * len(data[32768 + start : 32768 + end])
    path.write_bytes(data)
    with pytest.raises(UsageError, match=reason):
        read(path)


ANSWER = """[ "$1 $2" = "verify --local" ] || exit 9
echo "[LOCAL]            Signing entity: Alice"
echo "FATAL:   Failed to verify container: {}" >&2; exit {}"""


def signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> str:
    write_program(tmp_path, "apptainer", program)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return sif._signature(Path("a.sif"), ["4B6F"])


def test_a_signature_is_reported_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert signature(tmp_path, monkeypatch, ANSWER.format("", 0)) == "signed with 4B6F, verified: Alice"
    unknown = "signed with 4B6F, not verified: Failed to verify container: signature made by unknown entity"
    assert signature(tmp_path, monkeypatch, ANSWER.format("signature made by unknown entity", 255)) == unknown
    assert signature(tmp_path, monkeypatch, "echo nonsense; exit 0").startswith("signed with 4B6F, not verified")
    with pytest.raises(IntegrityError, match=r"it is not what was signed with 4B6F: .* integrity compromised: 3"):
        signature(tmp_path, monkeypatch, ANSWER.format("data object integrity compromised: 3", 255))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert "neither apptainer nor singularity" in sif._signature(Path("a.sif"), ["4B6F"])


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("export A='$B `x`'", "$B `x`"),
        ("A=\"a b\"'c'd", "a bcd"),
        ("A=", ""),
        ("A=x\\ y", "x y"),
        ('A="\\n\\$"', "\\n$"),
        ("A=$B/${C}", "\0B\0/\0C\0"),
    ],
)
def test_plain_values_are_read_as_the_shell_does(line: str, value: str) -> None:
    assert sif.assignments(line) == ([("A", value)], [])


@pytest.mark.parametrize(
    "line",
    [
        "A=$(b)",
        "A=`b`",
        'A="$(b)"',
        "A=1 B=2",
        "A=1; b",
        "A=${B:-c}",
        "A=$1",
        "A=$$",
        "A=*",
        "A=~",
        "A='x",
        "b c",
        "A=1 b",
    ],
)
def test_more_than_plain_values_are_not_taken_over(line: str) -> None:
    assert sif.assignments(line) == ([], [line])
