import hashlib
import io
import json
import marshal
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.bundle import kit, sources
from deployer.connected.bundle import pack as packing
from deployer.connected.bundle import seal as sealing
from deployer.connected.bundle.about.diff import diff
from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.check.checking import Checking
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import tarreader
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.connected.rootfs.entries import OnDisk
from deployer.connected.rootfs.merge import Rootfs
from deployer.connected.rootfs.tarreader import Spooled
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.base import first_bytes
from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import DATA, DataNeed
from deployer.site.install import install as installing
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from deployer.system import files
from deployer.system.tool import tool_bytecode
from tests import bundles, elves, planted, tars, wheels
from tests.evidence import recorded


def rootfs(start: bytes = b"") -> bytes:
    """Return the tar of a small image, whose programs begin with ``start``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("usr/bin/python3", "usr/bin/tool", "etc/passwd"):
            info = tarfile.TarInfo(name)
            info.size, info.mode = 2000, 0o755
            tar.addfile(info, io.BytesIO((start + name.encode()).ljust(2000)))
    return stream.getvalue()


def contents(app: Path | None = None, data: bytes = b"") -> Contents:
    def read(scratch: Scratch) -> ArchiveImage:
        root = Rootfs()
        root.apply(tarreader.entries_of(Spooled(io.BytesIO(data or rootfs()).read, scratch.spool)))
        config = {"Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/work", "Hostname": "laptop", "Labels": {"a": "b"}}
        return ArchiveImage("amd64", config, root)

    jobs = [Job("hello", ["python3", "/deployer/app/hello.py"] if app else ["tool"], 2, 1, 1, "00:05:00")]
    return Contents("tiny", "1.0", read, jobs, app)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "hello.py").write_text("print('hello')")
    return folder


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_what_is_packed_can_be_installed(tmp_path: Path, app: Path, codec: str) -> None:
    packed = packing.pack(contents(app), [load("lab")], tmp_path / "b.tar", codec)
    outcome = install(str(packed.path), Store(str(tmp_path / "root")))
    image = outcome.image
    assert image.receipt.digest == packed.digest
    assert (Path(image.rootfs) / "usr/bin/tool").read_bytes().startswith(b"usr/bin/tool")
    assert [path.name for path in Path(image.app).iterdir()] == ["hello.py"]
    assert image.manifest() == packed.manifest
    assert image.manifest().image.python == "/usr/bin/python3"
    plan = image.plan("lab")
    assert (Path(image.rootfs) / plan.mpi.prefix.lstrip("/")).is_dir()


def test_the_same_packed_twice_is_the_same_file(tmp_path: Path, app: Path) -> None:
    first, second = (
        packing.pack(contents(app), [load("lab")], tmp_path / name / "b.tar").path.read_bytes()
        for name in ("one", "two")
        if not (tmp_path / name).mkdir()
    )
    assert first == second


def blob(tar: tarfile.TarFile, digest: str) -> IO[bytes]:
    return tar.extractfile("blobs/" + digest.replace(":", "/")) or io.BytesIO()


def test_any_tar_reads_it_and_the_image_is_oci(tmp_path: Path) -> None:
    packed = packing.pack(contents(), [], tmp_path / "b.tar")
    listed = subprocess.run(["tar", "-tf", packed.path], capture_output=True, text=True, check=True, timeout=30).stdout
    names = listed.splitlines()
    assert names[:2] == ["deployer.pyz", "oci-layout"]
    assert names[-2:] == ["deployer/bundle.json", "deployer/seal.json"]
    with tarfile.open(packed.path) as tar:
        index = json.load(tar.extractfile("index.json") or io.BytesIO())
        manifest = json.load(blob(tar, index["manifests"][0]["digest"]))
        config = json.load(blob(tar, manifest["config"]["digest"]))
    assert config["config"] == {"Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/work", "Labels": {"a": "b"}}


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def broken(_: Scratch) -> ArchiveImage:
        raise DeployerError("the engine died")

    with pytest.raises(DeployerError, match="died"):
        packing.pack(contents()._replace(read=broken), [], tmp_path / "b.tar")
    with pytest.raises(UsageError):
        packing.pack(contents(data=b"no tar" * 1000), [], tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == []


def test_links_in_the_app_folder_are_refused(tmp_path: Path, app: Path) -> None:
    (app / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        packing.pack(contents(app), [], tmp_path / "b.tar")


@pytest.fixture
def deep(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a folder with folders in folders; each is made from within its parent, as no path may be that long."""
    top = tmp_path / "deep"
    top.mkdir()
    before = os.getcwd()
    try:
        os.chdir(top)
        for _ in range(request.param):
            os.mkdir("n")
            os.chdir("n")
        Path("file").write_text("x")
        os.chdir(before)
        yield top
    finally:
        os.chdir(before)
        subprocess.run(["rm", "-rf", top], check=True)  # Python's own removal calls itself for each folder


@pytest.mark.thorough
@pytest.mark.parametrize("deep", [300, 2000], indirect=True)
def test_folders_nested_too_deep_are_refused_with_their_path(tmp_path: Path, deep: Path) -> None:
    app, data = contents()._replace(app=deep), contents()._replace(data={"digits": deep})
    whole = app, data, sources.from_folder(deep, "x", "1")
    for wrong in whole:
        with pytest.raises(UsageError, match=r"n/n/n.* is 257 folders deep \(at most 256\)") as caught:
            packing.pack(wrong, [], tmp_path / "b.tar")
        assert caught.value.hint.startswith("shorten or remove it")
    assert not (tmp_path / "b.tar").exists()


@pytest.mark.parametrize(
    ("name", "reason"), [("n" * 256, "a name of 256 bytes"), ("/".join(["n" * 250] * 13), "has 3266 bytes")]
)
def test_names_that_no_site_can_hold_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(f"usr/{name}"))
    with pytest.raises(UsageError, match=reason):
        packing.pack(contents(data=stream.getvalue()), [], tmp_path / "b.tar")


# ------------------------------------------------------------------------------------------------ folders


def test_mount_points_of_sites_and_those_asked_for(tmp_path: Path) -> None:
    lab = load("lab").model_dump()
    systems = ["/", "/home", "/tmp", "/dev/shm", "/lustre/p", "/etc/passwd/x", "/linked/x", "/usr/bin"]
    lab |= {"filesystems": {path: {} for path in systems}, "mounts": ["/gpfs/all", "/usr/bin/own"]}
    profile = Profile.model_validate(lab)
    image = tars.layer([("usr/bin/tool", b"x"), ("etc/passwd", b""), ("linked", "-> usr")])
    asked = contents(data=image)._replace(mount_points=["/scratch", "/p/fast"])
    packed = packing.pack(asked, [profile], tmp_path / "b.tar")
    made = ("/gpfs/all", "/lustre/p", "/opt/intel/mpi/2021.15", "/p/fast", "/usr/bin/own")
    assert packed.manifest.mount_points == made  # others are there, or cannot be made
    rootfs = Path(install(str(packed.path), Store(str(tmp_path / "root"))).image.rootfs)
    assert all((rootfs / path[1:]).is_dir() for path in (*made, "/scratch", "/home"))
    for path, part in (("/linked/x", "/linked"), ("/etc/passwd", "/etc/passwd")):
        with pytest.raises(UsageError, match=f"^{path} must be a mount point, but {part} is not a folder in the image"):
            packing.pack(asked._replace(mount_points=[path]), [], tmp_path / "c.tar")
    with pytest.raises(UsageError, match="invalid mount point: '/tmp/x': /tmp is the node's own"):
        packing.pack(asked._replace(mount_points=["/tmp/x"]), [], tmp_path / "c.tar")
    assert not (tmp_path / "c.tar").exists()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    top = tmp_path / "rootfs"
    (top / "usr").mkdir(parents=True)
    return top


def test_what_a_folder_loses_is_counted_and_listed(tmp_path: Path, plain: Path) -> None:
    (plain / "usr" / ".wh.dir").mkdir()
    for name in ("x", ".wh.x", ".wh..wh..opq", ".wh.dir/inside", "a.wh.b"):
        (plain / "usr" / name).write_text(name)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(plain / "usr" / "socket"))
    packed = packing.pack(sources.from_folder(plain, "x", "1"), [], tmp_path / "b.tar", changes=tmp_path / "changes")
    assert (packed.manifest.changes["whiteouts_dropped"], packed.manifest.changes["sockets_dropped"]) == (4, 1)
    listed = (tmp_path / "changes").read_text().splitlines()
    for line in (
        "whiteouts_dropped\t/usr/.wh.x", "whiteouts_dropped\t/usr/.wh..wh..opq", "whiteouts_dropped\t/usr/.wh.dir",
        "whiteouts_dropped\t/usr/.wh.dir/inside", "sockets_dropped\t/usr/socket",
    ):  # fmt: skip
        assert line in listed
    rootfs = Path(install(str(packed.path), Store(str(tmp_path / "root"))).image.rootfs)
    assert sorted(path.name for path in (rootfs / "usr").iterdir()) == ["a.wh.b", "x"]


def test_a_flat_tar_loses_the_same(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "flat.tar", "w") as tar:
        for name in ("usr/x", "usr/.wh.x", "usr/.wh.dir/inside"):
            tar.addfile(tarfile.TarInfo(name))
    packed = packing.pack(sources.from_archive(tmp_path / "flat.tar", "x", "1"), [], tmp_path / "b.tar")
    assert packed.manifest.changes["whiteouts_dropped"] == 3
    rootfs = Path(install(str(packed.path), Store(str(tmp_path / "root"))).image.rootfs)
    assert [path.name for path in (rootfs / "usr").iterdir()] == ["x"]


@pytest.mark.thorough
def test_a_sparse_file_stays_sparse(tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, size = plain / "usr" / "large", 40 * 1024**2
    with open(large, "wb") as stream:
        stream.truncate(size)
        for at in (0, 25 * 1024**2 + 5):
            stream.seek(at)
            stream.write(b"data")
    whole = sources.from_folder(plain, "x", "1")._replace(data={"d": plain / "usr"})
    packed = packing.pack(whole, [], tmp_path / "b.tar")
    assert packed.size < size + 2 * 1024**2  # only the layer is compressed
    image = packed.manifest.image
    assert size - 16 * 1024**2 < image.holes < size
    assert packed.manifest.unpacked < image.raw_size - image.holes + size + 2 * 1024**2  # data count in full
    needs: list[int] = []
    monkeypatch.setattr(installing.space, "check", lambda folder, size, entries: needs.append(size))
    made = install(str(packed.path), Store(str(tmp_path / "root"))).image
    assert needs[0] < image.raw_size - image.holes + size + 2 * 1024**2
    for copy in (Path(made.rootfs, "usr/large"), Path(made.data, "d/large")):
        assert copy.stat().st_size == size
        assert copy.stat().st_blocks * 512 <= 256 * 1024
        assert files.sha256_file(str(copy)) == files.sha256_file(str(large))
    assert made.receipt.bytes < size + 1024**2
    assert made.manifest().image.holes == image.holes


def test_a_hole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    with open(path, "wb") as stream:
        stream.truncate(64 * 1024**2)
        stream.write(b"data")
    read: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *words: read.append(words[1]) or real(*words))
    data = OnDisk(os.fsencode(path), 64 * 1024**2)
    parts = [data.read(start, 4 * 1024**2) for start in range(0, data.size, 4 * 1024**2)]
    assert b"".join(parts) == path.read_bytes()
    assert len(read) == 1


def test_what_killed_packs_left_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".b.tar.0123abcd.part").write_bytes(b"x")
    (tmp_path / ".other.tar.0123abcd.part").write_bytes(b"x")
    (tmp_path / ".kept.0123abcd.part").write_bytes(b"x")
    with files.published(str(tmp_path / "c.tar")) as stream:
        packing.pack(contents(), [], tmp_path / "b.tar")
        stream.write(b"still here")
    assert (tmp_path / "c.tar").read_bytes() == b"still here"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".kept.0123abcd.part", "b.tar", "c.tar"]


# ------------------------------------------------------------------------------------------------ data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "odd\n name").write_bytes(b"1")
    (folder / "empty").write_bytes(b"")
    (folder / "large").write_bytes(os.urandom(9_000_000))
    return folder


@pytest.mark.thorough
def test_data_folders_are_carried_and_installed(tmp_path: Path, data: Path) -> None:
    whole = contents()._replace(data={"digits": data}, needs=[DataNeed("other", "others:1.0")])
    packed = packing.pack(whole, [], tmp_path / "b.tar")
    sizes = [segment.size for segment in packed.manifest.segments if segment.kind == DATA]
    assert max(sizes) == 4 * 1024**2
    image = install(str(packed.path), Store(str(tmp_path / "root"))).image
    assert image.manifest() == packed.manifest
    assert image.manifest().needs == (DataNeed("other", "others:1.0"),)
    for name in ("sub/odd\n name", "empty", "large"):
        assert (Path(image.data) / "digits" / name).read_bytes() == (data / name).read_bytes()
    assert list((Path(image.data) / "other").iterdir()) == []
    second = packing.pack(whole, [], tmp_path / "c.tar")
    assert (second.digest, second.path.read_bytes()) == (packed.digest, packed.path.read_bytes())


def test_a_changed_file_costs_its_pieces_alone(tmp_path: Path, data: Path, app: Path) -> None:
    whole = contents(app)._replace(data={"digits": data})
    first = packing.pack(whole, [], tmp_path / "1.tar").path
    bundles.overwrite(data / "large", b"changed", 5_000_000)
    second = packing.pack(whole, [], tmp_path / "2.tar").path
    (app / "hello.py").write_text("print('changed')")
    third = packing.pack(whole._replace(version="1.1"), [], tmp_path / "3.tar").path
    found = diff(str(first), str(second))
    assert found.changed == ["deployer/data/digits/large"]
    assert 4 * 1024**2 < found.bytes_to_ship < 4 * 1024**2 + 100_000
    found = diff(str(second), str(third))
    assert found.changed == ["deployer/app/hello.py", "deployer/sbom.cdx.json"]
    assert found.bytes_to_ship < 100_000


@pytest.mark.thorough
def test_a_bundle_of_data_alone_is_a_bundle(tmp_path: Path, data: Path) -> None:
    alone = Contents("digits-data", "1.0", None, data={"digits": data})
    packed = packing.pack(alone, [], tmp_path / "b.tar", changes=tmp_path / "changes")
    assert packed.manifest.is_data
    assert (tmp_path / "changes").read_text() == ""
    outcome = install(str(packed.path), Store(str(tmp_path / "root")))
    assert (Path(outcome.image.data) / "digits" / "empty").is_file()
    said = deployer("inspect", "b.tar", cwd=tmp_path).stdout.splitlines()
    assert said[0] == "digits-data:1.0  only data, zstd"
    assert said[-2:] == ["data digits: 3 files, 9.0 MB", "packages: none known"]
    with pytest.raises(UsageError, match="only data, which needs no plan"):
        packing.pack(alone, [load("lab")], tmp_path / "c.tar")


def test_a_bundle_that_no_site_could_read_is_not_written(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_MEMORY", 10_000)
    alone = Contents("digits-data", "1.0", None, data={"digits": data})
    with pytest.raises(UsageError, match=r"the bundle has too many files: [0-9]+ besides the image's"):
        packing.pack(alone, [], tmp_path / "b.tar")
    assert not [path for path in tmp_path.iterdir() if "b.tar" in path.name]


@pytest.mark.thorough
def test_inspect_shows_the_sbom(tmp_path: Path, folder: Path) -> None:
    (folder / "usr/lib/python3.8").mkdir(parents=True)
    (folder / "usr/lib/python3.8/os.py").write_text("")
    words = ("--rootfs", folder, "--name", "x", "--version", "1", "-o", "b.tar")
    assert deployer("pack", *words, cwd=tmp_path).returncode == 0
    sbom = json.loads(deployer("inspect", "b.tar", "--sbom", cwd=tmp_path).stdout)
    assert [item["name"] for item in sbom["components"]] == ["python"]
    said = deployer("inspect", "b.tar", cwd=tmp_path).stdout
    assert "packages: 1 other\n" in said
    record = json.loads(deployer("inspect", "b.tar", "--json", cwd=tmp_path).stdout)
    assert record["packages"] == {"generic": 1}


@pytest.mark.thorough
def test_the_pyz_in_front_runs(tmp_path: Path) -> None:
    packed = packing.pack(contents(), [], tmp_path / "b.tar")
    subprocess.run(["tar", "-xf", packed.path, "-C", tmp_path, "deployer.pyz"], check=True, timeout=30)
    shutil.copy(tmp_path / "deployer.pyz", tmp_path / "alone.pyz")
    done = subprocess.run(
        [sys.executable, "alone.pyz", "verify", "b.tar"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert packed.digest in done.stdout


# ------------------------------------------------------------------------------------------------ the command line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "root fs"
    (top / "usr" / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", top / "usr" / "bin" / "tool")
    (top / "usr" / "bin" / "tool").chmod(0o4755)
    (top / "usr" / "odd\udcff\nname").write_bytes(b"1")
    (top / "usr" / "link").symlink_to("bin/tool")
    (top / "usr" / "same").hardlink_to(top / "usr" / "bin" / "tool")
    return top


def deployer(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "deployer"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "TZ"))}
    base = {**inherited, "XDG_CACHE_HOME": str(cwd / "cache"), "XDG_STATE_HOME": str(cwd / "state")}
    return subprocess.run(
        [program, *map(str, words)], cwd=cwd, env={**base, **environment}, capture_output=True, text=True, timeout=50,
        umask=int(environment.get("UMASK", "022"), 8), check=False,
    )  # fmt: skip


@pytest.mark.thorough
def test_nothing_of_clock_user_or_machine_is_in_a_bundle(tmp_path: Path, folder: Path) -> None:
    """Two folders with other times, owners of caches, umasks, zones, locales and hash seeds stand for two machines."""
    files = []
    one, two = tmp_path / "one", tmp_path / "two"
    copy = ["cp", "-a", "--no-preserve=timestamps"]
    settings: tuple[dict[str, str], ...] = (
        {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1", "UMASK": "022", "HOME": str(one), "USER": "root"},
        {
            "TZ": "Asia/Tokyo",
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "2",
            "UMASK": "077",
            "HOME": "/nowhere",
            "USER": "x",
        },
    )
    for place, environment in zip((one, two), settings, strict=True):
        place.mkdir()
        subprocess.run([*copy, folder, place / "rootfs"], check=True, timeout=30)
        words = ("--rootfs", place / "rootfs", "--name", "x", "--version", "1", "-o", "b.tar")
        done = deployer("pack", *words, cwd=place, **environment)
        assert done.returncode == 0, done.stderr
        files.append((place / "b.tar").read_bytes())
    assert files[0] == files[1]


@pytest.mark.thorough
def test_the_way_of_a_plan_is_one_line(tmp_path: Path, folder: Path) -> None:
    """It was printed letter by letter."""
    profile = Path(__file__).resolve().parents[4] / "site_profiles" / "lab.yaml"
    words = ("--rootfs", folder, "--name", "x", "--version", "1", "--site", profile, "-o", "b.tar")
    lines = deployer("pack", *words, cwd=tmp_path).stdout.splitlines()
    assert "  with Intel(R) MPI Library 2021.15, srun (pmi2), charliecloud" in lines


@pytest.mark.thorough
def test_changes_and_files_are_listed(tmp_path: Path, folder: Path) -> None:
    words = ("--rootfs", folder, "--name", "x", "--version", "1", "-o", "b.tar", "--changes", "changes", "--json")
    done = deployer("pack", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["changes"]
    lines = (tmp_path / "changes").read_text().splitlines()
    assert "setuid\t/usr/bin/tool" in lines
    assert "mount_points\t/deployer/app" in lines
    assert {kind: sum(line.startswith(f"{kind}\t") for line in lines) for kind in counts} == counts
    listed = deployer("inspect", "--files", "b.tar", cwd=tmp_path).stdout.splitlines()
    size, sha256 = (folder / "usr/bin/tool").stat().st_size, files.sha256_file("/bin/true")
    assert f"-rwxr-xr-x {size:>12} {sha256} /usr/bin/tool" in listed
    assert any(line.endswith("/usr/odd\\xff\\nname") for line in listed)
    assert any(line.startswith("l") and line.endswith("/usr/link -> bin/tool") for line in listed)
    assert any(line.endswith("/usr/same = /usr/bin/tool") for line in listed)
    manifest = json.loads(deployer("inspect", "b.tar", "--json", cwd=tmp_path).stdout)
    assert len(listed) == manifest["image"]["entries"]
    assert manifest["image"]["architecture"] == {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    records = [
        json.loads(line) for line in deployer("inspect", "--files", "--json", "b.tar", cwd=tmp_path).stdout.splitlines()
    ]
    assert {"kind": "folder", "mode": "0755", "size": 0, "sha256": None, "path": "/usr", "target": None} in records


@pytest.mark.parametrize(("number", "machine"), [(62, "x86_64"), (183, "aarch64")])
def test_the_kit_is_for_the_programs_of_the_image(
    number: int, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the image is known from an earlier pack."""
    program = b"\x7fELF\2\1\1" + bytes(9) + bytes([2, 0, number, 0])
    asked = []

    def carried(parts: list[str], _: object, image: str | None, say: object) -> dict[str, Path]:
        asked.append((parts, image))
        return {}

    monkeypatch.setattr(kit, "carried", carried)
    for _ in range(2):
        own = contents(data=rootfs(program))._replace(kit=["udocker"], identity=lambda: "sha256:" + "1" * 64)
        packed = packing.pack(own, [], tmp_path / "b.tar", cache=tmp_path / "frames")
    assert packed.reused == packed.frames
    assert asked == [(["udocker"], machine)] * 2


@pytest.mark.thorough
def test_inspect_lists_no_file_of_a_bundle_that_is_not_whole(tmp_path: Path) -> None:
    path = packing.pack(contents(), [], tmp_path / "b.tar").path
    bundles.flip(path, path.stat().st_size // 2)
    done = deployer("inspect", "--files", "b.tar", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "pack requires exactly one of"),
        (["bundles/x", "--rootfs", "."], "pack requires exactly one of"),
        (["--rootfs", "."], "need --name and --version"),
        (["--rootfs", "gone", "--name", "x", "--version", "1"], "gone is not a folder"),
        (["--archive", "gone", "--name", "x", "--version", "1"], "there is no file gone"),
        (["--rootfs", ".", "--name", "x", "--version", "1"], "not a root filesystem"),
        (["--archive", "text", "--name", "x", "--version", "1"], "text: the file is not a tar archive"),
    ],
)
def test_wrong_usage_has_its_exit_code_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    (tmp_path / "text").write_text("hello\n" * 300)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["pack", *words, "-o", "out/b.tar"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert reason in said.err
    assert not [path for path in tmp_path.rglob("*.tar*") if path.is_file()]


@pytest.mark.thorough
def test_a_rank_of_the_pyz_runs_its_payload_and_all_else_goes_to_the_command_line(tmp_path: Path) -> None:
    tool = tmp_path / "deployer.pyz"
    tool.write_bytes(make_pyz())
    words = [sys.executable, "-I", "-S", str(tool)]
    done = subprocess.run(
        [
            *words[:-1],
            "-c",
            first_bytes.PROGRAM,
            str(tool),
            "rank",
            "--out",
            str(tmp_path),
            "--",
            "sh",
            "-c",
            "echo here; exit 5",
        ],
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (5, b"here\n")
    assert json.loads(recorded(tmp_path, "payload-0.json"))["exit_code"] == 5
    assert subprocess.run([*words, "--version"], check=True, capture_output=True).stdout.strip()


@pytest.mark.thorough
def test_a_start_of_the_pyz_keeps_its_bytecode_for_the_next_but_an_isolated_one_does_not(tmp_path: Path) -> None:
    tool = tmp_path / "deployer.pyz"
    tool.write_bytes(make_pyz())
    environment = {"HOME": str(tmp_path)}

    def start(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words], check=True, env=environment, capture_output=True, text=True
        ).stdout

    shown = start("-I", str(tool), "--help")
    assert not (tmp_path / ".cache").exists()
    assert start(str(tool), "--help") == shown
    (kept,) = (tmp_path / ".cache/deployer/pyz").iterdir()
    assert kept.name.startswith(hashlib.sha256(tool.read_bytes()).hexdigest() + "-cpython-3")
    key = kept.name
    spoilt = compile("def main(): return print('from bytecode')\nFOR_JOBS = ()", "x", "exec")
    kept.write_bytes(tool_bytecode.written(key, {"deployer.cli.site.main": (False, marshal.dumps(spoilt))}))
    assert start(str(tool), "--help") == "from bytecode\n"
    assert start("-I", str(tool), "--help") == shown


def test_a_job_whose_program_the_image_lacks_is_refused_and_nothing_is_written(tmp_path: Path, app: Path) -> None:
    (job,) = contents(app).jobs
    wrong = contents(app)._replace(jobs=[job._replace(command=["python", "/deployer/app/hello.py"])])
    with pytest.raises(Refused, match=r"job hello: command\.missing: .*no python in its PATH") as caught:
        packing.pack(wrong, [], tmp_path / "b.tar")
    assert "the image has python3" in caught.value.hint
    assert not [path for path in tmp_path.iterdir() if path != app]
    silent = contents(app)._replace(jobs=[job._replace(stdin="/deployer/app/in")])
    with pytest.raises(Refused, match=r"command\.missing: .*there is no /deployer/app/in, which is the job's stdin"):
        packing.pack(silent, [], tmp_path / "b.tar")
    assert not [path for path in tmp_path.iterdir() if path != app]
    accepted = packing.pack(wrong, [], tmp_path / "b.tar", checking=Checking(["command.missing"]))
    assert accepted.path.exists()


def test_families_of_mpi_are_found_in_the_image_and_decide_on_the_site(tmp_path: Path) -> None:
    tar = tars.layer([("etc/x", b""), ("usr/bin/tool", elves.library(["libmpi.so.40"]))])
    said: list[str] = []
    unknown = contents(data=tar)._replace(mpi=None)
    packed = packing.pack(unknown, [], tmp_path / "b.tar", say=said.append)
    assert packed.manifest.mpi == ("openmpi",)
    assert said == ["mpi: openmpi, to which /usr/bin/tool is linked"]
    with pytest.raises(Refused, match=r"tiny:1\.0 cannot run on lab: .* is of the family mpich-abi"):
        packing.pack(unknown, [load("lab")], tmp_path / "other.tar", say=said.append)
    with pytest.raises(Refused, match="no program of the image or in app/ is linked to an MPI library"):
        packing.pack(contents()._replace(mpi=None), [], tmp_path / "other.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_a_program_in_the_app_folder_shows_its_family(tmp_path: Path, app: Path) -> None:
    (app / "solver").write_bytes(elves.library(["libmpich.so.12"]))
    said: list[str] = []
    packed = packing.pack(contents(app)._replace(mpi=None), [], tmp_path / "b.tar", say=said.append)
    assert packed.manifest.mpi == ("mpich-abi",)
    assert said == ["mpi: mpich-abi, to which /deployer/app/solver is linked"]


def test_what_the_app_folder_has_is_looked_at(tmp_path: Path, app: Path) -> None:
    (job,) = contents(app).jobs

    def packed(*words: str) -> packing.Packed:
        jobs = [job._replace(command=list(words))]
        return packing.pack(contents(app)._replace(jobs=jobs), [], tmp_path / "b.tar")

    with pytest.raises(Refused, match=r"hello\.py has no execute permission"):
        packed("/deployer/app/hello.py")
    (app / "hello.py").chmod(0o755)
    with pytest.raises(Refused, match=r"hello\.py has no #! line"):
        packed("/deployer/app/hello.py")
    (app / "hello.py").write_text("#!/usr/bin/env python3.12\n")
    with pytest.raises(Refused, match=r"there is no /usr/bin/env"):
        packed("/deployer/app/hello.py")
    (app / "hello.py").write_text("#!/usr/bin/python3\n")
    assert packed("/deployer/app/hello.py").path.exists()


def test_a_program_of_a_wheel_is_there(tmp_path: Path, app: Path) -> None:
    wheel = tmp_path / wheels.file_name()
    points = {"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntrainer = demo:main\n"}
    wheel.write_bytes(wheels.wheel({"demo.py": b"", **points}))
    (job,) = contents(app).jobs
    jobs = [job._replace(command=["trainer"])]
    with pytest.raises(Refused, match="no trainer in its PATH"):
        packing.pack(contents(app)._replace(jobs=jobs), [], tmp_path / "b.tar")
    carried = {f"deployer/wheels/{wheel.name}": wheel}
    assert packing.pack(contents(app)._replace(jobs=jobs, carried=carried), [], tmp_path / "b.tar").path.exists()


def test_an_image_with_a_secret_is_refused_read_or_known(tmp_path: Path) -> None:
    key = planted.private_key().encode()
    image = contents(data=rootfs(key))._replace(identity=lambda: "x")
    read = image.read
    assert read
    image = image._replace(read=lambda scratch: read(scratch)._replace(identity="x"))
    output, cache = tmp_path / "b.tar", tmp_path / "cache"
    for accept in ((), ("secrets.file",), (), ("secrets.file:/usr/bin/tool",)):  # the third time, its layer is known
        if accept == ("secrets.file",):
            packing.pack(image._replace(accept=accept), [], output, cache=cache)
            output.unlink()
            continue
        with pytest.raises(Refused, match="in the definition or its image") as caught:
            packing.pack(image._replace(accept=accept), [], output, cache=cache)
        assert len(caught.value.details) == 3 - len(accept)
        assert not output.exists()


def test_pack_lean_names_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = tmp_path / "root/usr/lib/python3/dist-packages/pandas/tests"
    tests.mkdir(parents=True)
    (tests / "test_io.py").write_text("x = 1")
    words = ["pack", "--rootfs", str(tmp_path / "root"), "--name", "a", "--version", "1", "--no-cache", "-o"]
    assert main([*words, str(tmp_path / "full.tar")]) == 0
    assert "own tests left out" not in capsys.readouterr().out
    assert main([*words, str(tmp_path / "lean.tar"), "--lean"]) == 0
    assert "1 files of Python packages' own tests left out" in capsys.readouterr().out


def test_pack_accepts_a_secret_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "root"
    (folder / "etc").mkdir(parents=True)
    (folder / "usr").mkdir()
    (folder / "etc/key").write_text(planted.private_key())
    words = [
        "pack",
        "--rootfs",
        str(folder),
        "--name",
        "a",
        "--version",
        "1",
        "-o",
        str(tmp_path / "b.tar"),
        "--no-cache",
    ]
    assert main(words) == 3
    assert "/etc/key: secrets.file: it holds a private key on line 1" in capsys.readouterr().err
    assert main([*words, "--accept", "secrets.file:/etc/key"]) == 0
    assert main([*words, "--accept", "pins.image"]) == 2
