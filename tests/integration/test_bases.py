"""Bases with a real engine: an archive's, a registry's by its digest, and a definition that is its base alone."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest
import zstandard
from docker.errors import APIError

from deployer.connected.bundle import from_image, sources
from deployer.connected.bundle import pack as packing
from deployer.connected.ground import engine as engines
from deployer.connected.image.build import BuildOptions, build
from deployer.connected.image.definition.definition import Definition, load
from deployer.connected.image.definition.settings import MARK
from deployer.contract.base.errors import IntegrityError, TransferError, UsageError
from tests.lab.engine import Engine

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker")]

#: The last stage and a stage with the build settings; neither runs a program, so a base needs none.
DOCKERFILE = """\
ARG BASE
FROM ${BASE} AS build
COPY Dockerfile /made
FROM ${BASE}
COPY --from=build /made /made
"""
CA = "-----BEGIN CERTIFICATE-----\nVGhpcyBpcyBub3QgYSBjZXJ0aWZpY2F0ZSBhdCBhbGw=\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def client(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[docker.DockerClient]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", engine.docker_host)
    with closing(engines.connect()) as client:
        yield client


def flat_tar(tmp_path: Path) -> bytes:
    """Return a root filesystem of one file, not root's, whose content no other test has."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("bin", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        entry = tarfile.TarInfo("etc/marker")
        data = str(tmp_path).encode()
        entry.size, entry.uid, entry.gid = len(data), 1234, 1234
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def define(tmp_path: Path, base: str, dockerfile: str | None = DOCKERFILE) -> Definition:
    place = tmp_path / "pytest-base"
    place.mkdir(exist_ok=True)
    text = f'name: pytest-base\nversion: "0"\nbase: {{{base}}}\njobs: {{only: {{command: ["true"]}}}}\n'
    (place / "bundle.yaml").write_text(text)
    if dockerfile is not None:
        (place / "Dockerfile").write_text(dockerfile)
    return load(place)


def built_files(
    client: docker.DockerClient, definition: Definition, options: BuildOptions | None = None
) -> dict[str, Any]:
    """Build, take the image and its base out of the engine again, and return the image's files by name."""
    built = build(definition, options or BuildOptions(), lambda _: None)
    data = b"".join(engines.rootfs_chunks(client, built.tag))
    assert MARK.encode() not in data
    config = engines.image_config(client, built.tag)
    for name in (built.tag, built.base):
        client.api.remove_image(name, force=True)
    found: dict[str, Any] = {"config": config, "base": built.base}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive.getmembers():
            if entry.isfile():
                stream = archive.extractfile(entry)
                found[entry.name] = (stream.read() if stream else b"", entry.uid)
    return found


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    (tmp_path / "ca.crt").write_text(CA)
    (tmp_path / "pip.conf").write_text("[global]\nretries = 9\n")
    return BuildOptions(tmp_path / "ca.crt", tmp_path / "pip.conf")


# ------------------------------------------------------------------------------------------------ archives


@pytest.mark.parametrize("codec", ["plain", "gzip", "zstd"])
def test_a_flat_tar_is_a_base_with_build_settings_and_without_their_trace(
    tmp_path: Path, client: docker.DockerClient, options: BuildOptions, codec: str
) -> None:
    data = flat_tar(tmp_path)
    pressed = {"plain": data, "gzip": gzip.compress(data), "zstd": zstandard.compress(data)}[codec]
    (tmp_path / "root.tar").write_bytes(pressed)
    digest = hashlib.sha256(pressed).hexdigest()
    found = built_files(client, define(tmp_path, f"archive: ../root.tar, sha256: {digest}"), options)
    assert found["etc/marker"] == (str(tmp_path).encode(), 1234)
    assert found["made"][0] == DOCKERFILE.encode()
    assert found["base"] == f"localhost/deployer/base:{digest[:16]}"


def test_an_oci_archive_keeps_its_configuration_and_a_docker_save_archive_its_layers(
    tmp_path: Path, client: docker.DockerClient, options: BuildOptions
) -> None:
    (tmp_path / "root.tar").write_bytes(flat_tar(tmp_path))
    contents = sources.from_archive(tmp_path / "root.tar", "pytest-oci", "0")
    packing.pack(contents, [], tmp_path / "oci.tar")  # a bundle is an OCI archive, of one zstd layer
    found = built_files(client, define(tmp_path, "archive: ../oci.tar"))
    assert found["etc/marker"][0] == str(tmp_path).encode()

    dockerfile = 'ARG BASE\nFROM ${BASE}\nENV A="b c"\nCOPY Dockerfile /first\nCOPY Dockerfile /second\n'
    built = build(define(tmp_path, "archive: ../root.tar", dockerfile), BuildOptions(), lambda _: None)
    with engines.errors_named(client, "save"), gzip.open(tmp_path / "saved.tar.gz", "wb", compresslevel=1) as stream:
        for chunk in client.api.get_image(built.tag):
            stream.write(chunk)
    for name in (built.tag, built.base):
        client.api.remove_image(name, force=True)
    found = built_files(client, define(tmp_path, "archive: ../saved.tar.gz"), options)
    assert found["first"] == found["second"] == (dockerfile.encode(), 0)
    assert found["etc/marker"][1] == 1234
    assert "A=b c" in found["config"]["Env"]
    assert len(found["config"]["Layers"]) == 4
    with pytest.raises(APIError):  # loaded under our name alone
        client.api.inspect_image(built.tag)


def test_an_archive_that_is_none_or_another_is_refused(tmp_path: Path, client: docker.DockerClient) -> None:
    (tmp_path / "root.tar").write_bytes(b"not a tar" * 1000)
    with pytest.raises(UsageError, match=r"root\.tar: the file is not a tar archive"):
        build(define(tmp_path, "archive: ../root.tar"), BuildOptions(), lambda _: None)
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "pytest-base" / "Dockerfile", "Dockerfile")
    with pytest.raises(UsageError, match="neither an image nor a root filesystem"):
        build(define(tmp_path, "archive: ../root.tar"), BuildOptions(), lambda _: None)
    (tmp_path / "root.tar").write_bytes(gzip.compress(flat_tar(tmp_path))[:-20])
    with pytest.raises(UsageError, match="broken or cut off"):
        build(define(tmp_path, "archive: ../root.tar"), BuildOptions(), lambda _: None)
    with pytest.raises(IntegrityError, match="not the base that the definition names"):
        build(define(tmp_path, f"archive: ../root.tar, sha256: {'f' * 64}"), BuildOptions(), lambda _: None)


# ------------------------------------------------------------------------------------------------ registries


class Registry(ThreadingHTTPServer):
    """A registry with one image of one layer, read only. Source: OCI distribution specification 1.0, pull."""

    daemon_threads = True

    def __init__(self, root: bytes, architecture: str = "amd64") -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        layer = gzip.compress(root, mtime=0)
        rootfs = {"type": "layers", "diff_ids": [_sha256(root)]}
        config = json.dumps({"architecture": architecture, "os": "linux", "config": {"Env": ["A=b"]}, "rootfs": rootfs})
        kind = "application/vnd.docker.%s"
        blobs = [("container.image.v1+json", config.encode()), ("image.rootfs.diff.tar.gzip", layer)]
        described = [{"mediaType": kind % name, "size": len(data), "digest": _sha256(data)} for name, data in blobs]
        self.manifest_kind = kind % "distribution.manifest.v2+json"
        manifest = json.dumps(
            {"schemaVersion": 2, "mediaType": self.manifest_kind, "config": described[0], "layers": described[1:]}
        ).encode()
        self.digest = _sha256(manifest)
        self.known = {_sha256(data): data for data in (config.encode(), layer, manifest)}
        self.known["tag"] = manifest
        self.name = f"127.0.0.1:{self.server_address[1]}/pytest/base"


class _Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        digest = self.path.rpartition("/")[2]
        data = b"{}" if self.path == "/v2/" else self.server.known.get(digest)
        self.send_response(404 if data is None else 200)
        if data is None:
            data = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode()
        kind = self.server.manifest_kind if "/manifests/" in self.path else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Docker-Content-Digest", _sha256(data))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@contextmanager
def serving(root: bytes, architecture: str = "amd64") -> Iterator[Registry]:
    with Registry(root, architecture) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with serving(flat_tar(tmp_path)) as server:
        yield server


def test_a_base_of_another_architecture_is_said(tmp_path: Path, client: docker.DockerClient) -> None:
    said: list[str] = []
    with serving(flat_tar(tmp_path), "s390x") as registry:
        built = build(define(tmp_path, f"image: '{registry.name}@{registry.digest}'"), BuildOptions(), said.append)
    assert any("is for s390x, and the engine's machine is " in line for line in said)
    for name in (built.tag, built.base):
        client.api.remove_image(name, force=True)


def test_a_registrys_image_is_pulled_by_its_digest_and_then_the_engines(
    tmp_path: Path, registry: Registry, options: BuildOptions, client: docker.DockerClient
) -> None:
    definition = define(tmp_path, f"image: '{registry.name}:tag@{registry.digest}'")
    said: list[str] = []
    build(definition, BuildOptions(), said.append)
    assert f"base: pull {registry.name}@{registry.digest}" in said
    registry.known.clear()  # from now on it is the engine's
    found = built_files(client, definition, options)
    assert found["etc/marker"] == (str(tmp_path).encode(), 1234)
    assert "A=b" in found["config"]["Env"]


def test_a_definition_is_written_for_an_image_of_the_engine_or_a_registry(
    tmp_path: Path, registry: Registry, options: BuildOptions, client: docker.DockerClient
) -> None:
    reference = f"{registry.name}:tag"
    pulled = load(from_image.definition(reference, None, tmp_path).folder)
    assert pulled.base is not None
    assert (pulled.base.image, pulled.mpi, pulled.version) == (f"{registry.name}@{registry.digest}", [], "tag")
    known = load(from_image.definition(reference, "known", tmp_path).folder)  # the registry still has it
    assert known.base == pulled.base
    client.api.tag(reference, "pytest-local", "1.5")
    registry.known.clear()
    by_id = str(client.api.inspect_image(reference)["Id"])
    for image, name in (("pytest-local:1.5", None), (by_id, "by-id")):
        folder = from_image.definition(image, name, tmp_path).folder
        local = load(folder)
        assert local.base is not None
        assert (local.base.archive, local.needs_engine) == ("image.tar", False)
        assert local.name == (name or "pytest-local")
        built = build(local, options, lambda _: None)
        assert built.base == str(folder / "image.tar")
    for name in (reference, "pytest-local:1.5"):
        client.api.remove_image(name, force=True)
    with pytest.raises(UsageError, match="the registry does not provide the image"):
        from_image.definition(f"{registry.name}:nope", None, tmp_path)


def test_an_image_that_no_registry_gives_is_named(tmp_path: Path, registry: Registry) -> None:
    unknown = define(tmp_path, f"image: '{registry.name}@sha256:{'0' * 64}'")
    with pytest.raises(UsageError, match="the registry does not provide the image"):
        build(unknown, BuildOptions(), lambda _: None)
    name = f"127.0.0.1:9/pytest/base@{registry.digest}"  # nobody listens there
    with pytest.raises(TransferError, match=r"cannot pull 127\.0\.0\.1:9/pytest/base@sha256:") as caught:
        build(define(tmp_path, f"image: '{name}'"), BuildOptions(), lambda _: None)
    assert "deployer init --from-image FILE" in caught.value.hint
