"""scan: the reports of scanners, and what their findings and the maker's statements become in the record."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.bundle.about import scan_reports
from deployer.contract.base.errors import IntegrityError, JobFailed, MissingTool, Refused, UsageError
from deployer.contract.bundle import plan_update, sshsig
from deployer.contract.bundle.scan import Scan, Scanner, Vulnerability, read
from deployer.system.trust import signature
from tests import bundles
from tests.unit.connected.ground.test_sign import make_key

PURL = "pkg:deb/debian/zlib1g@1.2?arch=amd64&distro=debian-12"
SBOM = {
    "components": [
        {"name": "zlib1g", "type": "library", "version": "1.2", "purl": PURL},
        {"name": "setuptools", "type": "library", "version": "65.0.0", "purl": "pkg:pypi/setuptools@65.0.0"},
    ]
}
BAD = Vulnerability("CVE-2026-0001", "critical", "zlib1g", "1.2", PURL, "1.3, 1.2.1")
MILD = Vulnerability("CVE-2026-0002", "medium", "setuptools", "65.0.0", "pkg:pypi/setuptools@65.0.0")
#: 2026-11-20 10:00 UTC, and two days before.
MADE, BUILT = 1795168800, 1794996000

# Each has the fields of the scanner's own example, as far as they matter, with findings of ours.
GRYPE: dict[str, Any] = {
    "matches": [
        {
            "vulnerability": {"id": bad.id, "severity": bad.severity.title(), "fix": {"versions": fixed, "state": ""}},
            "relatedVulnerabilities": [],
            "artifact": {"name": bad.package, "version": bad.version, "type": "deb", "purl": bad.purl},
        }
        for bad, fixed in ((BAD, ["1.3", "1.2.1"]), (MILD, []))
    ],
    "source": {"type": "sbom-file", "target": "x"},
    "descriptor": {
        "name": "grype",
        "version": "0.104.0",
        "db": {"status": {"built": "2026-11-18T10:00:00Z", "valid": True}},
        "timestamp": "2026-11-20T11:00:00.123456789+01:00",
    },
}
TRIVY: dict[str, Any] = {
    "SchemaVersion": 2,
    "Trivy": {"Version": "0.68.1"},
    "CreatedAt": "2026-11-20T10:00:00Z",
    "ArtifactName": "bundle.cdx.json",
    "ArtifactType": "cyclonedx",
    "Results": [
        {"Target": "debian", "Class": "os-pkgs"},
        {
            "Target": "debian",
            "Class": "os-pkgs",
            "Vulnerabilities": [
                {
                    "VulnerabilityID": bad.id,
                    "PkgName": bad.package,
                    "PkgIdentifier": {"PURL": bad.purl, "UID": "1"},
                    "InstalledVersion": bad.version,
                    "FixedVersion": bad.fixed,
                    "Severity": bad.severity.upper(),
                    "CVSS": {"nvd": {"V3Score": 9.8}},
                }
                for bad in (BAD, MILD)
            ],
        },
    ],
}
OSV: dict[str, Any] = {
    "results": [
        {
            "source": {"path": "bundle.cdx.json", "type": "sbom"},
            "packages": [
                {
                    "package": {"name": bad.package, "version": bad.version, "ecosystem": "Debian:12"},
                    "vulnerabilities": [{"id": bad.id, "aliases": ["GHSA-x"]}],
                    "groups": [{"ids": [bad.id], "aliases": [bad.id, "GHSA-x"], "max_severity": score}],
                }
                for bad, score in ((BAD, "9.8"), (MILD, "5.9"))
            ],
        }
    ],
    "experimental_config": {},
}
CVE_BIN_TOOL: dict[str, Any] = {
    "metadata": {"tool": {"name": "cve-bin-tool", "version": "3.4"}, "generation_date": "2026-11-20 10:00:00"},
    "database_info": {"last_updated": "2026-11-18 10:00:00", "total_entries": {"NVD": 2}},
    "vulnerabilities": {
        "report": [
            {
                "datasource": "NVD",
                "entries": [
                    {
                        "vendor": "x",
                        "product": bad.package,
                        "version": bad.version,
                        "cve_number": bad.id,
                        "severity": bad.severity.upper(),
                        "score": "9.8",
                    }
                    for bad in (BAD, MILD)
                ],
            }
        ]
    },
}
CYCLONEDX: dict[str, Any] = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {
        "timestamp": "2026-11-20T10:00:00+00:00",
        "tools": {"components": [{"type": "application", "name": "Maker", "version": "1"}]},
    },
    "components": [{"bom-ref": "z", "name": BAD.package, "version": BAD.version, "purl": PURL}],
    "vulnerabilities": [
        {
            "id": BAD.id,
            "ratings": [{"score": 4.0}, {"severity": "critical", "method": "other"}],
            "affects": [{"ref": "z"}],
        },
        {
            "id": MILD.id,
            "ratings": [{"score": 5.0}],
            "affects": [{"ref": f"urn:cdx:0/1#{MILD.purl}"}],
            "analysis": {"state": "false_positive", "detail": "not built in"},
        },
    ],
}


def sarif(message: str, rule: dict[str, Any], name: str = "Trivy") -> dict[str, Any]:
    results = [{"ruleId": rule["id"], "ruleIndex": 0, "level": "error", "message": {"text": message}}]
    driver = {"name": name, "version": "1.0", "rules": [rule]}
    return {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def parsed(report: object, made: int | None = None) -> scan_reports.Report:
    return scan_reports.read(json.dumps(report).encode(), "it", made)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def test_reports_of_each_scanner() -> None:
    assert parsed(GRYPE) == (Scanner("grype", "0.104.0", MADE, BUILT), [BAD, MILD])
    assert parsed(TRIVY) == (Scanner("trivy", "0.68.1", MADE), [BAD, MILD])
    bare = [one._replace(purl="", fixed="") for one in (BAD, MILD)]
    assert parsed(OSV, MADE) == (Scanner("osv-scanner", "", MADE), bare)
    assert parsed(CVE_BIN_TOOL) == (Scanner("cve-bin-tool", "3.4", MADE, BUILT), bare)
    closed = MILD._replace(package=MILD.purl, version="", status="not_affected", because="not built in")
    assert parsed(CYCLONEDX) == (Scanner("maker", "1", MADE), [BAD._replace(fixed=""), closed])


@pytest.mark.parametrize(
    ("message", "rule", "expected"),
    [
        (
            "Package: zlib1g\nInstalled Version: 1.2\nVulnerability CVE-2026-0001\nSeverity: HIGH\nFixed Version: 1.3",
            {"id": "CVE-2026-0001"},
            "high",
        ),
        (
            "The path /x reports zlib1g at version 1.2  which is a vulnerable (deb) package installed",
            {"id": "CVE-2026-0001-zlib1g", "properties": {"security-severity": "9.8"}},
            "critical",
        ),
        ("Package 'zlib1g@1.2' is vulnerable to 'CVE-2026-0001'.", {"id": "CVE-2026-0001"}, "critical"),
    ],
)
def test_sarif_names_packages_in_texts(message: str, rule: dict[str, Any], expected: str) -> None:
    scanner, findings = parsed(sarif(message, rule), MADE)
    assert findings == [Vulnerability(BAD.id, expected, "zlib1g", "1.2")]
    assert scanner == Scanner("trivy", "1.0", MADE)
    assert parsed(sarif("?", rule), MADE).findings[0].package == "unknown"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("report", "said"),
    [
        ([], "it is not a report; known: grype, trivy"),
        ({"bomFormat": "CycloneDX", "components": []}, "it is not a report"),  # an SBOM that nobody scanned
        (OSV, "it does not state when it was made"),
        ({**GRYPE, "matches": [{"vulnerability": {"id": 1}}]}, "a finding without a name, package or reason"),
        ({**GRYPE, "matches": [3]}, "a finding without a name"),
        ({**GRYPE, "matches": GRYPE["matches"] * 5001}, "or more than 10000 findings"),
        ({**CYCLONEDX, "vulnerabilities": [{"id": "x", "affects": []}]}, "a finding without a name, package"),
    ],
)
def test_a_report_that_cannot_be_used_is_an_error(report: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(report)
    assert said in f"{caught.value.message}; {caught.value.hint}"


def test_texts_of_reports_are_cleaned() -> None:
    match = {"vulnerability": {"id": "a\x1b[2J" + "b" * 1000, "severity": "?"}, "artifact": {"name": "\n"}}
    (finding,) = parsed({**GRYPE, "matches": [match]}).findings
    assert finding.id.startswith(r"a\x1b[2Jbbb")
    assert len(finding.id) < 320
    assert (finding.package, finding.severity) == (r"\n", "unknown")


def bundle(folder: Path, name: str = "b.tar") -> str:
    return str(bundles.write(folder / name, None, [("deployer/sbom.cdx.json", json.dumps(SBOM).encode())]))


def file(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def vex(*statements: dict[str, Any]) -> dict[str, Any]:
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": "https://example.org/1",
        "author": "me",
        "timestamp": "2026-11-20T10:00:00Z",
        "version": 1,
        "statements": list(statements),
    }


def test_the_record_beside_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle(tmp_path)
    reports = ["--report", file(tmp_path / "g", GRYPE), "--report", file(tmp_path / "c", CVE_BIN_TOOL)]
    assert main(["scan", path, *reports]) == Refused.exit_code
    said = capsys.readouterr().out
    assert "critical: CVE-2026-0001 in zlib1g 1.2 (fixed in 1.3, 1.2.1)\n" in said
    assert "grype 0.104.0 on 2026-11-20, with a database of 2026-11-18\n" in said
    assert "open findings: 1 critical, 1 medium; closed by statements: 0\n" in said
    assert f"not signed: {path}.scan.json\n" in said
    found = read(Path(path + ".scan.json").read_bytes(), "it")
    assert found.findings == [BAD, MILD]  # once, with the purls that the SBOM has
    assert [one.name for one in found.scanners] == ["grype", "cve-bin-tool"]
    assert found.bundle == "tiny:1.0"


@pytest.mark.needs("ssh-keygen")
def test_it_is_signed_for_scans_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, key, other = bundle(tmp_path), make_key(tmp_path, "key"), make_key(tmp_path, "other")
    words = ["scan", path, "--report", file(tmp_path / "g", {**GRYPE, "matches": []}), "--key", str(key), "--json"]
    assert main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["open"], record["findings"], record["bundle"]) == ({}, [], "tiny:1.0")
    assert main(["sign", path + ".scan.json", "--key", str(other)]) == 0
    message, blobs = plan_update.split(Path(path + ".scan.json").read_bytes())
    assert len(blobs) == 2
    keys = {signature.check(blob, message, sshsig.SCAN_NAMESPACE).fingerprint for blob in blobs}
    assert record["key"] in keys
    with pytest.raises(IntegrityError, match="was made for b'deployer-scan', not for b'deployer-bundle'"):
        signature.check(blobs[0], message)


@pytest.mark.parametrize(
    ("product", "open_ones"),
    [
        ({"@id": "pkg:deb/debian/zlib1g"}, 0),
        ({"@id": "pkg:deb/debian/zlib1g@1.2?arch=amd64"}, 0),
        ({"@id": "pkg:deb/debian/zlib1g@1.1"}, 1),
        ({"@id": "pkg:deb/debian/zlib1g?arch=arm64"}, 1),
        ({"@id": "pkg:deb/debian/other"}, 1),
        ({"@id": "tiny"}, 0),
        ({"@id": "tiny:2.0"}, 1),
        ({"@id": "tiny:1.0", "subcomponents": [{"@id": "pkg:pypi/x"}, {"@id": "pkg:deb/debian/zlib1g"}]}, 0),
        ({"@id": "tiny:1.0", "subcomponents": [{"@id": "pkg:pypi/x"}]}, 1),
        ({"@id": "another", "subcomponents": [{"@id": "pkg:deb/debian/zlib1g"}]}, 1),
    ],
)
def test_statements_close_findings(tmp_path: Path, product: dict[str, Any], open_ones: int) -> None:
    path = bundle(tmp_path)
    statement = {
        "vulnerability": {"name": "GHSA-x", "aliases": [BAD.id]},
        "products": [product],
        "status": "not_affected",
        "justification": "vulnerable_code_not_in_execute_path",
    }
    words = ["scan", path, "--report", file(tmp_path / "g", GRYPE), "--vex", file(tmp_path / "v", vex(statement))]
    assert main(words) == (Refused.exit_code if open_ones else 0)
    found = read(Path(path + ".scan.json").read_bytes(), "it")
    assert len(found.open("critical")) == open_ones
    reasons = {one.because for one in found.findings if one.status == "not_affected"}
    assert reasons == (set() if open_ones else {"vulnerable_code_not_in_execute_path"})


def test_a_later_statement_counts_and_a_reason_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, report = bundle(tmp_path), file(tmp_path / "g", GRYPE)
    about = {"vulnerability": {"name": BAD.id}, "products": [{"@id": "tiny"}]}
    closing, opening = {**about, "status": "fixed", "status_notes": "patched"}, {**about, "status": "affected"}
    words = ["scan", path, "--report", report, "--vex"]
    assert main([*words, file(tmp_path / "v", vex(opening, closing))]) == 0
    assert main([*words, file(tmp_path / "v", vex(closing, opening))]) == Refused.exit_code
    capsys.readouterr()
    assert main([*words, file(tmp_path / "v", vex({**about, "status": "not_affected"}))]) == UsageError.exit_code
    assert "a finding without a name, package or reason" in capsys.readouterr().err


def fake(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


def test_scanners_that_fail_or_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(MissingTool, match="no scanner is installed: grype, trivy, cve-bin-tool, osv-scanner"):
        scan_reports.run(b"{}")
    with pytest.raises(MissingTool, match="grype"):
        scan_reports.run(b"{}", ["grype"])
    for script, said in (
        ("echo 'no database' >&2; exit 1", r"grype failed \(exit 1\): no database"),
        ("echo '{'", "the report of grype is not valid JSON"),
        ("true", "the report of grype is not valid JSON"),
    ):
        fake(tmp_path / "bin", "grype", script)
        with pytest.raises(JobFailed, match=said):
            scan_reports.run(b"{}")


def test_scanners_are_started_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, report in (("grype", GRYPE), ("trivy", TRIVY), ("osv-scanner", OSV)):
        code = 1 if name == "osv-scanner" else 0
        told = '{"Version": "0.68.1", "VulnerabilityDB": {"UpdatedAt": "2026-11-18T10:00:00Z"}}'
        file(tmp_path / name, report)
        script = f"echo $0 $* >> {tmp_path}/words; echo $GRYPE_DB_AUTO_UPDATE >> {tmp_path}/words\n"
        script += f"[ $1 != version ] || {{ echo '{told}'; exit; }}\ncat {tmp_path / name}; exit {code}"
        fake(tmp_path / "bin", name, script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    found = scan_reports.run(b"{}")
    assert [one.scanner.name for one in found] == ["grype", "trivy", "osv-scanner"]
    assert [one.scanner.database for one in found] == [BUILT, BUILT, None]
    words = (tmp_path / "words").read_text()
    assert "-o json\nfalse\n" in words
    assert "sbom --offline-scan --skip-db-update" in words
    assert "--offline --format json -L /" in words


def test_a_bundle_without_an_sbom_and_a_wrong_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(bundles.write(tmp_path / "b.tar"))
    report = file(tmp_path / "o", OSV)
    assert main(["scan", path, "--report", report, "--date", "2026-11-20"]) == UsageError.exit_code
    assert "has no SBOM" in capsys.readouterr().err
    assert main(["scan", path, "--report", report, "--date", "yesterday"]) == UsageError.exit_code
    assert "--date" in capsys.readouterr().err


def test_the_scan_of_another_bundle_stays_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from deployer.connected.bundle.about import scan

    path = bundle(tmp_path)
    assert scan.beside(path, "sha256:" + "0" * 64) is None
    Path(path + ".scan.json").write_text(Scan("sha256:" + "1" * 64, "x:1", [Scanner("a", "1", MADE)], []).text())
    assert scan.beside(path, "sha256:" + "0" * 64) is None
    assert "is the scan of another bundle, and is ignored" in capsys.readouterr().err
    assert scan.beside(path, "sha256:" + "1" * 64)
