"""Scans: what vulnerability scanners found in the packages of a bundle, as its maker recorded it.

A scan is a text file in the form of a plan update: a JSON record, followed by any number of signatures in OpenSSH's
armor. They have a namespace of their own, so that a site can let other people sign scans than bundles.
"""

import datetime as dt
import re
from typing import List, NamedTuple, Optional

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import UsageError

SCHEMA = "scan"
#: The end of a scan's file name, after the bundle's path.
SUFFIX = ".scan.json"
#: Its name beside the parts of a bundle, which `push --to` writes.
ON_MEDIUM = "bundle" + SUFFIX
#: The scanner did not know it; then from harmless to severe.
SEVERITIES = ("unknown", "low", "medium", "high", "critical")
AGAIN = "on the laptop: `deployer scan BUNDLE.tar --key KEY` with a new database, then `deployer push BUNDLE.tar SITE`"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_LATEST = 10**10  # seconds since the epoch: the year 2286
_DAY = 86400
#: Seconds that the clocks of two machines may differ.
_SKEW = 3600
_SHOWN = 3


class ScanDemand(NamedTuple):
    """What a site's policy demands of scans.

    Attributes:
        days: the greatest age.
        severity: the lowest severity of which no finding may be open.
    """

    days: int
    severity: str = "critical"


class Scanner(NamedTuple):
    """A program that looked for vulnerabilities.

    Attributes:
        name: its name.
        version: its version; empty if unknown.
        made: when it looked, in seconds since the epoch.
        database: the date of its database in seconds since the epoch; None: unknown.
    """

    name: str
    version: str
    made: int
    database: Optional[int] = None


class Vulnerability(NamedTuple):
    """A vulnerability of a package.

    Attributes:
        id: its name, or names with ", " between them, for instance CVE-2026-1234.
        severity: one of SEVERITIES.
        package: the package.
        version: the package's version.
        purl: the package's purl; empty if unknown.
        fixed: the versions in which it is fixed; empty if unknown.
        status: ``not_affected`` or ``fixed``, as the bundle's maker states; empty: the finding is open.
        because: the reason for the status.
    """

    id: str
    severity: str
    package: str
    version: str = ""
    purl: str = ""
    fixed: str = ""
    status: str = ""
    because: str = ""

    def record(self) -> json_records.Record:
        return records.short(self)

    def line(self) -> str:
        """Return the line to print."""
        return f"{self.id} in {self.package} {self.version}" + (f" (fixed in {self.fixed})" if self.fixed else "")


class Scan(NamedTuple):
    """The findings of scanners about one bundle.

    Attributes:
        digest: the bundle's digest.
        bundle: NAME:VERSION.
        scanners: the scanners, at least one.
        findings: what they found.
    """

    digest: str
    bundle: str
    scanners: List[Scanner]
    findings: List[Vulnerability]

    def text(self) -> str:
        """Return the file's text, without signatures."""
        return json_records.pretty_rows(json_records.stamped(SCHEMA, records.plain(self)), "findings")

    def open(self, severity: str) -> List[Vulnerability]:
        """Return the open findings of a severity or a worse one."""
        least = SEVERITIES.index(severity)
        return [one for one in self.findings if not one.status and SEVERITIES.index(one.severity) >= least]

    def new_since(self, earlier: "Scan") -> List[Vulnerability]:
        """Return the open findings that an earlier scan lacks, whatever the versions."""
        known = {(one.id, one.package) for one in earlier.findings}
        return [one for one in self.open(SEVERITIES[0]) if (one.id, one.package) not in known]


def read(data: bytes, what: str) -> Scan:
    """Parse the record of a scan; ``what`` names it in errors. Raises UsageError."""
    scan = records.read(Scan, json_records.loads(data, SCHEMA, what))
    dates = [date for one in scan.scanners for date in (one.made, one.database or 0)]
    known = all(one.severity in SEVERITIES for one in scan.findings)
    if not (known and dates and max(dates) < _LATEST and _DIGEST.match(scan.digest)):
        raise UsageError(f"{what}: an unknown severity, no scanner, or an invalid date or digest", AGAIN)
    return scan


def fault(scan: Scan, demand: ScanDemand, now: float) -> str:
    """Return why a scan does not meet a demand at the time ``now``, in seconds since the epoch; "" if it does.

    A scan knows no newer vulnerabilities than its oldest database, or itself if the database's date is unknown.
    """
    newest = max(max(one.made, one.database or 0) for one in scan.scanners)
    oldest = min(one.made if one.database is None else one.database for one in scan.scanners)
    age = int(now - oldest) // _DAY
    if newest > now + _SKEW:
        return f"its date is in the future: {day(newest)}"
    if age > demand.days:
        return "it knows the vulnerabilities until %s, %d days ago; %d are allowed" % (day(oldest), age, demand.days)
    found = scan.open(demand.severity)
    names = ", ".join([one.line() for one in found[:_SHOWN]] + ["..."] * (len(found) > _SHOWN))
    return "open findings (%s or worse): %d: %s" % (demand.severity, len(found), names) if found else ""


def day(seconds: int) -> str:
    """Return a date as YYYY-MM-DD."""
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).date().isoformat()
