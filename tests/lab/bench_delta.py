"""`scripts/bench delta` and `scripts/bench push`: what a change costs to ship, and how fast the line is used."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.about.diff import diff
from deployer.connected.bundle.shipment import as_stream, shipment_for
from deployer.connected.ground import engine
from deployer.connected.site_profile.profile import load
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.delta import END
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.bundle.sealed_file import read_manifest
from deployer.system.trust.verify import opened, read_manifest_block, read_seal
from tests import bundles
from tests.lab import Lab
from tests.lab.engine import take_engine

WORK = Path(__file__).resolve().parents[2] / ".deployer" / "bench"
_SECONDS = 1800
#: A package of the image, and another version of it that fits as well.
_BUMPED = ("requests", "2.32.3")


def add_parsers(verbs: Any) -> None:
    """Register the two measurements."""
    command = verbs.add_parser("delta")
    command.add_argument("--image", default="deployer/digits-horovod:1.0.0")
    command.add_argument("--rebuilt", metavar="REF", help="the same image, built again without cache")
    command.set_defaults(run=delta)
    command = verbs.add_parser("push")
    command.add_argument("--size", type=int, default=256, help="MB to send on the fast line (default: 256)")
    command.add_argument("--slow-size", type=int, default=64, help="MB to send at 100 Mbit/s (default: 64)")
    command.set_defaults(run=push)


# ---------------------------------------------------------------- delta


def delta(args: argparse.Namespace) -> None:
    """Print the bytes to ship for some changes of an image, by push and by others."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    with take_engine() as taken:
        os.environ["DOCKER_HOST"] = taken.docker_host
        exported = {"old": export(args.image, "old")}
        if args.rebuilt:
            what = "whole image built again without cache"
            exported[what] = export(args.rebuilt, "rebuilt")
    raws = {what: same(raw) for what, raw in exported.items()}
    raws["one .py changed, one script added"] = _changed(
        raws["old"], "script", lambda name: False, _script(raws["old"])
    )
    raws[f"pip package bumped: {' '.join(_BUMPED)}"] = bumped(raws["old"])

    app = WORK / "app"
    app.mkdir()
    (app / "train.py").write_text("print('a')\n" * 500)
    old = packed(app, raws["old"], "old")
    rows = [("unchanged", old, raws["old"])]
    rows += [
        (what, packed(app, raw, f"new{number}"), raw)
        for number, (what, raw) in enumerate(raws.items())
        if what != "old"
    ]
    (app / "train.py").write_text("print('a')\n" * 499 + "print('b')\n")
    rows.insert(1, ("training script changed (app/)", packed(app, raws["old"], "app"), raws["old"]))
    _compare(old, raws["old"], rows)
    shutil.rmtree(WORK)


def _compare(old: Path, old_raw: Path, rows: Sequence[tuple[str, Path, Path]]) -> None:
    old_zst = _zst(old_raw, "old")
    store = WORK / "old.castr"
    _casync(old_raw, store, "old")
    print(f"bytes to ship, MB; the whole bundle has {old.stat().st_size / 1e6:.1f}")
    print(f"{'':<48} {'push':>8} {'scp':>8} {'rsync zst':>10} {'casync':>8}")
    for what, bundle, raw in rows:
        found = diff(str(old), str(bundle))
        sizes = [
            found.bytes_to_ship,
            bundle.stat().st_size,
            _rsync(old_zst, _zst(raw, "new")),
            _casync(raw, store, "new"),
        ]
        shown = " ".join(f"{size / 1e6:>{width}.3f}" for size, width in zip(sizes, (8, 8, 10, 8), strict=True))
        files = f"{len(found.added)} added, {len(found.removed)} removed, {len(found.changed)} changed"
        print(f"{what:<48} {shown}   ({files})", flush=True)


def export(reference: str, name: str) -> Path:
    """Return the root filesystem of an image as a tar."""
    path = WORK / f"{name}.rootfs.tar"
    with contextlib.closing(engine.connect()) as client, path.open("wb") as stream:
        stream.writelines(engine.rootfs_chunks(client, reference))
    return path


def packed(app: Path, raw: Path, name: str) -> Path:
    """Return a bundle of a root filesystem and an app folder."""
    contents = sources.from_archive(raw, "bench", "1")._replace(app=app)
    return pack.pack(contents, [load("lab")], WORK / f"{name}.tar").path


def same(raw: Path) -> Path:
    """Return a root filesystem that was written again, unchanged, to be compared with ``bumped``."""
    return _changed(raw, f"{raw.name}-same", lambda name: False, [])


def bumped(raw: Path) -> Path:
    """Return a root filesystem with another version of one package."""
    return _changed(raw, "pip", *_bump(raw))


_Added = list[tuple[tarfile.TarInfo, bytes]]


def _changed(raw: Path, name: str, dropped: Callable[[str], bool], added: _Added) -> Path:
    """Write the root filesystem's tar again, without some of its members and with others in their places.

    All of them go through here, so that they differ in nothing else.
    """
    path = WORK / f"{name}.rootfs.tar"
    new = {info.name: (info, data) for info, data in added}
    with tarfile.open(raw) as source, tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as target:
        for info in source:
            if info.name in new:
                other, data = new.pop(info.name)
                target.addfile(other, io.BytesIO(data))
            elif not dropped(info.name):
                target.addfile(info, source.extractfile(info) if info.isreg() else None)
        for info, data in new.values():
            target.addfile(info, io.BytesIO(data))
    return path


def _script(raw: Path) -> _Added:
    """Return one Python file of TensorFlow with a line more, and a new script."""
    with tarfile.open(raw) as source:
        info = next(i for i in source if i.name.endswith("/tensorflow/python/data/ops/dataset_ops.py"))
        stream = source.extractfile(info)
        data = (stream.read() if stream else b"") + b"# changed\n"
    info.size = len(data)
    script = tarfile.TarInfo("usr/local/bin/prepare-data")
    text = b"#!/usr/bin/env python3\nprint('prepared')\n" * 20
    script.size, script.mode, script.mtime = len(text), 0o755, info.mtime
    return [(info, data), (script, text)]


def _bump(raw: Path) -> tuple[Callable[[str], bool], _Added]:
    """Return what of the image belongs to the old version of the package, and the files of the new one."""
    package, version = _BUMPED
    with tarfile.open(raw) as source:
        names = source.getnames()
    record = next(name for name in names if f"/{package}-" in name and name.endswith(".dist-info/RECORD"))
    place = record.rsplit("/", 2)[0]
    folders = (f"{place}/{package}/", f"{record.rsplit('/', 1)[0]}/")
    new = WORK / "pip"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        new,
        f"{package}=={version}",
    ]
    subprocess.run(pip, check=True, timeout=_SECONDS)
    added: _Added = []
    for path in sorted(new.rglob("*")):
        info = tarfile.TarInfo(f"{place}/{path.relative_to(new).as_posix()}")
        if path.is_file() and not info.name.startswith(f"{place}/bin/"):
            data = path.read_bytes()
            info.size, info.mode, info.mtime = len(data), 0o644, int(path.stat().st_mtime)
            added.append((info, data))
    shutil.rmtree(new)
    return lambda name: name.startswith(folders), added


def _zst(raw: Path, name: str) -> Path:
    path = WORK / f"{name}.tar.zst"
    subprocess.run(
        ["zstd", "-q", "-f", "-3", "-T0", "--rsyncable", str(raw), "-o", str(path)], check=True, timeout=_SECONDS
    )
    return path


def _rsync(old: Path, new: Path) -> int:
    """Return the bytes that rsync moves, both ways, to make ``new`` of ``old``."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        target = Path(folder, "there")
        shutil.copy(old, target)
        argv: list[str | Path] = ["rsync", "--no-whole-file", "--ignore-times", "--stats", new, target]
        said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_SECONDS).stdout
    lines = [line for line in said.splitlines() if line.startswith(("Total bytes sent:", "Total bytes received:"))]
    return sum(int(line.split(":")[1].replace(",", "")) for line in lines)


def _casync(raw: Path, store: Path, name: str) -> int:
    """Return the bytes of casync's index and of the chunks that ``store`` lacked; they are in it then."""
    before = {path.name for path in store.rglob("*.cacnk")}
    index = WORK / f"{name}.caibx"
    subprocess.run(
        ["casync", "make", f"--store={store}", index, raw], check=True, capture_output=True, timeout=_SECONDS
    )
    new = [path for path in store.rglob("*.cacnk") if path.name not in before]
    size = index.stat().st_size + sum(path.stat().st_size for path in new)
    for path in new if before else ():  # the next row starts from the old one too
        path.unlink()
    return size


# ---------------------------------------------------------------- push


def push(args: argparse.Namespace) -> None:
    """Send one big file by scp and by push's stream in turn, through the same ssh connection, fast and slowed down."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    lab = Lab("bench-push")
    try:
        lab.up()
        for rate, megabytes in ((None, args.size), ("100mbit", args.slow_size)):
            bundle = _big_bundle(megabytes)
            if rate:
                lab.fault("link-slow", "laptop", rate)
            with Remote(load("lab"), lab.ssh_config) as remote:
                remote.prepare()
                times = [(_scp(remote, bundle), _stream(remote, bundle)) for _ in range(args.rounds + 1)][1:]
            ratio = statistics.median(scp / ours for scp, ours in times)
            print(f"{bundle.stat().st_size / 1e6:.0f} MB, line {rate or 'as fast as this machine'}:")
            for name, seconds in zip(("scp", "push"), zip(*times, strict=True), strict=True):
                speed = bundle.stat().st_size / 1e6 / statistics.median(seconds)
                shown = " ".join(f"{value:7.3f}" for value in (min(seconds), statistics.median(seconds), max(seconds)))
                print(f"{name:<6} min median max s {shown}   {speed:7.1f} MB/s")
            print(f"push has {ratio:.2f} x the throughput of scp (median of {args.rounds} rounds, in turn)", flush=True)
    finally:
        lab.down(purge=True)
        shutil.rmtree(WORK, ignore_errors=True)


def _big_bundle(megabytes: int) -> Path:
    extra = [(f"deployer/wheels/{number}", os.urandom(4_000_000)) for number in range(megabytes // 4)]
    path = WORK / "big.tar"
    build: Any = bundles.build
    path.write_bytes(build(extra=extra))
    return path


def _scp(remote: Remote, bundle: Path) -> float:
    target = f"{remote.host}:{remote.workspace}/incoming/scp"
    started = time.monotonic()
    subprocess.run(["scp", "-q", *remote.options, bundle, target], check=True, timeout=_SECONDS)
    seconds = time.monotonic() - started
    remote.shell(f"rm {remote.workspace}/incoming/scp")
    return seconds


def _stream(remote: Remote, bundle: Path) -> float:
    digest = hashlib.sha256(bundle.name.encode()).hexdigest()
    with opened(str(bundle)) as stream:
        seal = read_seal(stream, str(bundle))
        manifest: Manifest = read_manifest(read_manifest_block(stream, seal), seal)
        shipment = shipment_for(stream, seal, manifest, frozenset())
        pieces = (piece for piece in as_stream(stream, shipment, lambda _: None) if piece != END)
        started = time.monotonic()
        with contextlib.suppress(DeployerError):  # cut before the end, so nothing is installed
            remote.converse(["take", digest], lambda known: pieces, _SECONDS)
        seconds = time.monotonic() - started
    remote.shell(f"rm -r {remote.workspace}/incoming/{digest[:32]}")
    return seconds
