"""Vulnerability scanners: read their reports, and run those that are installed; scanners.yaml describes both.

Reports are texts from outside. They are only parsed as JSON, and each value is cut and cleaned.
"""

import datetime as dt
import functools
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import own_data
from deployer.contract.base import json_records
from deployer.contract.base.errors import JobFailed, MissingTool, UsageError
from deployer.contract.base.text import printable
from deployer.contract.bundle.scan import SEVERITIES, Scanner, Vulnerability
from deployer.system import files, process

#: Bytes of a report, and of memory to parse it: grype writes 2 kB per finding.
MAX_SIZE, _MAX_MEMORY = 128 * 1024 * 1024, 2_000_000_000
#: The most findings of a report, texts of a value, and characters of a text.
_MOST, _SEVERAL, _LONGEST = 10_000, 100, 300
_SECONDS = 1800  # for a scanner
#: Variables with which users move the databases, besides HOME.
_PLACES = ("XDG_CACHE_HOME", "GRYPE_DB_CACHE_DIR", "TRIVY_CACHE_DIR", "OSV_SCANNER_LOCAL_DB_CACHE_DIRECTORY")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?)?")


class Report(NamedTuple):
    """A report: the scanner that made it, and what it found."""

    scanner: Scanner
    findings: list[Vulnerability]


@functools.cache
def _table() -> Any:
    return own_data.load_yaml(Path(__file__).with_name("scanners.yaml"))


def names() -> list[str]:
    """Return the names of the scanners that ``run`` knows."""
    return [known["name"] for known in _table()["formats"] if "start" in known]


def read(data: bytes, what: str, made: int | None = None) -> Report:
    """Parse a report, or a document of statements (VEX).

    Args:
        what: its name in errors.
        made: when it was made, for a report that does not state it, in seconds since the epoch.

    Raises:
        UsageError: its format is unknown, it has no date, or a finding or the whole is not as it should be.
    """
    document = json_records.parse(data, what, limit=_MAX_MEMORY)
    known = next(
        (one for one in _table()["formats"] if all(_at(document, key) is not None for key in one["has"])), None
    )
    if known is None:
        raise UsageError(f"{what} is not a report", "known: " + ", ".join(one["name"] for one in _table()["formats"]))
    by, version, date, database = (_text(document, known.get(key, ())) for key in ("by", "version", "made", "database"))
    made = _date(date) or made
    if made is None:
        raise UsageError(f"{what} does not state when it was made", "give that day: --date YYYY-MM-DD")
    elsewhere = [one for lists in (["components"], ["runs", "tool.driver.rules"]) for one in _walk(document, lists)]
    named = {str(one.get("bom-ref", one.get("id"))): one for one in elsewhere}
    findings: list[Vulnerability] = []
    for found in _walk(document, known["findings"]):
        texts = {name: _text(found, places) for name, places in known["finding"].items()}
        status = _table()["closed"].get(texts.get("status"), "")
        texts |= {"severity": _severity(texts.get("severity", "")), "status": status}
        findings += _completed(found, Vulnerability(**texts), named)
        last = findings[-1]
        if not last.id or not last.package or (last.status and not last.because) or len(findings) > _MOST:
            wrong = f"a finding without a name, package or reason, or more than {_MOST} findings"
            raise UsageError(f"{what} has {wrong}")
    return Report(Scanner(by.lower() or known["name"], version, made, _date(database)), findings)


def run(sbom: bytes, wanted: Sequence[str] = ()) -> list[Report]:
    """Run scanners over an SBOM.

    Args:
        wanted: their names; empty: those that are installed.

    Raises:
        MissingTool: a scanner, or each of them, is missing.
        JobFailed: a scanner failed.
    """
    here = wanted or [name for name in names() if shutil.which(name)]
    if not here:
        hint = "pip install cve-bin-tool, or scan the SBOM elsewhere (`inspect --sbom`), and give its --report FILE"
        raise MissingTool(f"no scanner is installed: {', '.join(names())}", hint)
    return [_run(known, sbom) for known in _table()["formats"] if known["name"] in here]


def _run(known: Mapping[str, Any], sbom: bytes) -> Report:
    name, hint = known["name"], "its --help tells how to download its database; or select others with --scanner"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="deployer-scan-"))
        source, report = f"{folder}/bundle.cdx.json", f"{folder}/report.json"
        Path(source).write_bytes(sbom)
        words = [word.replace("SBOM", source).replace("REPORT", report) for word in known["start"]]
        env = {**process.base_environment(*_PLACES), **known.get("env", {})}
        printed = None if report in words else stack.enter_context(open(report, "wb"))
        done = process.run([name, *words], _SECONDS, env, folder, stdout=printed, check=False, hint=hint)
        if done.returncode not in (0, known.get("found")):
            raise JobFailed(f"{name} failed (exit {done.returncode}): {done.last_words()}", hint)
        try:
            found = read(files.read_bytes(report, limit=MAX_SIZE), f"the report of {name}", int(time.time()))
            if "about" in known:
                about = process.run([name, *known["about"]], _SECONDS, env, folder, hint=hint).stdout
                date = _date(_text(json_records.parse(about.encode(), name), known["about_database"]))
                found = found._replace(scanner=found.scanner._replace(database=date))
        except UsageError as error:
            raise JobFailed(error.message, hint) from error
        return found


def _completed(found: Mapping[str, Any], finding: Vulnerability, named: Mapping[str, Any]) -> list[Vulnerability]:
    """Return a finding with what its report has elsewhere, for each package that it is about.

    Args:
        found: the finding in the report.
        named: the components of CycloneDX and the rules of SARIF, by their names.
    """
    if "vulnerability" in found:  # grype and OpenVEX
        others = _text(found, ["vulnerability.aliases"])
        return [finding._replace(id=f"{finding.id}, {others}" if others else finding.id)]
    if "ruleId" in found:  # SARIF
        message = re.search(_table()["message"], str(_at(found, "message.text"))[: 10 * _LONGEST])
        package, version, severity = message.groups() if message else ("unknown", "", None)
        score = _text(named.get(finding.id), ["properties.security-severity"]) or severity or _text(found, ["level"])
        name = finding.id.removesuffix(f"-{package}")  # grype adds the package
        return [Vulnerability(name, _severity(score or "error"), printable(package), printable(version))]
    several = []
    for ref in finding.package.split(", ") if "affects" in found else ():  # CycloneDX; a BOM-Link has a # before
        purl = ref.rpartition("#")[2]
        component = named.get(ref) or named.get(purl)
        package, version, own = (_text(component, [key]) for key in ("name", "version", "purl"))
        several.append(finding._replace(package=package or purl, version=version, purl=own or purl))
    return several or [finding]


def _walk(value: Any, lists: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects in nested lists, each with the keys of the objects around it."""
    found = _at(value, lists[0])
    for item in found if isinstance(found, list) else ():
        for inner in _walk(item, lists[1:]) if lists[1:] else [{}]:
            yield {**(item if isinstance(item, dict) else {}), **inner}


def _at(value: Any, path: str) -> Any:
    """Return the value at a path of keys, through lists as a list; None if there is none."""
    for name in path.split("."):
        if isinstance(value, list):
            value = [item[name] for item in value if isinstance(item, dict) and name in item] or None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any, places: Sequence[str]) -> str:
    """Return the first value that is a text or number, or a list of them; "" if there is none."""
    for found in (_at(value, place) for place in places):
        several = found[:_SEVERAL] if isinstance(found, list) else [found]
        texts = [printable(str(one)[:_LONGEST]) for one in several if isinstance(one, str | int | float)]
        if any(texts):
            return ", ".join(texts)
    return ""


def _severity(text: str) -> str:
    """Return the severity for words or CVSS scores, the worst of several."""
    known = ["unknown"]
    for word in text.lower().split(", "):
        with suppress(ValueError):
            known += [name for name, least in _table()["scores"].items() if float(word) >= least]
        known.append(_table()["words"].get(word, word if word in SEVERITIES else "unknown"))
    return max(known, key=SEVERITIES.index)


def _date(text: str) -> int | None:
    """Return a date in seconds since the epoch; None if it is not one. Without a zone, it is this machine's."""
    match = _DATE.match(text)
    try:
        zone = (match[3] or "").replace("Z", "+00:00") if match else ""
        date = dt.datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}{zone}") if match else None
        return int(date.timestamp()) if date and date.year > 1970 else None
    except (ValueError, OverflowError):
        return None
