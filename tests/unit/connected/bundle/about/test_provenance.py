import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.about import provenance
from deployer.connected.image.definition.definition import load
from deployer.contract.bundle.manifest import PROVENANCE_MEMBER
from tests.tars import layer

TEXT = """
name: small
version: "1"
base: {archive: base.tar}
jobs: {hello: {command: [/bin/hello]}}
"""


def definition(folder: Path) -> Path:
    (folder / "app").mkdir(parents=True)
    (folder / "app/in.txt").write_text("input\n")
    (folder / "bundle.yaml").write_text(TEXT)
    (folder / "base.tar").write_bytes(layer([("bin/hello", b"hello\n"), ("etc/passwd", b"")]))
    return folder


def git(folder: Path, *words: str, **variables: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"], **variables}
    argv = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.invalid", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=own).stdout.strip()


def commit(folder: Path, when: str = "2026-03-04T05:06:07Z") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x", GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when)
    return git(folder, "rev-parse", "HEAD")


def statement(folder: Path, output: Path) -> dict[str, Any]:
    pack.pack(sources.from_definition(load(folder)), [], output)
    return dict(json.loads(subprocess.check_output(["tar", "-xOf", str(output), PROVENANCE_MEMBER])))


def sources_of(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in made["predicate"]["buildDefinition"]["resolvedDependencies"]}


def test_lean_is_a_parameter(tmp_path: Path) -> None:
    folder = definition(tmp_path / "d")
    (folder / "bundle.yaml").write_text(TEXT + "lean: true\n")
    assert sources.from_definition(load(folder)).lean
    made = statement(folder, tmp_path / "b.tar")
    assert made["predicate"]["buildDefinition"]["externalParameters"]["lean"] is True


def test_the_statement_has_the_fields_of_the_standards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = statement(definition(tmp_path / "d"), tmp_path / "b.tar")
    assert (made["_type"], made["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert [each["name"] for each in made["subject"]] == ["image", "layer"]
    build, details = made["predicate"]["buildDefinition"], made["predicate"]["runDetails"]
    assert build["externalParameters"]["base"] == {"archive": "base.tar"}
    assert details["builder"]["deployer_slsaBuildLevel"] == 1
    assert set(sources_of(made)) == {"definition", "base"}
    base = hashlib.sha256((tmp_path / "d/base.tar").read_bytes()).hexdigest()
    assert sources_of(made)["base"]["digest"] == {"sha256": base}
    assert main(["inspect", "--provenance", str(tmp_path / "b.tar")]) == 0
    assert json.loads(capsys.readouterr().out) == made


def test_anybody_can_compute_the_digest_of_the_definition(tmp_path: Path) -> None:
    made = statement(definition(tmp_path / "d"), tmp_path / "b.tar")
    subprocess.run(["tar", "-xf", tmp_path / "b.tar", "-C", tmp_path, "deployer/definition"], check=True)
    script = "find . -type f | cut -c3- | LC_ALL=C sort | xargs -r sha256sum | sha256sum | cut -f1 -d' '"
    own = subprocess.check_output(["sh", "-c", script], cwd=tmp_path / "deployer/definition", text=True).strip()
    assert sources_of(made)["definition"]["digest"] == {"dirHash": own}


def test_the_same_inputs_give_the_same_bundle(tmp_path: Path) -> None:
    folder = definition(tmp_path / "d")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    for name in ("a.tar", "b.tar"):
        statement(folder, tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_the_commit_is_the_last_one_of_the_definition(tmp_path: Path) -> None:
    folder = definition(tmp_path / "d")
    git(tmp_path, "init", "-q")
    first = commit(tmp_path)
    (tmp_path / "other").write_text("x")
    commit(tmp_path)
    made = statement(folder, tmp_path / "b.tar")
    assert sources_of(made)["source"] == {
        "name": "source",
        "digest": {"gitCommit": first},
        "annotations": {"clean": True},
    }
    assert made["predicate"]["buildDefinition"]["internalParameters"]["sourceDate"] == "2026-03-04T05:06:07+00:00"


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["bundle.yaml", "app/in.txt", "app/new", "deleted"])
def test_a_changed_file_is_not_clean(tmp_path: Path, change: str) -> None:
    folder = definition(tmp_path / "d")
    (folder / "app/deleted").write_text("x")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    if change == "deleted":
        (folder / "app/deleted").unlink()
    else:
        with (folder / change).open("a") as stream:
            stream.write("\n")
    made = statement(folder, tmp_path / "b.tar")
    assert sources_of(made)["source"]["annotations"] == {"clean": False}
    assert "sourceDate" not in made["predicate"]["buildDefinition"]["internalParameters"]


def test_settings_of_the_repository_start_no_program(tmp_path: Path) -> None:
    folder = definition(tmp_path / "d")
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitattributes").write_text("* filter=evil diff=evil\n")
    first = commit(tmp_path)
    evil = f"touch {tmp_path}/started; cat"
    for key in (
        "core.fsmonitor", "core.sshCommand", "core.pager", "pager.rev-list", "core.askPass", "gpg.program",
        "filter.evil.clean", "filter.evil.smudge", "diff.evil.command", "diff.evil.textconv", "alias.rev-list",
    ):  # fmt: skip
        git(tmp_path, "config", key, evil)
    git(tmp_path, "config", "log.showSignature", "true")
    os.utime(folder / "bundle.yaml")
    made = statement(folder, tmp_path / "b.tar")
    assert sources_of(made)["source"] == {
        "name": "source",
        "digest": {"gitCommit": first},
        "annotations": {"clean": True},
    }
    assert not (tmp_path / "started").exists()


def test_hidden_files_wheels_links_and_large_folders_are_not_carried(tmp_path: Path) -> None:
    own = {
        name: tmp_path / name.replace("/", "-") for name in ("bundle.yaml", "context/a", "context/.env", "context/b/.c")
    }
    own["context/x.whl"] = tmp_path / "wheel"
    for path in own.values():
        path.write_text("x")
    (tmp_path / "link").symlink_to("wheel")
    own["context/link"] = tmp_path / "link"
    assert sorted(provenance.carried(own)) == ["bundle.yaml", "context/a"]
    own["context/large"] = tmp_path / "large"
    (tmp_path / "large").write_bytes(bytes(1024 * 1024))
    assert sorted(provenance.carried(own)) == ["bundle.yaml"]


def test_an_image_without_a_definition_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    definition(tmp_path / "d")
    pack.pack(sources.from_archive(tmp_path / "d/base.tar", "small", "1"), [], tmp_path / "b.tar")
    assert main(["inspect", "--provenance", str(tmp_path / "b.tar")]) == 2
    assert "has no provenance" in capsys.readouterr().err
    assert main(["reproduce", str(tmp_path / "b.tar")]) == 2
    assert "has no provenance" in capsys.readouterr().err
