"""Each rule of lint: what it finds, and what is much like it and right."""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployer.cli.laptop.main import main
from deployer.connected.image.builders.buildkit import BuildKit
from deployer.connected.image.builders.features import Known
from deployer.connected.image.definition.definition import load
from deployer.connected.image.lint import RULES
from deployer.connected.image.lint import lint as linting
from deployer.contract.base.errors import Refused
from deployer.contract.rules.findings import ERROR, Finding
from tests import planted

ROOT = Path(__file__).resolve().parents[4]

DEFINITION = """\
name: small
version: "1"
base: {debian: bookworm}
jobs: {main: {command: [python3, /deployer/app/x.py]}}
"""
#: What most rules say does not depend on the base: this one has its digest and is none of ours.
START = f"ARG BASE\nARG OTHER=x@sha256:{64 * 'a'}\nFROM ${{OTHER}}\n"
OLD = BuildKit("an old BuildKit", [], {}, Known(docker=(18, 9)))
Files = dict[str, str]


def written(folder: Path, files: Files) -> Path:
    """Write a definition; a Dockerfile that starts with no ARG gets the usual start."""
    for name, text in {"bundle.yaml": DEFINITION, "Dockerfile": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            text
            if name != "Dockerfile" or text.startswith(("ARG BASE", "ARG TAG", "# syntax", "# a comment"))
            else START + text
        )
    return folder


def found(folder: Path, files: Files) -> list[Finding]:
    definition = load(written(folder, files))
    return [*linting.before_build(definition), *linting.for_builder(definition, OLD)]


def job(*words: str) -> str:
    return DEFINITION.replace("[python3, /deployer/app/x.py]", json.dumps(words))


SECRET_KEY = planted.private_key()
WHEELHOUSE = "python: {requirements: requirements.txt}\n"

#: Code, what triggers it, and where it is found: file and line.
TRIGGERS: list[tuple[str, Files, str]] = [
    ("pins.image", {"Dockerfile": "FROM python:3.11 AS a\nFROM ${BASE}\n"}, "Dockerfile:4"),
    ("pins.image", {"Dockerfile": "ARG TAG=ubuntu:22.04\nFROM ${TAG}\n"}, "Dockerfile:2"),
    ("pins.image", {"Dockerfile": "COPY --from=busybox:1.36 /bin/busybox /\n"}, "Dockerfile:4"),
    ("pins.image", {"Dockerfile": "ARG BASE=ubuntu:22.04\nFROM ${BASE}\n"}, "Dockerfile:2"),
    ("dockerfile.stage", {"Dockerfile": "COPY --from=busybox /bin/busybox /\n"}, "Dockerfile:4"),
    ("dockerfile.stage", {"Dockerfile": "FROM ${BASE} AS a\nCOPY --from=B /x /y\nFROM a AS b\n"}, "Dockerfile:5"),
    ("network.run-time", {"Dockerfile": 'ENTRYPOINT ["sh", "-c", "pip install x && exec python3"]\n'}, "Dockerfile:4"),
    ("network.run-time", {"Dockerfile": "CMD wget https://example.org/data\n"}, "Dockerfile:4"),
    ("network.run-time", {"bundle.yaml": job("bash", "-lc", "cd /x; git clone https://h/r; ls")}, "bundle.yaml"),
    ("network.run-time", {"bundle.yaml": job("bash", "/deployer/app/run.sh"), "app/run.sh": "set -e\ncurl h.org/x\n"},
     "app/run.sh:2"),
    (
        "network.run-time",
        {"Dockerfile": 'COPY start /\nCMD ["/start"]\n', "start": "#!/bin/bash\n# apt\napt-get \\\n  update\n"},
        "start:3",
    ),
    ("secrets.file", {"key.pem": SECRET_KEY}, "key.pem"),
    ("secrets.file", {"app/.netrc": "machine x password y\n"}, "app/.netrc"),
    (
        "secrets.file",
        {"bundle.yaml": DEFINITION + "data: {x: {folder: in}}\n", "in/a/.pgpass": "h:1:d:me:mine\n"},
        "in/a/.pgpass",
    ),
    ("secrets.variable", {"Dockerfile": "ENV A=b DB_PASSWORD=hunter2\n"}, "Dockerfile:4"),
    ("secrets.variable", {"Dockerfile": "ARG GITHUB_TOKEN=abc\n"}, "Dockerfile:4"),
    (
        "secrets.variable",
        {"Dockerfile": "ARG API_TOKEN\n", "bundle.yaml": DEFINITION + "build_args: {API_TOKEN: abc}\n"},
        "bundle.yaml",
    ),
    (
        "pins.image",
        {"Dockerfile": "ARG TAG\nFROM a:${TAG}\n", "bundle.yaml": DEFINITION + "build_args: {TAG: b}\n"},
        "Dockerfile:2",
    ),
    ("command.relative", {"app/x.py": "", "bundle.yaml": job("python3", "-u", "x.py")}, "job main"),
    ("command.relative", {"app/x.py": "", "bundle.yaml": job("python3", "-m", "mpi4py", "app/x.py")}, "job main"),
    ("command.relative", {"app/c.yaml": "", "bundle.yaml": job("/a", "--config", "c.yaml")}, "job main"),
    ("command.relative", {"bundle.yaml": job("./x")}, "job main"),
    ("dockerfile.user", {"Dockerfile": "USER root\nUSER alice:users\nCMD a\n"}, "Dockerfile:5"),
    ("dockerfile.user", {"Dockerfile": "ARG BASE\nFROM ${BASE} AS a\nUSER 1000\nFROM a\n"}, "Dockerfile:3"),
    ("dockerfile.syntax", {"Dockerfile": "# syntax=docker/dockerfile:1-labs\n" + START}, "Dockerfile:1"),
    ("dockerfile.buildkit", {"Dockerfile": "RUN --mount=type=secret,id=x true\n"}, "Dockerfile:4"),
    ("dockerfile.buildkit", {"Dockerfile": "COPY --chmod=755 --link a /\n"}, "Dockerfile:4"),
    ("dockerfile.buildkit", {"Dockerfile": "RUN <<EOF\ntrue\nEOF\n"}, "Dockerfile:4"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "files", "where"), TRIGGERS)
def test_a_rule_finds_what_it_is_for(tmp_path: Path, code: str, files: Files, where: str) -> None:
    subjects = {item.code: item.subject for item in found(tmp_path, files)}
    assert subjects == {code: where if where.startswith("job ") else str(tmp_path / where)}


def test_an_image_is_named_with_the_defaults_of_its_variables(tmp_path: Path) -> None:
    text = "ARG TAG=22.04\nARG BASE\nFROM ubuntu:${TAG} AS a\nFROM ${BASE}\nCOPY --from=aa /x /\n"
    unpinned, no_stage = found(tmp_path, {"Dockerfile": text})
    assert unpinned.message.startswith("ubuntu:22.04 has no digest")
    assert no_stage.message == "from aa: it is neither an earlier stage nor an image with its digest"
    assert no_stage.remedy.startswith("write a stage (they are a),")


NEAR_MISSES: list[tuple[str, Files]] = [
    ("command.relative", {"app/x.py": "", "bundle.yaml": job("python3", "/deployer/app/x.py", "--name", "x")}),
    ("command.relative", {"app/x.py": "", "Dockerfile": "WORKDIR /src\n", "bundle.yaml": job("python3", "x.py")}),
    ("command.relative", {"app/x.py": "", "bundle.yaml": job("python3", "-m", "x", "--out=x.txt", "results/x.h5")}),
    ("command.relative", {"bundle.yaml": job("sh", "-c", "./x")}),
    ("pins.image", {"Dockerfile": f"FROM x@sha256:{64 * 'a'} AS a\nFROM a\nCOPY --from=a /x /\nCOPY --from=0 /y /\n"}),
    ("pins.image", {"Dockerfile": "FROM scratch\n"}),
    ("network.run-time", {"Dockerfile": "RUN apt-get update && curl -O https://h.example/x\nCMD python3\n"}),
    ("network.run-time", {"Dockerfile": 'ENTRYPOINT ["pip", "install", "x"]\nENTRYPOINT ["python3"]\n'}),
    ("network.run-time", {"bundle.yaml": job("sh", "-c", "pip install --no-index -f /w x; curl http://localhost:8/x")}),
    ("network.run-time", {"bundle.yaml": job("sh", "/x/a.sh"), "app/a.sh": "# curl h.org\necho 'pip install x'\n"}),
    ("network.run-time", {"Dockerfile": 'CMD ["git", "status"]\n'}),
    ("secrets.file", {"key.pub": "-----BEGIN PUBLIC KEY-----\n", "id_rsa.pub": "ssh-rsa AAAA\n"}),
    ("secrets.file", {"key.pem": SECRET_KEY, ".dockerignore": "*.pem\n"}),
    ("secrets.file", {"fetched/train/replay/key.pem": SECRET_KEY}),
    ("secrets.file", {"app/x.sh": "git clone https://me:${TOKEN}@h.example/x https://h.example:8080/a@b\n"}),
    ("secrets.variable", {"Dockerfile": "ARG GITHUB_TOKEN\nENV TOKENIZERS_PARALLELISM=0 TOKEN_FILE=/x TOKEN=${X}\n"}),
    ("secrets.variable", {"Dockerfile": "ENV KEY=a MONKEY=b SSH_AUTH_SOCK=/x\n"}),
    ("dockerfile.user", {"Dockerfile": "USER alice\nRUN true\nUSER 0:0\n"}),
    ("dockerfile.user", {"Dockerfile": "FROM ${BASE} AS a\nUSER alice\nFROM ${BASE}\nCOPY --from=a /x /x\n"}),
    ("dockerfile.stage", {"Dockerfile": "FROM ${BASE} AS Tools\nFROM ${BASE}\nCOPY --from=tools /x /y\n"}),
    ("dockerfile.syntax", {"Dockerfile": "# syntax=docker/dockerfile:1.7\n" + START}),
    ("dockerfile.syntax", {"Dockerfile": f"# syntax=x/y:1@sha256:{64 * 'a'}\n" + START}),
    ("dockerfile.syntax", {"Dockerfile": "# a comment first\n# syntax=docker/dockerfile:1\n" + START}),
    ("dockerfile.buildkit", {"Dockerfile": "COPY --link --chown=1:1 a /\nRUN grep x <<<y; echo '--mount'\n"}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "files"), NEAR_MISSES)
def test_what_is_much_like_it_and_right_is_not_found(tmp_path: Path, code: str, files: Files) -> None:
    assert found(tmp_path, files) == []


WORDS = r"""
    RUN pip python3 -m uv install -r -c /r.txt x==1 a=b;c && || | ( ) { } FROM AS COPY --from= ENV ARG USER CMD
    ENTRYPOINT [ ] "sh", "-c", ' \ $ ${A} << EOF <<EOF # apt-get update rm -rf /opt/x/* curl http:// sh -c r.sh
"""


@pytest.mark.thorough
@given(st.lists(st.sampled_from([*WORDS.split(), "\n", "\\\n"]), max_size=30))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_dockerfile_and_no_script_is_too_odd(tmp_path: Path, words: list[str]) -> None:
    text = " ".join(words)
    assert isinstance(found(tmp_path, {"Dockerfile": START + text, "r.txt": text, "r.sh": text}), list)


# ------------------------------------------------------------------------------------------------ all of them


def test_every_code_has_a_trigger_a_near_miss_and_its_section() -> None:
    of_layers = {"secrets.image"}
    assert {code for code, *_ in TRIGGERS} | of_layers == set(RULES)
    assert {code for code, *_ in NEAR_MISSES} | of_layers == set(RULES)
    page = (ROOT / "docs" / "lint.md").read_text()
    assert [code for code in RULES if f"\n### {code}\n" not in page] == []
    assert page.count("\n### ") == len(RULES)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "bundles").glob("*/bundle.yaml")))
def test_our_own_definitions_are_clean(name: str, own_folders: None) -> None:
    assert linting.lint(load(ROOT / "bundles" / name)).findings == []


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], own_folders: None) -> Say:
    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        caught = capsys.readouterr()
        return code, caught.out, caught.err

    return call


def test_lint_ends_with_3_for_an_error_and_with_0_for_a_warning(tmp_path: Path, say: Say) -> None:
    place = written(tmp_path, {"Dockerfile": "ENV API_TOKEN=x\nUSER alice\n"})
    code, out, err = say("lint", place)
    assert code == 3
    assert f"{place}/Dockerfile:4: error secrets.variable: ENV API_TOKEN" in out
    assert f"{place}/Dockerfile:5: warning dockerfile.user: the image ends as user alice" in out
    assert err.startswith("deployer: warning: its layers were not checked")
    assert "deployer: error: 1 error found: secrets.variable\n" in err
    assert err.endswith("\nmore: deployer explain secrets.variable\n")
    assert say("lint", place, "--accept", "secrets.variable")[0] == 0
    code, out, _ = say("lint", place, "--json")
    record = json.loads(out)
    assert code == 3
    severities = {item["code"]: item["severity"] for item in record["findings"]}
    assert (severities["secrets.variable"], severities["dockerfile.user"]) == ("error", "warning")
    assert record["image"] == ""


def test_build_refuses_what_lint_calls_an_error_before_it_looks_for_an_engine(tmp_path: Path, say: Say) -> None:
    place = written(
        tmp_path, {"Dockerfile": "# syntax=x/y:1\n" + START + "ENV API_TOKEN=x\nRUN --mount=type=cache x\n"}
    )
    code, _, err = say("build", place)
    assert code == 3
    assert err.splitlines()[0] == "deployer: error: 2 errors in the definition or its image"
    assert f"  {place}/Dockerfile:1: dockerfile.syntax: # syntax=x/y:1 parses this file with" in err
    accepted = ("--accept", "dockerfile.syntax", "--accept", "secrets.variable")
    assert say("build", place, *accepted)[0] == 7
    (place / "Dockerfile").write_text(START + "USER alice\n")
    assert say("build", place)[0] == 7  # a warning stops nothing


def test_lint_asks_no_engine_about_an_image_in_a_file_and_no_builder_without_a_dockerfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        pytest.fail("it was asked")

    place = written(tmp_path, {"requirements.txt": "numpy\n"})
    (place / "Dockerfile").unlink()
    monkeypatch.setattr(linting.choice, "choose", asked)
    monkeypatch.setattr(linting.engine, "has_image", lambda *_: False)
    monkeypatch.setattr(linting.engine, "connect", contextlib.ExitStack)
    (place / "bundle.yaml").write_text(DEFINITION + WHEELHOUSE)
    assert linting.lint(load(place)).image == ""
    monkeypatch.setattr(linting.engine, "connect", asked)
    (place / "bundle.yaml").write_text(DEFINITION)
    assert linting.lint(load(place)).findings == []


def test_one_error_is_said_in_one_line_with_its_remedy() -> None:
    with pytest.raises(Refused) as caught:
        linting.refuse_errors([Finding("x.y", ERROR, "Dockerfile:1", "it is wrong", "mend it")])
    assert caught.value.lines() == ["deployer: error: Dockerfile:1: x.y: it is wrong", "hint: mend it"]


def test_the_form_of_spack_containerize_has_only_images_without_digest(tmp_path: Path, say: Say) -> None:
    """The instructions of such a Dockerfile in Spack's documents (containers.rst); it builds as it is."""
    (tmp_path / "bundle.yaml").write_text(
        'name: x\nversion: "1"\nbase: {debian: bookworm}\njobs: {only: {command: [x]}}\n'
    )
    (tmp_path / "Dockerfile").write_text(
        'FROM spack/ubuntu-jammy:latest as builder\nRUN mkdir /opt/env \\\n&& (echo "spack:" \\\n&& echo "  view: /v")'
        " > /opt/env/spack.yaml\nRUN cd /opt/env && spack env activate . && spack install --fail-fast && spack gc -y\n"
        'FROM ubuntu:22.04\nCOPY --from=builder /v /v\nENTRYPOINT [ "/bin/bash", "-l" ]\n'
    )
    code, out, _ = say("lint", tmp_path)
    assert (code, re.findall(r"Dockerfile:(\d+): warning ([\w.]+):", out)) == (
        0,
        [("1", "pins.image"), ("6", "pins.image")],
    )
    assert " error " not in out
