"""Definition files of Apptainer: the Dockerfile that means the same, and what has none."""

from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.image.definition import recipe
from deployer.connected.image.definition.definition import load
from deployer.contract.base.errors import UsageError
from tests import tars

WHOLE = r"""
BootStrap: docker-archive
From: base.tar
Fingerprints: 12

%setup
    touch ${APPTAINER_ROOTFS}/made

%files
    note.txt /opt/note.txt
    sub/*.py
    /etc/hosts /etc/there

%post -c /bin/bash
    # a comment
    cat >/srv/a.txt <<END
        indented
    END

%environment
    # a comment
    export GREETING="hello \$world"
    export PATH=/opt/bin:$PATH
    export LATER=$(date)

%labels
    Author Alice "B"
    Bare

%runscript
    echo "I run: $@"
"""
DOCKERFILE = r"""
ARG BASE
FROM ${BASE}
COPY ["note.txt", "/opt/note.txt"]
COPY ["sub/*.py", "/sub/"]
COPY post.sh /tmp/post.sh
RUN ["/bin/bash", "-ex", "/tmp/post.sh"]
ENV GREETING="hello \$world"
ENV PATH="/opt/bin:${PATH}"
LABEL "Author"="Alice \"B\""
LABEL "Bare"=""
ENTRYPOINT ["/bin/sh", "-c", "echo \"I run: $@\"", "runscript"]
"""
LOST = [
    "fingerprints:", "%setup", "%files: /etc/hosts /etc/there", "%environment: export LATER=$(date)",
    "${APPTAINER_ROOTFS} in it",
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    layer = tars.layer({"bin/sh": b"a", "bin/hostname": b"b"}.items())
    (tmp_path / "base.tar").write_bytes(tars.archive(tars.docker_archive([layer])))
    (tmp_path / "note.txt").write_text("note")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.py").write_text("print()")


def test_the_common_sections_become_a_definition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.def").write_text(WHOLE)
    assert main(["init", "--from-image", "mine.def"]) == 0
    assert Path("mine/Dockerfile").read_text().endswith(DOCKERFILE)
    assert Path("mine/post.sh").read_text() == "# a comment\ncat >/srv/a.txt <<END\n    indented\nEND\n"
    assert Path("mine/note.txt").read_text() == "note"
    assert Path("mine/sub/a.py").is_file()
    said = capsys.readouterr().err
    for line in LOST:
        assert f"deployer: not translated: {line}\n" in said
        assert f"# Not translated: {line}\n" in Path("mine/Dockerfile").read_text()
    made = load("mine")
    assert made.base is not None
    assert made.base.archive == "../base.tar"
    assert made.jobs["main"].command == ["/bin/sh", "-c", 'echo "I run: $@"', "runscript"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Bootstrap: library\nFrom: alpine\n", "Bootstrap: library cannot be translated"),
        ("Bootstrap: docker\n\n%post\n    true\n", "Bootstrap: docker cannot be translated"),
        ("Bootstrap: docker\nFrom: a\nStage: one\n%post\nBootstrap: docker\nFrom: b\n", "several stages"),
    ],
)
def test_others_are_refused_with_the_reason_and_nothing_is_written(text: str, reason: str) -> None:
    Path("mine.def").write_text(text)
    with pytest.raises(UsageError, match=reason):
        recipe.translate(Path("mine.def"))
    assert main(["init", "--from-image", "mine.def"]) == 2
    assert not Path("mine").exists()


def test_a_missing_file_leaves_nothing() -> None:
    Path("mine.def").write_text(WHOLE.replace("note.txt", "nothing.txt"))
    assert main(["init", "--from-image", "mine.def"]) != 0
    assert not Path("mine").exists()


def test_given_as_a_definition_or_dockerfile_the_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.def").write_text(WHOLE)
    assert main(["build", "mine.def"]) == 2
    assert "deployer init --from-image mine.def" in capsys.readouterr().err
    Path("bundle.yaml").write_text(
        "name: a\nversion: '1'\nbase: {debian: bookworm}\ndockerfile: mine.def\njobs: {a: {command: [a]}}\n"
    )
    with pytest.raises(UsageError, match="is a definition file of Apptainer: write the Dockerfile"):
        load(Path())
