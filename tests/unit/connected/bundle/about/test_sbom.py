import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.bundle import pack as packing
from deployer.connected.bundle.about import sbom
from deployer.connected.bundle.about.packages import DEB, PYPI, Package, PackageInventory, System
from deployer.connected.bundle.contents import Contents
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import SBOM_MEMBER
from deployer.system.trust.verify import begin, opened
from tests import bundles, wheels
from tests.tars import layer, root_of

DEBIAN = System("debian", "12")
PACKAGES = (
    Package(DEB, "libc6", "1:2.36-9", "/var/lib/dpkg/status", "amd64"),
    Package(PYPI, "a", "1", "/opt/a-1.dist-info/METADATA", licences=("MIT",)),
    Package(PYPI, "a", "1", "/usr/a-1.dist-info/METADATA", licences=("MIT",)),
    Package(PYPI, "b_x", "2", "/usr/b-2.dist-info/METADATA", licences=("MIT License", "Other")),
    Package(PYPI, "c", "3", "/usr/c-3.dist-info/METADATA", licences=("MIT OR Apache-2.0",)),
)


def document(pieces: list[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(pieces))
    return found


def made(packages: tuple[Package, ...] = PACKAGES, version: str = "1.0") -> list[bytes]:
    variants = [
        Package(PYPI, "horovod", "0.28.1", f"deployer/variants/{abi}/horovod-0.28.1-py3-none-any.whl", sha256="0" * 64)
        for abi in ("openmpi", "mpich-abi")
    ]
    return sbom.make("tiny", version, PackageInventory(DEBIAN, packages), variants, ["digits"])


@pytest.mark.thorough
def test_it_is_valid_cyclonedx() -> None:
    # A second of import: a library of the validator builds parsers of internationalised addresses.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    for pieces in (made(), made(packages=()), sbom.make("none", "1", PackageInventory(), [], [])):
        assert validator.validate_str(b"".join(pieces).decode()) is None
        references = [item["bom-ref"] for item in document(pieces)["components"]]
        assert len(references) == len(set(references))


def test_it_says_what_is_there() -> None:
    found = document(made())
    purls = [item.get("purl") for item in found["components"]]
    assert "pkg:deb/debian/libc6@1:2.36-9?arch=amd64&distro=debian-12" in purls
    assert purls.count("pkg:pypi/a@1") == 1
    assert purls.count("pkg:pypi/horovod@0.28.1") == 2
    assert sbom.counts(found) == {"deb": 1, "pypi": 5}
    by_name = {item["name"]: item for item in found["components"]}
    places = [place["location"] for place in by_name["a"]["evidence"]["occurrences"]]
    assert places == ["/opt/a-1.dist-info/METADATA", "/usr/a-1.dist-info/METADATA"]
    assert by_name["a"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert by_name["c"]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert by_name["debian"] == {"bom-ref": "os", "name": "debian", "type": "operating-system", "version": "12"}
    assert by_name["digits"]["type"] == "data"
    assert found["metadata"]["component"]["name"] == "tiny"
    assert "timestamp" not in found["metadata"]


def test_its_serial_number_follows_from_its_content() -> None:
    assert made() == made()
    serials = {document(pieces)["serialNumber"] for pieces in (made(), made(version="1.1"), made(PACKAGES[1:]))}
    assert len(serials) == 3


@pytest.mark.thorough
def test_a_changed_package_leaves_most_pieces_as_they_are() -> None:
    many = [Package(DEB, f"lib{number}", "1", "/var/lib/dpkg/status", "amd64") for number in range(300)]
    before = made(tuple(many))
    many[150] = many[150]._replace(version="2")
    after = made(tuple(many), version="1.1")
    assert len(before) > 10
    assert sum(len(piece) for piece in after if piece not in before) < 0.2 * sum(map(len, after))


def test_a_wheel_is_listed_with_its_hash(tmp_path: Path) -> None:
    path = tmp_path / wheels.file_name()
    path.write_bytes(wheels.wheel({"demo.py": b""}))
    found = sbom.of_wheel(path, f"deployer/wheels/{path.name}")
    component = document(sbom.make("x", "1", PackageInventory(), [found], []))["components"][0]
    assert (component["name"], component["version"]) == ("demo", "1.0")
    assert component["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]


def test_every_bundle_has_one_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    root = root_of(layer([("bin", None), ("var/lib/dpkg/status", b"Package: x\nVersion: 1\nArchitecture: all\n")]))
    contents = Contents("tiny", "1", lambda _: ArchiveImage("amd64", {}, root))
    path = packing.pack(contents, [], tmp_path / "b.tar").path
    with opened(str(path)) as stream:
        bundle = begin(stream, str(path))
        data = sealed_file.small(bundle.manifest, SBOM_MEMBER, bundle.read)
    assert data
    assert sbom.counts(json.loads(data)) == {"deb": 1}
    bundles.flip(path, path.read_bytes().index(b"pkg:deb/debian/x"))
    with opened(str(path)) as stream:
        bundle = begin(stream, str(path))
        with pytest.raises(IntegrityError):
            sealed_file.small(bundle.manifest, SBOM_MEMBER, bundle.read)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"components": {}},
        {"components": ["python"]},
        {"components": [{"version": "1"}]},
        {"components": [{"name": "x", "purl": "x"}]},
        {"components": [{"name": "x", "purl": "pkg:\x1b[2J/x"}]},
        {"components": [{"name": "x", "version": 1}]},
        {"components": [{"name": "x", "licenses": ["x"]}]},
        {"components": [{"name": "x", "licenses": [{"license": "x"}]}]},
    ],
)
def test_a_document_of_another_shape_is_told_by_every_view(
    tmp_path: Path, document: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundles.write(tmp_path / "b.tar", extra=[("deployer/sbom.cdx.json", json.dumps(document).encode())])
    for view in ([], ["--html", str(tmp_path / "b.html")]):
        assert main(["inspect", str(path), *view]) == 4
        assert "the SBOM" in capsys.readouterr().err
    assert not (tmp_path / "b.html").exists()
