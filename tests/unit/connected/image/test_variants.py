import json
import os
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle import sources
from deployer.connected.ground import caches
from deployer.connected.image import last_build, variants
from deployer.connected.image.definition import definition
from deployer.connected.site_profile.profile import load
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.site.plan import ABIS, MPICH_ABI, OPENMPI, SONAMES
from tests import wheels
from tests.elves import library

NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
LIBRARY = "horovod/tensorflow/mpi_lib.so"


def wheel(*libraries: bytes, **changes: Any) -> bytes:
    files = {"horovod/__init__.py": b"", **{LIBRARY + "." * number: data for number, data in enumerate(libraries)}}
    return wheels.wheel(files, name="horovod", version="0.28.1", **changes)


@pytest.mark.parametrize("abi", sorted(SONAMES))
def test_a_wheel_of_the_family_is_taken(abi: str) -> None:
    good = library(["libm.so.6", SONAMES[abi], "libc.so.6"], runpath="$ORIGIN/../lib")
    variants.check_wheel(NAME, wheel(library(["libc.so.6"]), good), abi)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (library(["libmpi.so.12"]), "needs libmpi.so.12, which is not libmpi.so.40 of openmpi"),
        (library(["libmpi.so.40", "libmpi_cxx.so.40"]), "needs libmpi_cxx.so.40"),
        (library(["libmpi.so.40", "libmpich.so.12"]), "needs libmpich.so.12"),
        (library(["libmpi.so.40"], runpath="/variant/mpi/lib"), "search /variant/mpi/lib before"),
        (library(["libmpi.so.40"], rpath="$ORIGIN:/opt"), "search /opt before"),
        (library(["libc.so.6"]), "compiled without MPI"),
        (b"no library at all", "compiled without MPI"),
    ],
)
def test_a_wheel_that_would_fail_at_a_site_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        variants.check_wheel(NAME, wheel(data), OPENMPI)


@pytest.mark.parametrize(
    "data",
    [
        wheel(library(["libmpi.so.40"]))[:-30],
        wheel(library(["libmpi.so.40"]), record="horovod/__init__.py,,\n"),
        wheel(library(["libmpi.so.40"])[:70]),
        wheel(b"\x7fELF\x02\x01" + bytes(200)),
    ],
)
def test_a_broken_wheel_is_no_variant(data: bytes) -> None:
    with pytest.raises(DeployerError):
        variants.check_wheel(NAME, data, OPENMPI)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return caches.VARIANTS.folder


def publish(key: str = "0" * 16) -> variants.HorovodVariant:
    return variants._publish(key, OPENMPI, (NAME, wheel(library(["libmpi.so.40"]))), {"openmpi-5": {}}, 98.25)


def test_what_is_published_is_found(cache: Path) -> None:
    made = publish()
    found = variants.find("0" * 16)
    assert found == made._replace(cached=True)
    assert (found.abi, found.wheel.name, found.seconds) == (OPENMPI, NAME, 98.2)
    assert variants.find("1" * 16) is None


def test_a_wrong_wheel_is_not_published(cache: Path) -> None:
    with pytest.raises(Refused):
        variants._publish("0" * 16, MPICH_ABI, (NAME, wheel(library(["libmpi.so.40"]))), {}, 1)
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["wheel", "record", "gone"])
def test_a_damaged_variant_is_none_and_is_made_again(cache: Path, damage: str) -> None:
    made = publish()
    if damage == "wheel":
        made.wheel.write_bytes(made.wheel.read_bytes()[:-1] + b"!")
    elif damage == "record":
        (made.wheel.parent / "variant.json").write_text("{")
    else:
        made.wheel.unlink()
    assert variants.find("0" * 16) is None
    assert publish().wheel.is_file()
    assert variants.find("0" * 16)


def test_the_oldest_go_beyond_the_cap(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        os.utime(publish(f"{number}" * 16).wheel.parent, (1000 + number, 1000 + number))
    (cache / ".part-killed").mkdir()
    os.utime(cache / ".part-killed", (1000, 1000))
    each = sum(file.stat().st_size for file in (cache / ("0" * 16)).iterdir())
    monkeypatch.setattr(caches, "VARIANTS", caches.VARIANTS._replace(cap=2 * each))
    publish("3" * 16)
    assert sorted(folder.name[0] for folder in cache.iterdir()) == ["1", "2", "3"]


def test_the_key_is_of_all_that_it_depends_on() -> None:
    contents = variants._contents(["horovod-0.28.1", *variants.MPIS[OPENMPI]])
    key = variants.variant_key(contents, "sha256:1", "tensorflow", OPENMPI)
    others = [
        variants.variant_key(contents, "sha256:2", "tensorflow", OPENMPI),
        variants.variant_key(contents, "sha256:1", "pytorch", OPENMPI),
        variants.variant_key(contents, "sha256:1", "tensorflow", MPICH_ABI),
        *(
            variants.variant_key({**contents, name: data + b"#"}, "sha256:1", "tensorflow", OPENMPI)
            for name, data in contents.items()
        ),
    ]
    assert len({key, *others}) == 1 + len(others)


def test_every_family_has_an_mpi_and_every_pin_a_hash() -> None:
    assert set(variants.MPIS) == set(SONAMES) == set(ABIS.values())
    contents = variants._contents(["horovod-0.28.1", *(pin for pins in variants.MPIS.values() for pin in pins)])
    for name, data in contents.items():
        if name.endswith(".txt"):
            lines = [line for line in data.decode().splitlines() if line and not line.startswith("#")]
            pins = [line for line in lines if not line.startswith(" ")]
            assert pins, name
            assert all("==" in pin for pin in pins), name
            assert sum("--hash=sha256:" in line for line in lines) >= len(pins), name


def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> definition.Definition:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return definition.load(Path(__file__).parents[4] / "bundles" / "digits-horovod")


def record(of: definition.Definition, **wheels_by_abi: Path) -> None:
    path = last_build.record_of(of)
    path.parent.mkdir(parents=True)
    made = [{"abi": abi.replace("_", "-"), "wheel": str(wheel)} for abi, wheel in wheels_by_abi.items()]
    path.write_text(json.dumps({"image": "sha256:1", "variants": made}))


def test_pack_takes_what_the_last_build_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = digits(tmp_path, monkeypatch)
    wheel = publish().wheel
    record(of, mpich_abi=wheel, openmpi=wheel)
    assert last_build.last_build(of) == last_build.LastBuild("sha256:1", {MPICH_ABI: wheel, OPENMPI: wheel})


def test_pack_says_what_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = digits(tmp_path, monkeypatch)
    with pytest.raises(Refused, match="was not built here") as caught:
        last_build.last_build(of)
    assert "deployer build" in caught.value.hint
    record(of, openmpi=publish().wheel, mpich_abi=tmp_path / "lost.whl")
    with pytest.raises(Refused, match="no Horovod for mpich-abi"):
        last_build.last_build(of)


def test_pack_for_a_site_needs_only_its_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = digits(tmp_path, monkeypatch)
    wheel = publish().wheel
    record(of, mpich_abi=wheel)
    for site, needed in (("lab", [MPICH_ABI]), ("lab-openmpi", [MPICH_ABI, OPENMPI])):  # the first is the image's own
        assert sources.families_for(of, [load(site)]) == needed
    assert sources.families_for(of, []) is None
    assert last_build.last_build(of, [MPICH_ABI]) == last_build.LastBuild("sha256:1", {MPICH_ABI: wheel})
    with pytest.raises(Refused, match="no Horovod for openmpi"):
        last_build.last_build(of, [MPICH_ABI, OPENMPI])
    with pytest.raises(Refused, match="no Horovod for openmpi"):
        last_build.last_build(of)


def test_a_variant_that_no_site_needs_is_not_compiled_but_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = digits(tmp_path, monkeypatch)
    wheel = publish()
    cached = [MPICH_ABI]
    monkeypatch.setattr(variants, "variant_key", lambda contents, stage, framework, abi: abi)
    monkeypatch.setattr(variants, "find", lambda key: wheel._replace(abi=key) if key in cached else None)

    def compiled(*_: object) -> str:
        raise AssertionError("nothing is to be built")

    said: list[str] = []
    for _ in range(2):
        found = variants.ensure(None, of, "sha256:1", compiled, said.append, [MPICH_ABI])  # type: ignore[arg-type]
        assert [each.abi for each in found] == cached
        cached.append(OPENMPI)
    assert sum("not compiled" in line for line in said) == 1


def test_a_horovod_without_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = digits(tmp_path, monkeypatch)
    other = of.model_copy(update={"horovod": of.horovod.model_copy(update={"version": "0.20.0"})})

    def refuse(*_: object) -> str:
        raise AssertionError("nothing is to be built")

    with pytest.raises(UsageError, match=r"Horovod 0\.20\.0") as caught:
        variants.ensure(None, other, "sha256:1", refuse, lambda _: None)  # type: ignore[arg-type]
    assert "0.28.1" in caught.value.hint


def test_what_the_recipe_did_not_prove_is_not_taken() -> None:
    with pytest.raises(IntegrityError, match=r"not proven on openmpi-5"):
        variants._wheel_and_proofs({f"{variants.MPIS[OPENMPI][0]}.json": b"{}"}, OPENMPI)
    with pytest.raises(IntegrityError, match="0 wheels"):
        variants._wheel_and_proofs({f"{mpi}.json": b"{}" for mpi in variants.MPIS[OPENMPI]}, OPENMPI)


def test_pack_takes_the_tag_where_no_build_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = digits(tmp_path, monkeypatch).model_copy(update={"horovod": None})
    assert last_build.last_build(plain) == last_build.LastBuild(plain.tag, {})
    record(plain)
    assert last_build.last_build(plain) == last_build.LastBuild("sha256:1", {})
