"""build with each builder: what the Dockerfile may ask for, secrets and settings without a trace, and failures."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from deployer.connected.ground import engine as engines
from deployer.system import files
from tests.integration.test_build import BUNDLE, CA, PIP
from tests.lab.engine import Engine

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker", "mmdebstrap")]


def builders(*slow: str) -> list[ParameterSet]:
    """Return the builders as parameters; the slow tier has those whose like the smoke tier has elsewhere."""
    podman = pytest.mark.needs("podman")
    return [
        pytest.param(name, marks=[podman] * (name == "podman") + [pytest.mark.slow] * (name in slow))
        for name in ("buildkit", "podman")
    ]


#: This machine's root may not raise limits, and crun refuses a mix of both versions of cgroups.
CONTAINERS = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["memlock=65536:65536", "nofile=1024:1024", "nproc=1024:1024"]
"""
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/images"\nrunroot = "{0}/run"\n'


class Builder:
    """Builds a definition with one builder."""

    def __init__(self, name: str, folder: Path, docker_host: str) -> None:
        self.name = name
        self._folder = folder
        self._env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "DOCKER_HOST": docker_host}
        if name == "podman":
            if files.exists(engines.DEFAULT_HOST.partition("://")[2]):
                pytest.skip("Docker listens at its default address, so podman is not chosen")
            for variable in ("DOCKER_HOST", "DOCKER_CONTEXT"):
                self._env.pop(variable, None)
            (folder / "containers.conf").write_text(CONTAINERS)
            (folder / "storage.conf").write_text(STORAGE.format(folder / "podman"))
            self._env["CONTAINERS_CONF"] = str(folder / "containers.conf")
            self._env["CONTAINERS_STORAGE_CONF"] = str(folder / "storage.conf")
        self.definition = folder / "pytest-builders"
        self.definition.mkdir()
        (self.definition / "bundle.yaml").write_text(BUNDLE.format(name="pytest-builders"))

    def __call__(self, *words: str, command: str = "build") -> "subprocess.CompletedProcess[str]":
        argv = [str(Path(sys.executable).with_name("deployer")), command, str(self.definition), *words]
        return subprocess.run(argv, env=self._env, capture_output=True, text=True, check=False)

    def build(self, dockerfile: str, *words: str) -> "subprocess.CompletedProcess[str]":
        (self.definition / "Dockerfile").write_text(f"ARG BASE\n{dockerfile}")
        return self("--builder", self.name, *words)

    def packed(self) -> bytes:
        """Return the flat root filesystem of the image."""
        done = self("--no-cache", "-o", str(self._folder / "b.tar"), command="pack")
        assert done.returncode == 0, done.stderr
        archive = subprocess.run(
            f"tar -xOf {self._folder}/b.tar --wildcards 'blobs/sha256/*' | zstd -dcq --pass-through",
            shell=True, capture_output=True, check=True,
        )  # fmt: skip
        return archive.stdout

    def end(self) -> None:
        if self.name == "podman":
            subprocess.run(["podman", "unshare", "true"], env=self._env, check=False, capture_output=True)
            subprocess.run(["umount", self._folder / "podman/images/overlay"], check=False, capture_output=True)
            shutil.rmtree(self._folder / "podman", ignore_errors=True)


@pytest.fixture
def builder(request: pytest.FixtureRequest, tmp_path: Path, engine: Engine):  # type: ignore[no-untyped-def]
    made = Builder(request.param, tmp_path, engine.docker_host)
    yield made
    made.end()


@pytest.mark.parametrize("builder", builders(), indirect=True)
def test_settings_and_secrets_are_read_in_the_build_and_leave_no_trace(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(CA)
    (tmp_path / "pip.conf").write_text(PIP)
    (tmp_path / "token").write_text("a-token-of-mine\n")
    given = ["--ca-bundle", str(tmp_path / "ca.crt"), "--pip-conf", str(tmp_path / "pip.conf")]
    settings = (
        "FROM ${BASE} AS build\n"
        'RUN grep -q VGhpcyBp "$PIP_CERT" && grep -q index.invalid "$PIP_CONFIG_FILE" && cp "$PIP_CONFIG_FILE" /kept\n'
    )
    words = "a 'b' $(touch /made) \"$HOME\", c=d"
    (builder.definition / "words").write_text(words)
    with open(builder.definition / "bundle.yaml", "a") as definition:
        definition.write(f"build_args: {{WORDS: {json.dumps(words)}}}\n")
    settings += 'ARG WORDS\nCOPY words /words\nRUN printf %s "$WORDS" | cmp - /words && ! test -e /made\n'
    secret = "RUN --mount=type=secret,id=token test $(wc -c </run/secrets/token) = 16\n"
    given += ["--secret", f"id=token,src={tmp_path / 'token'}"]
    done = builder.build(f"{settings}{secret}FROM ${{BASE}}\nCOPY --from=build /etc/debian_version /made\n", *given)
    assert done.returncode == 0, done.stderr
    assert "a-token-of-mine" not in done.stderr
    assert "deployer-ca.crt" not in done.stderr  # the options that we add are not part of a step's name
    data = builder.packed()
    assert b"etc/debian_version" in data
    for trace in (b"VGhpcyBp", b"a-secret", b"index.invalid", b"a-token-of-mine", b"run/deployer/"):
        assert trace not in data
    done = builder.build(f"{settings}FROM ${{BASE}}\nCOPY --from=build /kept /kept\n", *given[:4])
    assert done.returncode == 3
    assert "one of its files contains the build settings" in done.stderr
    copied = "RUN --mount=type=secret,id=token cp /run/secrets/token /kept\n"
    done = builder.build(f"FROM ${{BASE}}\nARG WORDS\n{copied}", *given[4:])
    assert done.returncode == 3
    assert "one of its files contains the secret token" in done.stderr


@pytest.mark.parametrize("builder", builders("podman"), indirect=True)
def test_the_dockerfile_of_2026_is_built(builder: Builder) -> None:
    folder = builder.definition
    (folder / "script").write_text("#!/bin/sh\necho from the context\n")
    (folder / ".dockerignore").write_text("left-out\n")
    (folder / "left-out").write_text("x")
    (folder / "app").mkdir()
    (folder / "app" / "train.py").write_text("pass\n")
    done = builder.build(
        "FROM --platform=$BUILDPLATFORM ${BASE} AS tools\n"
        "RUN --mount=type=cache,target=/cache --mount=type=tmpfs,target=/fast date >/cache/x && cp /cache/x /made\n"
        "RUN --mount=type=bind,target=/context test -e /context/script && ! ls /context/app /context/left-out\n"
        "FROM ${BASE}\n"
        "COPY --link --chmod=0755 script /usr/bin/script\n"
        "RUN --mount=type=bind,from=tools,source=/made,target=/made script && cp /made /kept\n",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["builder"]
    again = json.loads(builder("--builder", builder.name, "--json").stdout)
    assert again["image"] == json.loads(done.stdout)["image"]
    assert again["cached"] >= 3
    assert b"from the context" in builder.packed()


@pytest.mark.parametrize("builder", builders("podman"), indirect=True)
def test_failures_have_one_line_and_their_exit_code(builder: Builder, tmp_path: Path) -> None:
    done = builder.build("FROM ${BASE}\nRUN echo 'E: Unable to locate package vmi' >&2; exit 7\n", "--quiet")
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith("deployer: error: build of deployer/pytest-builders:0 failed in step ")
    assert first.endswith("exit 7: exit 7: E: Unable to locate package vmi")
    (tmp_path / "ca.crt").write_text(CA)
    done = builder.build("FROM ${BASE}\nRUN true\nRNU true\n", "--quiet", "--ca-bundle", str(tmp_path / "ca.crt"))
    assert (done.returncode, "RNU" in done.stderr) == (2, True)
    assert ("line 4" in done.stderr) == (builder.name != "podman")  # it prints no number
    assert "PIP_CERT" not in done.stderr
    newer = "FROM ${BASE}\nRUN <<EOF\ntrue\nEOF\nRUN --security=insecure true\n"
    done = builder.build(newer, "--quiet")
    assert done.returncode == 3
    assert "Dockerfile:6: dockerfile.buildkit: " in done.stderr
    assert "RUN --security" in done.stderr


def test_a_builder_that_is_not_at_hand_is_named_with_what_to_install(tmp_path: Path, engine: Engine) -> None:
    builder = Builder("podmann", tmp_path, engine.docker_host)
    assert builder.build("FROM ${BASE}\n").returncode == 2
    builder.name = "podman"
    done = builder.build("FROM ${BASE}\n")
    assert done.returncode == 7
    assert "deployer: error: the builder podman is not at hand for this engine\nhint: install podman" in done.stderr
