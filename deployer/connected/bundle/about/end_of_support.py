"""Components of a bundle that are out of support, found by comparing the SBOM with end_of_support.yaml."""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from packageurl import PackageURL

from deployer.connected.ground import own_data
from deployer.contract.base import json_records
from deployer.contract.base.text import printable

_TABLE = Path(__file__).with_name("end_of_support.yaml")
#: A project without a published end date counts as unsupported if its last release is older than this.
_SILENT = dt.timedelta(days=730)


class ReleaseLine(NamedTuple):
    """Facts about a release line, with the keys of the YAML file.

    Attributes:
        source: the source of the dates.
        end: the published end of support, None if unpublished.
        last_release: the date of the last release, if no end was published.
        verified: somebody has read the source.
    """

    source: str
    end: dt.date | None = None
    last_release: dt.date | None = None
    verified: bool = True


class Flag(NamedTuple):
    """A release line that is out of support.

    Attributes:
        product: the product's name.
        version: the release line's name, or the installed version if no end was published.
        since: the end of support, or the date of the last release if no end was published.
        published: an end date was published.
        source: the source of the dates.
        verified: somebody has read the source.
    """

    product: str
    version: str
    since: dt.date
    published: bool
    source: str
    verified: bool

    def line(self) -> str:
        """Return the line to print."""
        what = f"out of support: {self.product} {printable(self.version)}"
        since = f"since {self.since}" if self.published else f"no end date published, no release since {self.since}"
        return f"{what}, {since} ({self.source}{'' if self.verified else '; unverified'})"

    def record(self) -> json_records.Record:
        """Return the fields for ``--json``."""
        return {**self._asdict(), "since": self.since.isoformat()}


@cache
def table() -> Any:
    """Return the content of end_of_support.yaml."""
    return own_data.load_yaml(_TABLE)


def flags(sbom: Mapping[str, Any], today: dt.date) -> list[Flag]:
    """Return the distinct release lines in an SBOM that are out of support on a day."""
    late = {}
    for component in sbom.get("components", ()):
        for product, name, line in _lines(component):
            if line.end and line.end < today:
                late[product, name] = Flag(product, name, line.end, True, line.source, line.verified)
            elif line.last_release and line.last_release + _SILENT < today:
                version = _upstream(str(component.get("version", "")))
                late[product, name] = Flag(product, version, line.last_release, False, line.source, line.verified)
    return [late[key] for key in sorted(late)]


def end(component: Mapping[str, Any]) -> dt.date | None:
    """Return the published end of support of a component of an SBOM, or None if unknown.

    A Debian package without its own release line is supported as long as its distribution.
    """
    own = next((line.end for _, _, line in _lines(component) if line.end), None)
    return own or next((line.end for _, _, line in _lines(_distribution(component)) if line.end), None)


def _lines(component: Mapping[str, Any]) -> Iterator[tuple[str, str, ReleaseLine]]:
    """Yield product, release line and facts for a component of an SBOM."""
    kind, version = "os", str(component.get("version", ""))
    if component.get("type") != "operating-system":
        if not component.get("purl"):
            return
        kind = PackageURL.from_string(component["purl"]).type
    for product in table()["products"]:
        for pattern in product["packages"]:
            match = re.fullmatch(f"(?i:{pattern})", f"{kind}/{component['name']}")
            if match:
                named = match[1] if match.re.groups else _upstream(version)
                for name, line in product["lines"].items():
                    if re.match(rf"{re.escape(name)}(?![0-9])", named):
                        yield product["name"], name, ReleaseLine(**line)


def _distribution(component: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a component's distribution as a component, without a purl and a version if none is given."""
    purl = PackageURL.from_string(component["purl"]) if component.get("purl") else None
    named = dict(purl.qualifiers).get("distro", "") if purl and isinstance(purl.qualifiers, dict) else ""
    name, _, version = named.rpartition("-")
    return {"type": "operating-system", "name": name, "version": version}


def _upstream(version: str) -> str:
    """Return a version without Debian's epoch and revision."""
    return version.rpartition(":")[2].partition("-")[0]
