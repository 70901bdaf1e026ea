"""Secrets in all places: a definition's folders and variables, an image's files, layers, configuration and history."""

from pathlib import Path

import pytest

from deployer.connected.image import lint
from deployer.connected.image.definition.definition import load
from deployer.connected.image.lint import lint as linting
from deployer.connected.image.lint import secrets
from deployer.connected.image.lint.source import DefinitionSource
from deployer.connected.rootfs.entries import FileEntry, InMemory
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.secrets import in_tree
from deployer.contract.base.errors import Refused
from deployer.contract.base.tarformat import FILE
from tests import planted
from tests.planted import word

DEFINITION = """\
name: small
version: "1"
base: {debian: bookworm}
build_args: {KEY_OF_MINE: %s}
data: {x: {folder: in}}
jobs: {main: {command: [python3, /deployer/app/x.py]}}
"""
HUB = "hf_" + word(34)


def layer(*files: tuple[str, bytes]) -> list[FileEntry]:
    return [FileEntry(FILE, name.encode(), 0o600, data=InMemory(content)) for name, content in files]


def test_every_secret_of_a_definition_is_found(tmp_path: Path) -> None:
    """The planted files are in turn in the context, the app and the data."""
    expected = set()
    for number, (name, content, _, line) in enumerate(planted.FILES):
        path = tmp_path / ("src", "app", "in")[number % 3] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        expected.add((str(path), line))
    (tmp_path / "in/large").write_bytes(planted.private_key().encode().ljust(2**21))
    (tmp_path / "in/gone").symlink_to("nowhere")
    (tmp_path / "bundle.yaml").write_text(DEFINITION % HUB)
    (tmp_path / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nARG KEY_OF_MINE\nENV A={HUB}\nARG DB_PASSWORD=x\n")
    source = DefinitionSource(load(tmp_path))
    found = list(secrets.in_files(source))
    assert {(item.subject, int(item.message.rpartition(" ")[2])) for item in found} >= expected
    assert len(expected) == len(planted.FILES) > 30
    assert not any(content[-20:] in str(item) for item in found for _, content, _, _ in planted.FILES)
    variables = {(Path(item.subject).name, item.message.split()[1]) for item in secrets.in_variables(source)}
    assert variables == {("bundle.yaml", "KEY_OF_MINE"), ("Dockerfile:4", "A"), ("Dockerfile:5", "DB_PASSWORD")}


def test_every_secret_of_an_image_is_found_and_what_a_bundle_lacks_is_a_warning() -> None:
    expected = {f"/root/{name}" for name, *_ in planted.FILES}
    files = [(f"root/{name}", content.encode()) for name, content, *_ in planted.FILES]
    layers = [
        layer(("./root/deleted.txt", HUB.encode()), ("./.netrc", b"password x"), ("usr/bin/x", b"x")),
        layer(("root/replaced", HUB.encode())),
        layer(*files, ("root/.wh.deleted.txt", b""), (".wh..netrc", b""), ("root/replaced", b"nothing")),
    ]
    root = Rootfs()
    for each in layers:
        root.apply(iter(each))
    config = {
        "Env": ["PATH=/bin", f"LOGIN={HUB}", "AWS_SECRET_ACCESS_KEY=x", "EMPTY_TOKEN="],
        "Cmd": ["serve", f"--token={HUB}"], "Entrypoint": None, "Labels": {"a": "b"},
    }  # fmt: skip
    found = list(secrets.in_image(in_tree(FlattenedRootfs(root)), config))
    assert {item.subject for item in found} == {
        *expected, "LOGIN", "AWS_SECRET_ACCESS_KEY", "entrypoint, command and labels",
    }  # fmt: skip
    assert {item.severity for item in found} == {"error"}
    steps = ["/bin/sh -c #(nop) CMD", f"|1 A={HUB} /bin/sh -c pip install x", "RUN |1 DB_PASSWORD=hunter22 sh"]
    beside = list(secrets.beside(layers, root, steps))
    assert [(item.severity, item.subject) for item in beside] == [
        ("warning", "layer 1: /root/deleted.txt"), ("warning", "layer 1: /.netrc"),
        ("warning", "layer 2: /root/replaced"),
        ("warning", "step 2 of the history"), ("warning", "step 3 of the history"),
    ]  # fmt: skip
    assert HUB[3:] not in str([*found, *beside])


def test_a_finding_is_accepted_by_its_code_or_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    for name in "ab":
        (tmp_path / "app" / name).write_text(HUB)
    (tmp_path / "bundle.yaml").write_text(DEFINITION.replace("build_args: {KEY_OF_MINE: %s}\n", ""))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_text("x")
    definition = load(tmp_path)
    one = f"secrets.file:{tmp_path}/app/a"
    assert [item.subject for item in lint.kept(linting.before_build(definition), [one])] == [f"{tmp_path}/app/b"]
    with pytest.raises(Refused, match=r"app/b: secrets.file: it holds a Hugging Face token on line 1"):
        linting.refuse(definition, [one])
    linting.refuse(definition, ["secrets.file"])
