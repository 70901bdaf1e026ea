"""The digest of a build's inputs: what changes it, and what must not."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from deployer.connected.bundle import sources
from deployer.connected.ground import engine
from deployer.connected.image import inputs
from deployer.connected.image.definition.definition import Definition, load
from deployer.contract.base.errors import Refused, UsageError

BUNDLE = """\
name: small
version: "1"
base: {debian: bookworm, include: [python3]}
jobs: {only: {command: ["true"]}}
"""
DOCKERFILE = "ARG BASE\nFROM ${BASE}\nARG BUILD\nCOPY sub/*.txt lists/ /x/\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "small"
    for path, text in {
        "bundle.yaml": BUNDLE, "Dockerfile": DOCKERFILE, "sub/a.txt": "a", "sub/b.bin": "b", "lists/deep/c": "c",
        "app/train.py": "pass", "notes.md": "n",
    }.items():  # fmt: skip
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def labelled(folder: Path) -> dict[str, str]:
    return {inputs.LABEL: inputs._label(load(folder), "sha256")}


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("Dockerfile", DOCKERFILE + "# one more line\n"),
        ("bundle.yaml", BUNDLE.replace("python3", "python3, gcc")),
        ("bundle.yaml", BUNDLE.replace("bookworm", "trixie")),
        ("bundle.yaml", BUNDLE + "build_args: {BUILD: x}\n"),
        ("sub/a.txt", "changed"),
        ("sub/new.txt", ""),
        ("lists/deep/c", "changed"),
        (".dockerignore", "sub/a.txt\n"),
    ],
)
def test_a_change_of_what_the_image_is_made_from_makes_it_older(folder: Path, path: str, text: str) -> None:
    labels = labelled(folder)
    assert inputs.is_current(load(folder), labels)
    write(folder, path, text)
    assert not inputs.is_current(load(folder), labels)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("app/train.py", "changed"),
        ("app/new.py", ""),
        ("sub/b.bin", "changed"),
        ("notes.md", "changed"),
        ("bundle.yaml", BUNDLE.replace('"true"', '"false"')),
        ("python.lock", "changed"),
    ],
)
def test_a_change_of_what_travels_beside_the_image_does_not(folder: Path, path: str, text: str) -> None:
    labels = labelled(folder)
    write(folder, path, text)
    assert inputs.is_current(load(folder), labels)


def test_modes_links_and_removed_files_count(folder: Path) -> None:
    found = [labelled(folder)]
    (folder / "sub" / "a.txt").chmod(0o755)
    found.append(labelled(folder))
    (folder / "lists" / "link").symlink_to("deep/c")
    found.append(labelled(folder))
    (folder / "lists" / "deep" / "c").unlink()
    found.append(labelled(folder))
    assert len({labels[inputs.LABEL] for labels in found}) == len(found)


def test_a_base_archive_counts_by_its_content(folder: Path) -> None:
    write(folder, "base.tar", "one")
    write(folder, "bundle.yaml", BUNDLE.replace("{debian: bookworm, include: [python3]}", "{archive: base.tar}"))
    labels = labelled(folder)
    write(folder, "base.tar", "two")
    assert not inputs.is_current(load(folder), labels)


@pytest.mark.parametrize("labels", [{}, {inputs.LABEL: ""}, {inputs.LABEL: "sha256:"}, {inputs.LABEL: "x:y"}])
def test_an_image_without_such_a_label_is_not_current(folder: Path, labels: dict[str, str]) -> None:
    assert not inputs.is_current(load(folder), labels)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("COPY a /x", ["a"]),
        ("COPY ./a /b/../sub/c* /x", ["a", "sub", "sub/c1"]),
        ("copy --chown=0:0 sub /x", ["sub", "sub/c1", "sub/d"]),
        ('ADD ["sub/d", "/x"]', ["sub", "sub/d"]),
        ("COPY --from=build /a /x", []),
        ("RUN echo a", []),
        ("ADD https://files.invalid/x.tar /x", []),
        ("COPY a \\\n  sub/d /x", ["a", "sub", "sub/d"]),
        ("COPY . /x", None),
        ("COPY / /x", None),
        ("COPY $WHAT /x", None),
        ("COPY [ab] /x", None),
        ("COPY 'a b' /x", None),
        ("COPY link/d /x", None),
        ("RUN --mount=type=bind,target=/x true", None),
    ],
)
def test_the_files_that_a_dockerfile_names(tmp_path: Path, line: str, found: list[str] | None) -> None:
    (tmp_path / "link").symlink_to("sub")
    paths = ["a", "b", "link", "sub", "sub/c1", "sub/d"]
    assert inputs.named_files(f"FROM x\n{line}\n", tmp_path, paths) == (paths if found is None else found)


class _Images:
    """Stands in for the engine: images by reference."""

    def __init__(self, images: dict[str, dict[str, Any]]) -> None:
        self.images = images

    def close(self) -> None:
        pass


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, Any]]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found: dict[str, dict[str, Any]] = {}

    def inspect(_: object, reference: str) -> dict[str, Any]:
        if reference not in found:
            raise ImageNotFound(reference)
        return found[reference]

    monkeypatch.setattr(engine, "connect", lambda: _Images(found))
    monkeypatch.setattr(engine, "errors_named", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(engine, "inspect", inspect)
    return found


def image(name: str, labels: dict[str, str] | None) -> dict[str, Any]:
    return {"Id": f"sha256:{name}", "Config": {"Labels": labels}}


def test_pack_refuses_an_image_of_other_inputs_and_names_build(folder: Path, images: dict[str, dict[str, Any]]) -> None:
    definition: Definition = load(folder)
    with pytest.raises(Refused, match="it is not built") as caught:
        sources.from_definition(definition)
    assert caught.value.hint == f"build it: deployer build {folder}"
    images[definition.tag] = image("old", None)
    with pytest.raises(Refused, match="built from other inputs"):
        sources.from_definition(definition)
    images[definition.tag] = image("new", labelled(folder))
    assert sources.from_definition(definition).name == "small"
    assert inputs.current(definition, ["deployer/none:1", definition.tag]) == "sha256:new"
    write(folder, "sub/a.txt", "changed")
    with pytest.raises(Refused) as caught:
        sources.from_definition(load(folder))
    assert "deployer build" in caught.value.hint


def test_an_image_whose_base_has_onbuild_steps_counts_all_of_the_context(
    folder: Path, images: dict[str, dict[str, Any]]
) -> None:
    images["base"] = {"Config": {"OnBuild": ["COPY . /x"]}}
    labels = {inputs.LABEL: inputs.label(None, load(folder), "base")}  # type: ignore[arg-type]
    assert inputs.is_current(load(folder), labels)
    write(folder, "notes.md", "changed")
    assert not inputs.is_current(load(folder), labels)


def test_definitions_with_one_context_have_one_image(folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir()
    write(other, "bundle.yaml", BUNDLE.replace("small", "other") + "context: ../small\n")
    definition = load(other)
    assert (definition.dockerfile_path, definition.app_folder) == (other / "../small/Dockerfile", None)
    assert labelled(other) == labelled(folder)
    write(folder, "sub/a.txt", "changed")
    assert inputs.is_current(definition, labelled(folder))
    write(other, "bundle.yaml", BUNDLE.replace("small", "other"))
    assert labelled(other) != labelled(folder)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("context: ../none\n", "context: there is no folder"),
        ("context: app\n", "context: there is no Dockerfile in"),
        ("context: sub\ndockerfile: ../Dockerfile\n", "is outside the context, which is all that a build can read"),
    ],
)
def test_a_context_has_a_dockerfile(folder: Path, lines: str, said: str) -> None:
    write(folder, "bundle.yaml", BUNDLE + lines)
    with pytest.raises(UsageError) as error:
        load(folder)
    assert said in "\n".join(error.value.lines())
