"""conda: which archives and files become an environment of an image, and why others do not."""

import gzip
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployer.connected.ground import engine
from deployer.connected.image import conda
from deployer.contract.base.errors import DeployerError, MissingTool, UsageError

META = '{"name": "x", "subdir": "linux-64"}'
PACKED = {"bin/conda-unpack": "", "bin/python": "", "conda-meta/x.json": META}


def archive(path: Path, files: Mapping[str, str] = PACKED) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


class Build:
    """What would be built."""

    client = None

    def __init__(self) -> None:
        self.said: list[str] = []
        self.transcript = SimpleNamespace(say=self.said.append)
        self.dockerfile, self.archive = "", b""

    def of_context(self, contents: Mapping[str, bytes], copied: Mapping[str, Path]) -> str:
        self.dockerfile = contents["Dockerfile"].decode()
        self.archive = copied["environment.tar"].read_bytes()
        return "sha256:made"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setattr(engine, "image_config", lambda *_: {"Architecture": "amd64", "User": ""})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return Build()


def program(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(0o755)


def add(build: Any, path: Path) -> str:
    return conda.add(build, "base", path, {})


def test_a_packed_environment(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "image_config", lambda *_: {"Architecture": "amd64", "User": "alice"})
    path = archive(tmp_path / "a.tar.gz", {**PACKED, "etc/conda/activate.d/gdal.sh": "export GDAL_DATA=x"})
    assert add(build, path) == "sha256:made"
    assert build.archive == path.read_bytes()
    assert build.dockerfile.splitlines()[2:] == [
        "USER 0",
        "ADD environment.tar /opt/conda/",
        "ENV PATH=/opt/conda/bin:$PATH CONDA_PREFIX=/opt/conda",
        'RUN ["/opt/conda/bin/python", "/opt/conda/bin/conda-unpack"]',
        "USER alice",
    ]
    assert build.said == ["a.tar.gz: nothing runs its scripts in etc/conda/activate.d; set their variables"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"bin/python": ""}, "it has no packages in conda-meta"),
        ({**PACKED, "../../etc/passwd": "x"}, r"a.tar.gz: ../../etc/passwd would be outside /opt/conda"),
        ({**PACKED, "/etc/cron.d/x": "x"}, "/etc/cron.d/x would be outside"),
        ({**PACKED, "..": "x"}, "a.tar.gz: .. would be outside"),
        ({**PACKED, "../\x1b[31m": ""}, r"\.\./\\x1b\[31m would be outside"),
        ({**PACKED, "conda-meta/y.json": '{"subdir":"linux-aarch64"}'}, "linux-aarch64, and the base for linux-64"),
        ({**PACKED, "conda-meta/y.json": '{"subdir": "osx-arm64"}'}, "is for osx-arm64, and the base for linux-64"),
        ({name: PACKED[name] for name in ("conda-meta/x.json", "bin/python")}, "lacks bin/conda-unpack, or the Python"),
        ({name: PACKED[name] for name in ("conda-meta/x.json", "bin/conda-unpack")}, "or the Python that runs it"),
    ],
)  # fmt: skip
def test_other_archives(build: Build, tmp_path: Path, files: Mapping[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as raised:
        add(build, archive(tmp_path / "a.tar.gz", files))
    assert "conda-pack --prefix ENVIRONMENT" in raised.value.hint
    assert build.dockerfile == ""


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "zip", "empty", "bomb"])
def test_damaged_archives(build: Build, tmp_path: Path, damage: str) -> None:
    path = archive(tmp_path / "a.tar.gz", {**PACKED, "lib/x": os.urandom(50_000).hex()})
    data = path.read_bytes()
    contents = {
        "cut": data[: len(data) // 2],
        "flipped": data[:1000] + bytes([data[1000] ^ 255]) + data[1001:],
        "text": b"name: x\n",
        "zip": b"PK\x03\x04" + bytes(100),
        "empty": b"",
        "bomb": gzip.compress(bytes(10**7)),
    }
    path.write_bytes(contents[damage])
    with pytest.raises(UsageError, match=r"is not (a whole|an) environment"):
        add(build, path)


#: Programs that make and pack an environment; they read their options as ours are written.
SOLVED = f"""\
for word; do case $word in --prefix=*) place=${{word#*=}}/conda-meta;; esac; done
mkdir -p "$place" && echo '{META}' >"$place/x.json"
"""
PACK = """\
for word; do case $word in
    --prefix=*) from=${word#*=};; --output=*) to=${word#*=};; --dest-prefix=/opt/conda) right=1;;
esac; done
[ "$right" ] && tar -C "$from" -cf "$to" .
"""


@pytest.mark.parametrize("name", ["environment.yml", "conda-lock.yaml", "explicit.txt", "conda-linux-64.lock"])
def test_files_are_solved_once(build: Build, tmp_path: Path, name: str) -> None:
    program(tmp_path, "micromamba", f'echo "$@" >>{tmp_path}/called\n{SOLVED}')
    program(tmp_path, "conda-pack", PACK)
    path = tmp_path / name
    path.write_text("dependencies: [x]\n")
    add(build, path)
    assert "conda-unpack" not in build.dockerfile  # it is packed for its place
    add(build, path)
    called = (tmp_path / "called").read_text()
    assert called.startswith("create --yes --quiet --platform=linux-64 --prefix=")
    assert called.endswith(f"--file={path}\n")
    assert called.count("create") == 1
    path.write_text("dependencies: [x, y]\n")
    add(build, path)
    assert (tmp_path / "called").read_text().count("create") == 2


def test_what_pixi_pack_wrote_is_unpacked_with_its_program(build: Build, tmp_path: Path) -> None:
    path = archive(tmp_path / "environment.tar", {"pixi-pack.json": "{}", "channel/noarch/x.conda": ""})
    program(tmp_path, "conda-pack", PACK)
    with pytest.raises(MissingTool, match="there is no pixi-unpack here"):
        add(build, path)
    given = f'[ "$1" = --output-directory ] && [ "$3" = {path} ] && set -- --prefix="$2/env"'
    program(tmp_path, "pixi-unpack", f"{given}\n{SOLVED}")
    assert add(build, path) == "sha256:made"
    assert b"conda-meta/x.json" in build.archive


def test_without_the_programs_or_a_solution_nothing_is_kept(build: Build, tmp_path: Path) -> None:
    (path := tmp_path / "environment.yml").write_text("dependencies: [x]\n")
    for programs, kind, reason in (
        ({}, MissingTool, "there is no conda-pack here"),
        ({"conda-pack": PACK}, MissingTool, "there is no micromamba or mamba here"),
        ({"mamba": "echo 'no x\x1b[0m' >&2; exit 1"}, UsageError, r"mamba cannot make .*no x\\x1b"),
        ({"mamba": SOLVED, "conda-pack": "echo full >&2; exit 1"}, UsageError, "conda-pack cannot make .*: full"),
        ({"mamba": "exit 0", "conda-pack": PACK}, DeployerError, "conda-pack cannot make"),
    ):  # fmt: skip
        for name, script in programs.items():
            program(tmp_path, name, script)
        with pytest.raises(kind, match=reason):
            add(build, path)
        cache = tmp_path / "cache" / "deployer" / "conda"
        assert not cache.exists() or not list(cache.iterdir())
