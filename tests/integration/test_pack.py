"""The same image from each place that it can come from: one layer, whatever the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle import pack as packing
from deployer.connected.bundle import sources
from deployer.connected.ground import engine as engines
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from tests.integration.conftest import ROOT, Cli

IMAGE = "deployer/hello-mpi:1.0.0"


def layer(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the layer's digest, and what is kept of the configuration."""
    script = ["tar", "-xOf", path, "deployer/bundle.json"]
    image = json.loads(subprocess.run(script, capture_output=True, check=True, timeout=60).stdout)["image"]
    return image["layer_digest"], {
        name: image[name] for name in ("env", "workdir", "entrypoint", "cmd", "architecture")
    }


@pytest.mark.needs("skopeo", "zstd")
def test_every_source_gives_the_same_layer(built: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", built.environment["DOCKER_HOST"])

    def sh(script: str) -> None:
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, check=True, timeout=300, env=built.environment
        )

    sh(f"docker save {IMAGE} -o saved.tar && gzip -1 -k saved.tar")
    sh(f"skopeo copy -q docker-archive:saved.tar oci-archive:oci.tar:{IMAGE}")
    sh("skopeo copy -q docker-archive:saved.tar oci:layout:x")
    sh(f"id=$(docker create {IMAGE} none); docker export $id >flat.tar; docker rm $id >/dev/null")
    sh("zstd -q -k flat.tar && mkdir folder && tar -xf flat.tar -C folder")
    found = {}
    for option, source in (
        ("--image", IMAGE), ("--archive", "saved.tar"), ("--archive", "saved.tar.gz"), ("--archive", "oci.tar"),
        ("--archive", "layout"), ("--archive", "flat.tar"), ("--archive", "flat.tar.zst"), ("--rootfs", "folder"),
    ):  # fmt: skip
        where = source if option == "--image" else tmp_path / source
        output = tmp_path / "b.tar"
        built("pack", option, where, "--name", "x", "--version", "1", "-o", output)
        found[source] = layer(output)
    # Where the engine's folders cannot be read, it exports.
    monkeypatch.setattr(sources, "_from_layer_folders", lambda *_: None)
    exported = packing.pack(sources.from_image(IMAGE, "x", "1"), [], tmp_path / "e.tar")
    found["export"] = layer(exported.path)
    assert len({digest for digest, _ in found.values()}) == 1, found
    with_config = [
        config for source, (_, config) in found.items() if source not in ("flat.tar", "flat.tar.zst", "folder")
    ]
    assert all(config == with_config[0] for config in with_config)
    with closing(engines.connect()) as client:
        assert with_config[0]["env"] == engines.image_config(client, IMAGE)["Env"]
    assert found["folder"][1]["architecture"] == with_config[0]["architecture"]


def test_an_image_that_is_known_is_not_read_again(built: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes come out, also after a kill in the middle, and from another way of reading."""
    cli = Cli({**built.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    definition = tmp_path / "hello-mpi"
    shutil.copytree(ROOT / "bundles/hello-mpi", definition)
    app = definition / "app"

    def packed(name: str, *words: str) -> bytes:
        cli("pack", definition, "--site", "lab", *words, "-o", tmp_path / name)
        return (tmp_path / name).read_bytes()

    first = packed("first.tar")
    with next(app.iterdir()).open("a") as stream:
        stream.write("# changed\n")
    (record,) = (tmp_path / "cache").rglob("*.layer")
    argv = [
        str(ROOT / ".venv/bin/deployer"),
        "pack",
        str(definition),
        "--site",
        "lab",
        "-o",
        str(tmp_path / "known.tar"),
    ]
    for seconds in (0.5, 1.5):
        with subprocess.Popen(argv, env=cli.environment, stdout=subprocess.DEVNULL) as killed:
            time.sleep(seconds)
            killed.kill()
    known = packed("known.tar")
    assert list((tmp_path / "cache").rglob("*.layer")) == [record]  # the known layer was used
    assert known != first
    assert known == packed("read.tar", "--no-cache")
    monkeypatch.setenv("DOCKER_HOST", built.environment["DOCKER_HOST"])
    reads = [sources.from_image(IMAGE, "x", "1"), sources.from_image(IMAGE, "x", "1")]
    monkeypatch.setattr("deployer.connected.rootfs.imagelayers.layer_folders", lambda *_: [])
    exported = [packing.pack(each, [], tmp_path / "e.tar", "zstd", tmp_path / "frames").digest for each in reads]
    assert exported == [packing.pack(reads[0], [], tmp_path / "e.tar").digest] * 2


def test_an_image_of_any_size_needs_little_memory(tmp_path: Path) -> None:
    top = tmp_path / "rootfs"
    (top / "usr").mkdir(parents=True)
    for number in range(2):
        with open(top / "usr" / f"large{number}", "wb") as stream:
            stream.truncate(1024**3)
    (top / "usr" / "random").write_bytes(os.urandom(200_000_000))
    # Not getrusage's ru_maxrss, which begins with what the process had that started this one.
    script = (
        "import sys; from deployer.cli.laptop.main import main; code = main(sys.argv[1:]);"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]); sys.exit(code)"
    )
    words = ["pack", "--rootfs", top, "--name", "x", "--version", "1", "--no-cache", "-o", tmp_path / "b.tar"]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, timeout=250, check=True
    )
    assert int(done.stdout.splitlines()[-1]) * 1024 < 512 * 1024**2
    # Nor does it need much room where it is installed: holes stay holes, and the space check knows.
    image = install(str(tmp_path / "b.tar"), Store(str(tmp_path / "root"))).image
    large = Path(image.rootfs, "usr/large1").stat()
    assert (large.st_size, large.st_blocks * 512 < 1024**2) == (1024**3, True)
    assert image.receipt.bytes < 220_000_000
    assert image.manifest().image.holes > 2_100_000_000


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_a_pack_that_is_ended_leaves_nothing_or_what_the_next_removes(tmp_path: Path, how: signal.Signals) -> None:
    top = tmp_path / "rootfs" / "usr"
    top.mkdir(parents=True)
    with open(top / "large", "wb") as stream:
        stream.truncate(64 * 1024**3)
    out = tmp_path / "out"
    tool = [str(ROOT / ".venv/bin/deployer"), "pack", "--name", "x", "--version", "1", "--no-cache", "--rootfs"]
    argv = ["env", "--default-signal=INT", *tool, str(top.parent), "-o", str(out / "b.tar")]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        while not list(out.glob(".b.tar.*.part")):
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(how)
        said = process.communicate(timeout=60)[1]
    if how is not signal.SIGKILL:
        assert (process.returncode, said) == (130, "deployer: interrupted\n")
        assert list(out.iterdir()) == []
    (top / "large").unlink()
    subprocess.run([*tool, str(top.parent), "-o", str(out / "b.tar")], check=True, timeout=60)
    assert [path.name for path in out.iterdir()] == ["b.tar"]
