"""Which of a bundle's components their makers no longer look after: its SBOM against end_of_support.yaml."""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from packageurl import PackageURL

from deployer.connected.ground.yaml_model import Model, load_model
from deployer.contract import json_records

_TABLE = Path(__file__).with_name("end_of_support.yaml")
#: A project that published no end counts as out of support when its last release is this old.
_SILENT = dt.timedelta(days=730)


class ReleaseLine(Model):
    """What is known of a line of releases; see the YAML file."""

    end: dt.date | None = None
    last_release: dt.date | None = None
    source: str
    verified: bool = True


class Product(Model):
    """Packages that are one product, and its lines by the beginning of their versions."""

    name: str
    packages: list[str]
    lines: dict[str, ReleaseLine]


class Table(Model):
    """All that is known, and when its sources were read."""

    checked: dt.date
    products: list[Product]


class Flag(NamedTuple):
    """A line of releases that is out of support since ``since``; where no end was published, a version that had no
    successor since then."""

    product: str
    version: str
    since: dt.date
    published: bool
    source: str
    verified: bool

    def line(self) -> str:
        """Return it for people."""
        what = f"out of support: {self.product} {self.version}"
        since = f"since {self.since}" if self.published else f"no end date published, no release since {self.since}"
        return f"{what}, {since} ({self.source}{'' if self.verified else '; unverified'})"

    def record(self) -> json_records.Record:
        """Return it for programs."""
        return {**self._asdict(), "since": self.since.isoformat()}


@cache
def table() -> Table:
    """Return the facts that come with deployer."""
    return load_model(Table, _TABLE, "a table of ends of support")


def flags(sbom: Mapping[str, Any], today: dt.date) -> list[Flag]:
    """Return what in an SBOM is out of support on a day, each line of a product once."""
    found = {}
    for component in sbom.get("components", ()):
        for product, name, line in _lines(component):
            if line.end and line.end < today:
                found[product, name] = Flag(product, name, line.end, True, line.source, line.verified)
            elif line.last_release and line.last_release + _SILENT < today:
                version = _upstream(str(component["version"]))
                found[product, name] = Flag(product, version, line.last_release, False, line.source, line.verified)
    return [found[key] for key in sorted(found)]


def _lines(component: Mapping[str, Any]) -> Iterator[tuple[str, str, ReleaseLine]]:
    """Yield product, line and what is known of it, for a component of an SBOM."""
    kind, version = "os", str(component.get("version", ""))
    if component.get("type") != "operating-system":
        if not component.get("purl"):
            return
        kind = PackageURL.from_string(component["purl"]).type
    for product in table().products:
        for pattern in product.packages:
            match = re.fullmatch(f"(?i:{pattern})", f"{kind}/{component['name']}")
            if match:
                named = match[1] if match.re.groups else _upstream(version)
                yield from ((product.name, name, line) for name, line in product.lines.items() if _begins(named, name))


def _upstream(version: str) -> str:
    """Return a version without Debian's epoch and revision."""
    return version.rpartition(":")[2].partition("-")[0]


def _begins(version: str, line: str) -> bool:
    return re.match(rf"{re.escape(line)}(?![0-9])", version) is not None
