import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from deployer.connected.ground import engine
from deployer.connected.image import build, context, variants
from deployer.connected.image.bases import base
from deployer.connected.image.build import first_trace
from deployer.connected.image.builders.builder import ImageBuild
from deployer.connected.image.builders.buildkit import BuildKit
from deployer.connected.image.builders.features import Known
from deployer.connected.image.builders.transcript import Transcript
from deployer.connected.image.definition import settings
from deployer.connected.image.definition.definition import Base, Definition, load
from deployer.contract.base.errors import JobFailed, UsageError
from tests import running
from tests.unit.connected.image.definition.test_definition import MINIMAL, write

BUILDER = BuildKit("BuildKit", [], {}, Known())
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


# ------------------------------------------------------------------------------------------------ image and variants


def transcript() -> Transcript:
    return Transcript("deployer/x:1", "/log", list[str]().append)


class Client:
    """An engine that only has to be closed."""

    def close(self) -> None:
        pass


def with_horovod(folder: Path) -> Definition:
    text = "framework: tensorflow\nhorovod: {version: 0.28.1, stage: tools}\n"
    place = write(folder, MINIMAL + text)
    (place / "Dockerfile").write_text("ARG BASE\nFROM ${BASE} AS tools\nFROM ${BASE}\n")
    return load(place)


def stages_of_a_build(monkeypatch: pytest.MonkeyPatch, folder: Path, no_cache: bool, together: bool) -> list[str]:
    """Return what is done for a definition with Horovod. ``together``: image and variants wait for each other."""
    definition = with_horovod(folder)
    done: list[str] = []
    meeting = threading.Barrier(2 if together else 1, timeout=10)

    def of_definition(self: Any, _: object) -> str:
        if self.target is None:
            meeting.wait()
        done.append(f"{self.target or 'image'}{' anew' if self.no_cache else ''}")
        return f"sha256:{self.target}"

    def ensure(_: object, __: object, stage: str, *___: object) -> list[object]:
        meeting.wait()
        done.append(f"variants of {stage}")
        return []

    monkeypatch.setattr(ImageBuild, "of_definition", of_definition)
    monkeypatch.setattr(variants, "ensure", ensure)
    monkeypatch.setattr(engine, "connect", Client)
    own = ImageBuild(cast("Any", Client()), BUILDER, {}, transcript(), no_cache)
    with ExitStack() as beside:
        image, made = build._image_and_variants(own, definition, None, {}, beside)
        assert (image, made()) == ("sha256:None", [])
    return done


def test_variants_are_compiled_while_the_image_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = stages_of_a_build(monkeypatch, tmp_path, no_cache=False, together=True)
    assert done[0] == "tools"
    assert sorted(done[1:]) == ["image", "variants of sha256:tools"]


def test_without_the_cache_each_step_still_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = stages_of_a_build(monkeypatch, tmp_path, no_cache=True, together=False)
    assert done == ["image anew", "tools", "variants of sha256:tools"]


def test_a_variant_that_fails_fails_the_build() -> None:
    def fail(_: object) -> None:
        raise JobFailed("it does not compile")

    with pytest.raises(JobFailed, match="does not compile"), build._meanwhile(fail) as made:
        made.result(timeout=10)


def test_a_build_that_fails_ends_the_compilation_of_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither compiles on nor leaves what it was copying."""
    definition = with_horovod(tmp_path)
    compiling, done = threading.Event(), list[str]()

    def of_definition(self: Any, _: object) -> str:
        if self.target is None:
            assert compiling.wait(10)
            raise JobFailed("the image cannot be built")
        return "sha256:stage"

    def of_context(self: Any, *_: object) -> str:
        compiling.set()
        while True:  # ends at the first line after the error
            self.transcript.say("compiling")

    def ensure(client: object, definition: object, stage: str, compiled: Any, *_: object) -> list[object]:
        try:
            compiled(None, "Horovod", {})
        finally:
            done.append("ended")
        return []

    monkeypatch.setattr(ImageBuild, "of_definition", of_definition)
    monkeypatch.setattr(ImageBuild, "of_context", of_context)
    monkeypatch.setattr(variants, "ensure", ensure)
    monkeypatch.setattr(engine, "connect", Client)
    own = ImageBuild(cast("Any", Client()), BUILDER, {}, transcript())
    with pytest.raises(JobFailed, match="cannot be built"), ExitStack() as beside:
        build._image_and_variants(own, definition, None, {}, beside)
    assert done == ["ended"]


def test_the_context_has_no_app_no_data_and_obeys_dockerignore(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "data: {digits: {folder: in/digits}}\n")
    (place / "in" / "digits").mkdir(parents=True)
    (place / "in" / "digits" / "large").write_text("x")
    (place / "app").mkdir()
    (place / "app" / "train.py").write_text("x")
    (place / "big.bin").write_text("x")
    (place / "kept.txt").write_text("x")
    (place / ".dockerignore").write_text("# comment\n*.bin\n")
    (place / "image.tar").write_text("x")
    text = (place / "bundle.yaml").read_text()
    (place / "bundle.yaml").write_text(text.replace("debian: bookworm", "archive: image.tar"))
    names = context.names(load(place))
    assert {"Dockerfile", "kept.txt", "bundle.yaml", "in"} <= set(names)
    assert not [name for name in names if name.startswith("in/")]
    assert not [name for name in names if name.startswith("app") or name.endswith((".bin", ".tar"))]


def test_a_dockerfile_whose_own_base_has_a_default_keeps_it(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL)
    (place / "Dockerfile").write_text("ARG BASE=ubuntu:22.04\nARG BUILD_BASE\nFROM $BASE\nARG BUILD_BASE=x\n")
    assert build._bases(load(place), "clean", "arm64") == {"BUILD_BASE": "clean"}
    (place / "Dockerfile").write_text("ARG BASE\nARG TARGETARCH\nFROM $BASE\n")
    expected = {"BASE": "clean", "BUILD_BASE": "clean", "TARGETARCH": "arm64"}
    assert build._bases(load(place), "clean", "arm64") == expected


# ------------------------------------------------------------------------------------------------ no trace


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_trace_is_found_across_the_pieces_of_a_stream(size: int) -> None:
    data = b"a" * 50 + b"NEEDLE" + b"b" * 50
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert first_trace(pieces, {"it": b"NEEDLE", "longer": b"NOT THERE AT ALL"}) == "it"
    assert first_trace(pieces, {"it": b"NEEDLES"}) == ""


def test_every_settings_file_holds_the_mark_and_one_before_each_certificate() -> None:
    host = settings.BuildSettings(CERTIFICATE.encode() * 3, "[global]\n", {"Acquire::http::Proxy": "http://p:3128"})
    contents = host.contents()
    assert set(contents) == {"ca.crt", "pip.conf", "apt.conf"}
    assert all(settings.MARK.encode() in data for data in contents.values())
    assert contents["ca.crt"].count(settings.MARK.encode()) == 3
    assert all(value.startswith(settings.FOLDER) for value in host.environment().values())
    assert settings.BuildSettings().contents() == {}


def test_logins_of_indexes_and_proxies_are_traces() -> None:
    host = settings.BuildSettings(
        b"", "index-url = https://me:secret@index.example/simple", {}, {"http_proxy": "http://u:pw@proxy:1"}
    )
    assert set(host.traces().values()) == {settings.MARK.encode(), b"me:secret", b"u:pw"}


# ------------------------------------------------------------------------------------------------ the host's settings


def test_pip_settings_keep_indexes_that_a_build_can_reach() -> None:
    listing = (
        ":env:.cert='/etc/ca.crt'\n"
        ":env:.index-url='https://from.environment/simple'\n"
        "global.extra-index-url='file:///opt/simple https://extra.example/simple'\n"
        "global.find-links='/opt/wheels'\n"
        "global.index-url='https://from.file/simple'\n"
        "global.trusted-host='a.example b.example'\n"
    )
    assert settings.pip_settings(listing) == (
        "[global]\n"
        "index-url = https://from.environment/simple\n"
        "extra-index-url = https://extra.example/simple\n"
        "trusted-host = a.example\n    b.example\n"
    )
    assert settings.pip_settings("global.extra-index-url='file:///opt/simple'\n") == ""


def test_apt_proxies_are_taken_from_its_settings() -> None:
    dump = 'APT "";\nAcquire::http::Proxy "http://p:3128";\nAcquire::http::Proxy::in.house "DIRECT";\n'
    assert settings.apt_proxies(dump) == {
        "Acquire::http::Proxy": "http://p:3128", "Acquire::http::Proxy::in.house": "DIRECT",
    }  # fmt: skip


def test_the_ca_bundle_comes_from_the_option_then_the_environment(tmp_path: Path) -> None:
    first, second = tmp_path / "first.crt", tmp_path / "second.crt"
    first.write_text(CERTIFICATE)
    second.write_text(CERTIFICATE * 2)
    pip = tmp_path / "pip.conf"
    pip.write_text("[global]\nretries = 9\n")
    environ = {"PIP_CERT": str(second)}
    assert settings.from_host(first, pip, environ).ca == CERTIFICATE.encode()
    found = settings.from_host(None, pip, {**environ, "https_proxy": "http://p:1"})
    assert (found.ca, found.pip) == (CERTIFICATE.encode() * 2, pip.read_text())
    assert found.proxies == {"https_proxy": "http://p:1"}
    with pytest.raises(UsageError, match="contains no certificate"):
        settings.from_host(pip, pip, {})
    with pytest.raises(UsageError, match="cannot read"):
        settings.from_host(tmp_path / "none", pip, {})
    with pytest.raises(UsageError, match="has no deb line"):
        settings.from_host(None, pip, {"DEPLOYER_APT_SOURCES": str(pip)})
    first.write_text("deb http://m.example/debian bookworm main\n")
    assert settings.from_host(None, pip, {}, first).sources == first.read_text()


# ------------------------------------------------------------------------------------------------ bases


def test_mmdebstrap_gets_no_mirror_and_proxies_only_for_its_own_time() -> None:
    argv = base.command(Base(debian="bookworm", include=["python3", "adduser"]), {"Acquire::http::Proxy": "http://p:1"})
    assert argv[-2:] == ["bookworm", "-"]
    assert "--include=adduser,python3" in argv
    assert not [word for word in argv if word.startswith("--aptopt") and "Proxy" in word]
    assert any(word.startswith("--setup-hook=") and "http://p:1" in word for word in argv)
    assert '--customize-hook=rm "$1"/etc/apt/apt.conf.d/99deployer' in argv


@pytest.mark.thorough
def test_the_processor_of_a_base_is_the_definitions_and_never_this_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = load(write(tmp_path, "name: x\nversion: '1'\nbase: {debian: bookworm}\njobs: {j: {command: [a]}}\n"))
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "x", "6", "#1", "arm64")))
    for machine, name in names.items():
        of_machine = definition.on(machine).base
        assert of_machine is not None
        assert f"--architectures={name}" in base.command(of_machine, {})
    assert definition.machine == "x86_64"  # this machine's own never decides
    assert definition.on("aarch64").tag == f"{definition.tag}-aarch64"
    assert definition.on("aarch64").again.endswith(" --architecture aarch64")
    keys = {base.base_key(own) for machine in names if (own := definition.on(machine).base)}
    assert len(keys) == 2


def test_another_mirror_serves_only_while_mmdebstrap_works() -> None:
    line = "deb https://me:secret@mirror.example/debian bookworm main\n"
    argv = base.command(Base(debian="bookworm"), {}, line)
    assert argv[-2:] == ["bookworm", "-"]  # mmdebstrap's own mirror stays that of the base
    assert [word.startswith("--setup-hook=") for word in argv if "mirror.example" in word] == [True]
    assert any(word.startswith("--setup-hook=") and 'SourceList "deployer.list"' in word for word in argv)
    for path in ("deployer.list", "apt.conf.d/99deployer"):
        assert f'--customize-hook=rm "$1"/etc/apt/{path}' in argv
    host = settings.BuildSettings(sources=line)
    assert set(host.contents()) == {"sources.list", "apt.conf"}
    assert all(settings.MARK.encode() in data for data in host.contents().values())
    assert f'SourceList "{settings.FOLDER}/sources.list"' in host.contents()["apt.conf"].decode()
    assert b"me:secret" in host.traces().values()


def test_a_base_is_known_by_its_packages_whatever_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by the version of mmdebstrap."""
    running.program(tmp_path, "mmdebstrap", "echo mmdebstrap 1.3.5\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    one = base.base_key(Base(debian="bookworm", include=["a1", "b1"]))
    assert one == base.base_key(Base(debian="bookworm", include=["b1", "a1", "b1"]))
    assert one != base.base_key(Base(debian="bookworm", include=["a1"]))
    assert one != base.base_key(Base(debian="trixie", include=["a1", "b1"]))
    running.program(tmp_path, "mmdebstrap", "echo mmdebstrap 1.5.7\n")
    assert one != base.base_key(Base(debian="bookworm", include=["a1", "b1"]))
