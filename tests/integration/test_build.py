"""build with a real engine: what it makes, what it refuses, and how it fails. Images are small."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
from docker.errors import APIError, ImageNotFound

from deployer.cli.laptop.main import main
from deployer.connected.ground import engine as engines
from deployer.connected.ground import xdg
from deployer.connected.image.build import BuildOptions, build
from deployer.connected.image.definition.definition import Definition, load
from deployer.connected.image.definition.settings import MARK
from deployer.connected.image.init import init
from deployer.connected.image.lint.lint import lint
from deployer.connected.image.wheelhouse.wheelhouse import Mode
from deployer.connected.rootfs import imagelayers
from deployer.contract.base.errors import DeployerError, JobFailed, MissingTool, Refused, UsageError
from tests.lab.engine import Engine, OwnEngine

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker", "mmdebstrap")]

BUNDLE = """\
name: {name}
version: "0"
base: {{debian: bookworm, include: [python3]}}
jobs: {{only: {{command: ["true"]}}}}
"""

#: Of a certificate that signs nothing; only its bytes matter.
CA = "-----BEGIN CERTIFICATE-----\nVGhpcyBpcyBub3QgYSBjZXJ0aWZpY2F0ZSBhdCBhbGw=\n-----END CERTIFICATE-----\n"
APT = "deb http://mirror.invalid/debian bookworm main\n"
PIP = "[global]\nindex-url = https://someone:a-secret@index.invalid/simple\n"


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the records of these builds away from the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def docker_host(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DOCKER_HOST", engine.docker_host)
    return engine.docker_host


@pytest.fixture
def client(docker_host: str) -> Iterator[docker.DockerClient]:
    with closing(engines.connect()) as client:
        yield client


def define(folder: Path, dockerfile: str, name: str = "pytest-build") -> Definition:
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "bundle.yaml").write_text(BUNDLE.format(name=name))
    (place / "Dockerfile").write_text(f"ARG BASE\n{dockerfile}")
    return load(place)


def quiet(_: str) -> None:
    pass


def remove(definition: Definition) -> None:
    with closing(engines.connect()) as client, contextlib.suppress(ImageNotFound):
        client.api.remove_image(definition.tag, force=True)


# ------------------------------------------------------------------------------------------------ it works


@pytest.mark.usefixtures("docker_host")
def test_hello_mpi_is_built_small_and_again_from_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "bundles/hello-mpi", "--quiet", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["build", "bundles/hello-mpi", "--quiet", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["image"] == first["image"]
    assert second["cached"] > 0
    assert first["tag"] == "deployer/hello-mpi:1.0.0"
    assert first["size"] < 60e6
    assert "[stage-1 1/1] COPY --from=python" in Path(second["log"]).read_text()
    with closing(engines.connect()) as client:
        config = engines.image_config(client, first["tag"])
    assert (config["Architecture"], config["Id"]) == ("amd64", first["image"])
    assert any(word.startswith("PATH=") for word in config["Env"])


@pytest.mark.usefixtures("docker_host")
def test_hello_mpi_runs_on_its_own_mpich(tmp_path: Path) -> None:
    definition = load("bundles/hello-mpi")
    build(definition, BuildOptions(), quiet)
    app = str(Path("bundles/hello-mpi/app").resolve())
    with closing(engines.connect()) as client, engines.errors_named(client, "run"):  # closes the SDK's sockets
        said = client.containers.run(
            definition.tag, ["mpiexec", "-n", "2", "python3", "/deployer/app/hello.py"], remove=True,
            volumes=[f"{app}:/deployer/app:ro", f"{tmp_path}:/result"], network_mode="none",
            environment={"DEPLOYER_RESULT": "/result/payload"},
        )  # fmt: skip
    assert b"rank 1 of 2" in said
    payload = json.loads((tmp_path / "payload").read_text())
    assert (payload["world_size"], payload["sum"]) == (2, 1)
    assert payload["mpi_library"].startswith("MPICH")


@pytest.mark.usefixtures("docker_host")
def test_the_root_filesystem_comes_out_as_a_tar_and_no_container_stays(
    tmp_path: Path, client: docker.DockerClient
) -> None:
    definition = define(tmp_path, "FROM ${BASE}\nRUN echo here >/marker\n")
    build(definition, BuildOptions(), quiet)
    before = {container.id for container in client.containers.list(all=True)}
    with open(tmp_path / "rootfs.tar", "wb") as stream:
        stream.writelines(engines.rootfs_chunks(client, definition.tag))
    with tarfile.open(tmp_path / "rootfs.tar") as archive:
        marker = archive.extractfile("marker")
        assert marker is not None
        assert marker.read() == b"here\n"
    assert {container.id for container in client.containers.list(all=True)} <= before
    with pytest.raises(UsageError, match="no image"):
        list(engines.rootfs_chunks(client, "deployer/no-such:1"))
    remove(definition)


# ------------------------------------------------------------------------------------------------ no trace


@pytest.fixture
def options(tmp_path: Path, client: docker.DockerClient) -> BuildOptions:
    build(define(tmp_path, "FROM ${BASE}\n"), BuildOptions(), quiet)  # the base is made from a mirror that answers
    (tmp_path / "ca.crt").write_text(CA)
    (tmp_path / "pip.conf").write_text(PIP)
    (tmp_path / "sources.list").write_text(APT)
    return BuildOptions(tmp_path / "ca.crt", tmp_path / "pip.conf", apt_sources=tmp_path / "sources.list")


@pytest.mark.usefixtures("docker_host")
def test_build_settings_are_there_in_the_build_and_leave_no_trace(
    tmp_path: Path, options: BuildOptions, client: docker.DockerClient
) -> None:
    definition = define(
        tmp_path,
        "FROM ${BASE} AS build\n"
        'RUN grep -q VGhpcyBp "$PIP_CERT" && grep -q index.invalid "$PIP_CONFIG_FILE"\n'
        "RUN apt-get update --print-uris >/made && grep mirror.invalid /made && ! grep -v mirror.invalid /made\n"
        "FROM ${BASE}\nCOPY --from=build /etc/debian_version /made\n",
    )
    built = build(definition, options, quiet)
    written = json.dumps([engines.image_config(client, built.tag), engines.history(client, built.tag)])
    data = written.encode() + b"".join(engines.rootfs_chunks(client, built.tag))
    for trace in (MARK, "VGhpcyBpcyBub3Q", "a-secret", "index.invalid", "mirror.invalid"):
        assert trace.encode() not in data
    remove(definition)


@pytest.mark.usefixtures("docker_host")
@pytest.mark.parametrize(
    ("last_stage", "reason"),
    [
        ("FROM ${BASE}\nCOPY --from=build /stolen /etc/innocent\n", "its files contains the build settings"),
        (f"FROM ${{BASE}}\nENV SSL_CERT_FILE=/{MARK}/ca.crt\n", "configuration or history shows the build settings"),
        ("FROM ${BASE}\nRUN echo someone:a-secret >/etc/login\n", "shows the login for index.invalid"),
        pytest.param(
            "FROM ${BASE}\nCOPY --from=build /login /login\n",
            "files contains the login for index.invalid",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_trace_of_the_build_settings_is_refused(
    tmp_path: Path, options: BuildOptions, last_stage: str, reason: str, client: docker.DockerClient
) -> None:
    login = 'RUN sed -n \'s|.*//\\(.*\\)@.*|\\1|p\' "$PIP_CONFIG_FILE" >/login; cp "$PIP_CERT" /stolen\n'
    definition = define(tmp_path, f"FROM ${{BASE}} AS build\n{login}{last_stage}", "pytest-trace")
    with contextlib.suppress(APIError):  # of a test that failed
        client.api.remove_image(definition.tag)
    with pytest.raises(Refused) as caught:
        build(definition, options, quiet)
    assert reason in caught.value.message
    assert not engines.has_image(client, definition.tag)


# ------------------------------------------------------------------------------------------------ it fails


@pytest.mark.usefixtures("docker_host")
def test_a_failing_run_line_shows_the_end_of_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    definition = define(tmp_path, "FROM ${BASE}\nRUN (seq 100; echo 'gcc: no such file') >&2; exit 3\n")
    assert main(["build", str(definition.folder), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert "deployer: error: build of deployer/pytest-build:0 failed in step 2/2, RUN (seq 100; echo" in said
    assert "exit 3: gcc: no such file" in said
    assert "100 /" not in said
    log = said.rpartition("hint: the whole log: ")[2].splitlines()[0]
    assert "\n100\ngcc: no such file\n" in Path(log).read_text()
    assert "Traceback" not in said


@pytest.mark.usefixtures("docker_host")
def test_mistakes_in_the_dockerfile_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown instruction: FORM"):
        build(define(tmp_path, "FORM ${BASE}\n"), BuildOptions(), quiet)
    with pytest.raises(JobFailed, match="COPY no-such-file"):
        build(define(tmp_path, "FROM ${BASE}\nCOPY no-such-file /\n"), BuildOptions(), quiet)


@pytest.mark.slow  # mmdebstrap fetches the essential packages before it asks for more
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("docker_host")
def test_a_debian_package_that_does_not_exist_is_named(tmp_path: Path) -> None:
    definition = define(tmp_path, "FROM ${BASE}\n")
    file = definition.folder / "bundle.yaml"
    file.write_text(file.read_text().replace("python3", "no-such-package"))
    with pytest.raises(JobFailed, match="no-such-package"):
        build(load(file), BuildOptions(), quiet)


@pytest.mark.usefixtures("docker_host")
def test_a_debian_mirror_that_does_not_answer_is_named(tmp_path: Path, options: BuildOptions) -> None:
    definition = define(tmp_path, "FROM ${BASE}\n")
    file = definition.folder / "bundle.yaml"
    file.write_text(file.read_text().replace("python3", "python3, hello"))  # a base that nobody has
    with pytest.raises(JobFailed, match=r"mirror\.invalid"):
        build(load(file), options, quiet)


def test_bad_definitions_and_no_engine_have_their_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert main(["build", "bundles/no-such"]) == 2
    assert "bundles/hello-mpi" in capsys.readouterr().err
    definition = define(tmp_path, "FROM ${BASE}\n")
    assert main(["build", str(definition.folder)]) == 7
    said = capsys.readouterr().err
    assert "no Docker engine answers" in said
    assert "install and start Docker" in said
    (definition.folder / "bundle.yaml").write_text("name: [\n")
    assert main(["build", str(definition.folder)]) == 2
    assert "bundle.yaml:2: not valid YAML" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ pack, after a build


@pytest.mark.usefixtures("docker_host")
def test_pack_takes_only_an_image_of_the_definition_as_it_is_now(
    tmp_path: Path, client: docker.DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "FROM ${BASE}\nCOPY given /given\n"
    definition = define(tmp_path, lines, "pytest-stale")
    folder = definition.folder
    (folder / "given").write_text("one")
    pack = ["pack", str(folder), "--no-cache", "-o", str(tmp_path / "b.tar")]

    def refused() -> str:
        assert main(pack) == 3
        said = capsys.readouterr().err
        assert f"hint: build it: deployer build {folder}" in said
        return said

    remove(definition)
    assert "it is not built" in refused()
    first = build(definition, BuildOptions(), quiet)
    assert main(pack) == 0
    again = build(definition, BuildOptions(mode=Mode(offline=True)), quiet)
    assert again.image == first.image
    (folder / "app").mkdir()
    (folder / "app" / "train.py").write_text("pass")  # travels beside the image
    assert main(pack) == 0
    (folder / "given").write_text("two")
    assert "built from other inputs" in refused()
    define(tmp_path, lines + "RUN false\n", "pytest-stale")
    with pytest.raises(JobFailed):
        build(load(folder), BuildOptions(), quiet)
    refused()
    define(tmp_path, lines, "pytest-stale")
    assert build(load(folder), BuildOptions(), quiet).image != first.image
    assert main(pack) == 0
    # An image of an older deployer has no label.
    xdg.state_folder("builds").joinpath("pytest-stale-0.json").unlink()
    client.api.tag(first.base, "deployer/pytest-stale", "0", force=True)
    refused()
    remove(definition)


# ------------------------------------------------------------------------------------------------ lint, after a build


def test_lint_reads_the_layers_of_a_built_image(
    tmp_path: Path, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = define(
        tmp_path,
        "FROM ${BASE}\nRUN echo machine x login y password abcd1234efgh >/root/.netrc\n"
        "RUN rm /root/.netrc\nUSER 1000\n",
        "pytest-lint",
    )
    built = build(definition, BuildOptions(), quiet)  # a user other than root is a warning, no error
    first = lint(definition)
    said = {item.code: item.message for item in first.findings}
    assert first.image == built.tag
    assert "secrets.image" in said
    assert "dockerfile.user" in said
    monkeypatch.setattr(imagelayers, "layer_folders", lambda *_: [])  # an engine whose folders we may not read
    assert lint(definition) == first
    remove(definition)


# ------------------------------------------------------------------------------------------------ init


@pytest.mark.usefixtures("docker_host")
def test_what_init_writes_is_built_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = load(init("pytest-init", "none", tmp_path).folder)
    build(definition, BuildOptions(), quiet)
    assert lint(definition).findings == []
    with closing(engines.connect()) as client, engines.errors_named(client, "run"):  # closes the SDK's sockets
        said = client.containers.run(
            definition.tag, ["mpiexec", "-n", "2", "python3", "/deployer/app/main.py"], remove=True,
            volumes=[f"{definition.app_folder}:/deployer/app:ro"], network_mode="none",
        )  # fmt: skip
    assert b"rank 1 of 2: sum 1" in said
    remove(definition)


# ------------------------------------------------------------------------------------------------ it is interrupted


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_a_build_that_is_interrupted_leaves_nothing_half_made_and_the_next_goes_on(
    tmp_path: Path, client: docker.DockerClient, how: signal.Signals
) -> None:
    step = f"RUN echo {tmp_path}\n"  # never built before
    definition = define(tmp_path, f"FROM ${{BASE}}\n{step}RUN echo second; sleep 60\n", "pytest-cut")
    remove(definition)  # of a run that failed here
    argv = [str(Path(sys.executable).with_name("deployer")), "build", str(definition.folder)]
    # As from a terminal: who started the tests may ignore SIGINT, and children would too.
    argv = ["env", "--default-signal=INT", *argv]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert "second\n" in lines
        process.send_signal(how)
        rest = list(lines)
    assert process.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
    assert rest[-1:] == (["deployer: interrupted\n"] if how is signal.SIGINT else [])
    assert "Traceback" not in "".join(rest)
    assert not engines.has_image(client, definition.tag)
    assert not list(xdg.state_folder("builds").glob("*.json"))
    (definition.folder / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\n{step}RUN true\n")
    assert build(definition, BuildOptions(), quiet).cached >= 1
    remove(definition)


# ------------------------------------------------------------------------------------------------ the disk is full


@pytest.fixture
def small_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """Yield an engine that has 96 MiB of disk."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", folder], check=True)
    own = OwnEngine(folder)
    try:
        own.start()
        monkeypatch.setenv("DOCKER_HOST", own.docker_host)
        yield own
    finally:
        own.stop()
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.usefixtures("small_engine")
def test_a_full_disk_in_the_build_says_so_and_the_next_build_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(__file__, "usr/marker")
    definition = define(tmp_path, "FROM ${BASE}\nCOPY bundle.yaml /first\nCOPY big /big\n")
    file = definition.folder / "bundle.yaml"
    file.write_text(file.read_text().replace("{debian: bookworm, include: [python3]}", "{archive: ../root.tar}"))
    with open(definition.folder / "big", "wb") as stream:
        stream.truncate(56 * 1024 * 1024)  # there is room for the context, and none for its copy in a layer
    assert main(["build", str(definition.folder), "--quiet"]) == 6
    said = capsys.readouterr().err
    assert "no space left on device" in said
    assert "hint: free space in the engine" in said
    (definition.folder / "big").write_text("small")
    subprocess.run(["mount", "-o", "remount,size=200m", tmp_path / "small"], check=True)
    assert main(["build", str(definition.folder), "--quiet"]) == 0


# ------------------------------------------------------------------------------------------------ the engine dies


@pytest.fixture
def private_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    own = OwnEngine(tmp_path / "engine")
    own.start()
    monkeypatch.setenv("DOCKER_HOST", own.docker_host)
    yield own
    own.stop()
    assert own._processes() == []
    assert not Path(f"/sys/class/net/{own.bridge}").exists()


def kill(own: OwnEngine) -> None:
    process = own.process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


def test_an_engine_that_is_killed_in_the_build_is_named_and_the_next_build_goes_on(
    tmp_path: Path, private_engine: OwnEngine
) -> None:
    definition = define(tmp_path, "FROM ${BASE}\nRUN echo first\nRUN echo second; sleep 30\n")

    def kill_in_second(line: str) -> None:
        if line == "second":
            kill(private_engine)

    with pytest.raises(MissingTool, match="in step 3/3, RUN echo second; sleep 30: the Docker engine went away"):
        build(definition, BuildOptions(), kill_in_second)
    with pytest.raises(MissingTool, match="no Docker engine answers"):
        build(definition, BuildOptions(), quiet)
    assert private_engine.start()
    (definition.folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN echo first\nRUN true\n")
    assert build(definition, BuildOptions(), quiet).cached == 1


def test_an_engine_that_is_killed_in_the_export_is_an_error(tmp_path: Path, private_engine: OwnEngine) -> None:
    definition = define(tmp_path, "FROM ${BASE}\n")
    build(definition, BuildOptions(), quiet)

    lost = pytest.raises(DeployerError, match="cannot export")
    with closing(engines.connect()) as client, lost:
        for number, _ in enumerate(engines.rootfs_chunks(client, definition.tag)):
            if not number:  # what it had sent before still comes
                kill(private_engine)
