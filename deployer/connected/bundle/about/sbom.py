"""The SBOM: the components of a bundle as CycloneDX 1.6 JSON (https://cyclonedx.org/docs/1.6/json/).

It depends only on the bundle's content: it has no date, and its serial number is derived from the other fields. Each
component is one line. The hash of a line decides whether a piece ends there, so a changed package or a new bundle
version changes only a few of the pieces that push sends.
"""

import hashlib
import json
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence
from cyclonedx.model.license import DisjunctiveLicense, License
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import deployer
from deployer.connected.bundle.about.packages import APK, DEB, PYPI, RPM, Package, PackageInventory, System, of_metadata
from deployer.connected.bundle.about.programs import CARGO, GOLANG
from deployer.connected.rootfs import wheels
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.grouping import grouped
from deployer.system import files

#: The memory limit in bytes for reading an SBOM (records.memory): about 100,000 packages.
MAX_MEMORY = 200_000_000
#: The type of a package URL (purl).
_KIND = re.compile(r"[a-z][a-z0-9.+-]*")

#: The distribution of the Debian packages in the kit.
_KIT_SYSTEM = System("debian", "12")

#: The kinds of distributions' packages, and the namespace of their purls if the image does not name its own.
_OF_SYSTEMS = {DEB: "debian", RPM: None, APK: "alpine"}

#: On average, one line in this many ends a piece; the line's hash decides.
_PIECE_ODDS = 16


def of_wheel(path: Path, where: str) -> Package:
    """Return the package of a wheel. Raises IntegrityError if the file is not a wheel."""
    with wheels.opened(path) as wheel:
        package = of_metadata(wheel.read_dist_info("METADATA").encode(), where, files.sha256_file(str(path)))
        if package is None:
            raise IntegrityError("it does not name its package")
        return package


def make(
    name: str, version: str, installed: PackageInventory, others: Iterable[Package], data: Iterable[str]
) -> list[bytes]:
    """Return the SBOM of the bundle NAME:VERSION in pieces. Each piece becomes a segment.

    Args:
        installed: the packages of the image.
        others: the wheels and the other package files of the bundle.
        data: the names of the data folders.
    """
    system, components = installed.system, []
    if system.name:
        kind = ComponentType.OPERATING_SYSTEM
        components.append(Component(name=system.name, version=system.version or None, type=kind, bom_ref="os"))
    # A package may be in several places of the image.
    places = grouped((package._replace(where=""), package.where) for package in installed.packages)
    components += [_component(package, where, system) for package, where in places.items()]
    components += [_component(package, [package.where], _KIT_SYSTEM) for package in others]
    components += [
        Component(name=name, type=ComponentType.DATA, bom_ref=f"deployer/data/{name}") for name in sorted(data)
    ]
    ours = Component(name="deployer", version=deployer.__version__, type=ComponentType.APPLICATION, bom_ref="deployer")
    bom = Bom(components=components, metadata=BomMetaData(tools=ToolRepository(components=[ours])))
    bom.validate = lambda: True  # type: ignore[method-assign]  # it would add empty dependencies, in quadratic time
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # Remove random and time-dependent values.
    for keys, key in ((document["metadata"], "timestamp"), (document, "serialNumber")):
        keys.pop(key, None)
    document["metadata"]["component"] = {"bom-ref": "bundle", "name": name, "type": "container", "version": version}
    return _pieces(document)


def _pieces(document: dict[str, Any]) -> list[bytes]:
    lines = list(_lines(document))
    serial = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sha256:" + hashlib.sha256(b"".join(lines)).hexdigest())
    lines.append(b'"serialNumber":"%s"}\n' % serial.urn.encode())
    pieces = [b""]
    for line in lines:
        pieces[-1] += line
        if zlib.crc32(line) % _PIECE_ODDS == 0:
            pieces.append(b"")
    return [piece for piece in pieces if piece]


def _lines(document: dict[str, Any]) -> Iterator[bytes]:
    """Yield the document without its end: the constant part, one line per component, then the rest."""
    components = document.pop("components", [])
    first = {key: document.pop(key) for key in ("$schema", "bomFormat", "specVersion", "version")}
    yield _json(first)[:-1] + b',"components":[\n'
    for number, component in enumerate(components, 1):
        # The library sorts these by random references.
        for several in (component.get("licenses", []), component.get("evidence", {}).get("occurrences", [])):
            several.sort(key=_json)
        yield _json(component) + (b",\n" if number < len(components) else b"\n")
    yield b"],\n"
    for key in sorted(document):
        yield b"%s:%s,\n" % (_json(key), _json(document[key]))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _component(package: Package, places: list[str], system: System) -> Component:
    qualifiers = {}
    namespace = None
    version = package.version
    if package.kind in _OF_SYSTEMS:
        namespace = system.name or _OF_SYSTEMS[package.kind]
        distribution = "-".join(filter(None, system)) if system.name else ""
        qualifiers = {"arch": package.architecture, "distro": distribution, "upstream": package.source}
        if package.kind == RPM and ":" in version:  # the purl specification puts the epoch there
            qualifiers["epoch"], _, version = version.partition(":")
    name = package.name
    if package.kind == GOLANG:
        namespace, _, name = name.rpartition("/")
    purl = PackageURL(package.kind, namespace, name, version, {k: v for k, v in qualifiers.items() if v})
    # A Python package may occur twice: as wheels for two MPIs, or in two places with different licences.
    second = f"#{min(places)}" if package.licences and package.kind not in _OF_SYSTEMS else ""
    if len(package.licences) == 1:  # an expression
        licences: list[License] = [LicenseFactory().make_from_string(package.licences[0])]
    else:
        licences = [DisjunctiveLicense(name=text) for text in package.licences]
    return Component(
        name=package.name,
        version=package.version,
        purl=purl,
        bom_ref=package.where if package.sha256 else purl.to_string() + second,
        licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)] if package.sha256 else [],
        evidence=ComponentEvidence(occurrences=[Occurrence(location=place) for place in sorted(places)])
        if package.kind in (PYPI, GOLANG, CARGO) or package.sha256
        else None,
    )


def parsed(data: bytes | None) -> json_records.Record:
    """Return the SBOM of a bundle as a document, or an empty one if the bundle has none.

    Each component is an object with a name; its version, type, purl and licences have CycloneDX types.

    Raises:
        IntegrityError: the SBOM has an unexpected structure.
    """
    if data is None:
        return {}
    document = json_records.parse(data, "the SBOM", IntegrityError, MAX_MEMORY)
    components = document.get("components", []) if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(components, list):
        raise IntegrityError("the SBOM is not a CycloneDX document: its components are not a list")
    for number, component in enumerate(components):
        if not _is_component(component):
            raise IntegrityError(f"the SBOM's component {number} is not one of CycloneDX", "pack the bundle again")
    return document


def _is_component(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    licences = value.get("licenses", [])
    if not isinstance(licences, list) or not _has_texts(value, "type", "version", "purl"):
        return False
    for licence in licences:
        if not _has_texts(licence, "expression") or not _has_texts(licence.get("license", {}), "id", "name"):
            return False
    try:
        purl = value.get("purl")
        return not purl or _KIND.fullmatch(PackageURL.from_string(purl).type) is not None
    except ValueError:
        return False


def _has_texts(value: object, *keys: str) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key, ""), str) for key in keys)


def counts(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of packages of each kind in an SBOM, e.g. ``{"deb": 90, "pypi": 40}``."""
    kinds = [PackageURL.from_string(item["purl"]).type for item in document.get("components", ()) if item.get("purl")]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
