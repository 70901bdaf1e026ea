from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from deployer.connected.bundle import pack as packing
from deployer.connected.bundle import sources
from deployer.connected.bundle.about.diff import diff
from deployer.connected.bundle.pack import Packed
from deployer.connected.ground import caches
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from tests.wheels import file_name, wheel

Pack = Callable[[str, Mapping[str, bytes]], Packed]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Pack wheels, bytes by their name below deployer/, with an empty image."""
    (tmp_path / "root" / "usr").mkdir(parents=True)

    def packed(name: str, wheels: Mapping[str, bytes]) -> Packed:
        carried = {}
        for member, data in wheels.items():
            path = tmp_path / name / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            carried[f"deployer/{member}"] = path
        contents = sources.from_folder(tmp_path / "root", name, "1")._replace(carried=carried)
        return packing.pack(contents, [], tmp_path / f"{name}.tar")

    return packed


def test_wheels_are_installed_as_they_were_unpacked(tmp_path: Path, pack: Pack) -> None:
    points = {"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n"}
    large = bytes(range(256)) * 20_000
    packed = pack(
        "a",
        {
            f"wheels/{file_name()}": wheel({"space/__init__.py": b"", "demo.py": b"x = 1\n", **points}),
            f"wheels/{file_name('other')}": wheel({"space/__init__.py": b"", "other/large": large}, "other"),
            f"variants/openmpi/{file_name('hvd')}": wheel({"hvd.py": b"openmpi"}, "hvd"),
        },
    )
    image = install(str(packed.path), Store(str(tmp_path / "store"))).image
    assert Path(image.wheels, "lib/demo.py").read_text() == "x = 1\n"
    assert Path(image.wheels, "lib/other/large").read_bytes() == large
    assert Path(image.wheels, "bin/demo").stat().st_mode & 0o100
    assert Path(image.wheels, "lib/other-1.0.dist-info/INSTALLER").read_text() == "deployer\n"
    assert Path(image.variant("openmpi"), "lib/hvd.py").read_text() == "openmpi"
    assert [overlay.wheels for overlay in image.manifest().overlays] == [
        [file_name("hvd")],
        [file_name(), file_name("other")],
    ]


def test_a_new_wheel_changes_only_its_own_frames(pack: Pack) -> None:
    others = {f"wheels/{file_name(name)}": wheel({f"{name}.py": b"x" * 9000}, name) for name in ("a", "z")}
    first = pack("one", {**others, f"wheels/{file_name()}": wheel({"demo.py": b"1"})})
    again = pack("one", {**others, f"wheels/{file_name()}": wheel({"demo.py": b"1"})})
    second = pack("two", {**others, f"wheels/{file_name(version='2.0')}": wheel({"demo.py": b"2"}, version="2.0")})
    assert again.digest == first.digest
    known = {segment.sha256 for segment in first.manifest.segments}
    member = second.manifest.overlays[0].member
    changed = [
        segment.holds
        for segment in second.manifest.segments
        if segment.holds and segment.sha256 not in known and member == "deployer/overlays/wheels.tar"
    ]
    assert changed == ["folders", "files"]
    difference = diff(str(first.path), str(second.path))
    assert [(change.name, change.old, change.new) for change in difference.packages] == [("demo", "1.0", "2.0")]
    assert f"deployer/wheels/{file_name(version='2.0')}" in difference.added
    assert f"deployer/wheels/{file_name()}" in difference.removed


def test_a_damaged_cache_is_told_and_a_lost_one_made_again(
    pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "OVERLAYS", caches.OVERLAYS._replace(place=tmp_path / "cache"))
    carried = {f"wheels/{file_name()}": wheel({"demo.py": b"1"})}
    digest = pack("one", carried).digest
    (frames,) = caches.OVERLAYS.folder.glob("*.frames")
    data = frames.read_bytes()
    frames.write_bytes(data[:-1] + b"!")
    with pytest.raises(IntegrityError, match=r"\.frames is damaged"):
        pack("one", carried)
    frames.unlink()
    assert pack("one", carried).digest == digest
    assert frames.read_bytes() == data


def test_wheels_that_do_not_fit_together_are_not_packed(pack: Pack) -> None:
    carried = {f"wheels/{file_name(name)}": wheel({"same.py": name.encode()}, name) for name in ("a", "b")}
    with pytest.raises(UsageError, match=r"both contain lib/same\.py"):
        pack("one", carried)
