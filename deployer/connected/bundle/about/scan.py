"""scan: record what vulnerability scanners find in a bundle's packages, and the maker's statements about it."""

from collections.abc import Sequence
from pathlib import Path

from packageurl import PackageURL

from deployer.connected.ground.sign import signed_text
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import plan_update, sealed_file, sshsig
from deployer.contract.bundle.manifest import SBOM_MEMBER
from deployer.contract.bundle.scan import SEVERITIES, SUFFIX, Scan, Vulnerability, read
from deployer.contract.bundle.sshsig import Key
from deployer.system import files, terminal
from deployer.system.trust import trust
from deployer.system.trust.trust import Trust
from deployer.system.trust.verify import begin, opened, read_seal


def make(
    bundle: str, reports: Sequence[Path], names: Sequence[str], vex: Sequence[Path], date: int | None, key: Path | None
) -> tuple[Scan, Key | None]:
    """Scan a bundle, or take reports about it, and write the result beside it. Return it, and the key that signed it.

    Args:
        reports: files of scanners' reports; empty: run the scanners.
        names: the scanners to run; empty: those that are installed.
        vex: files with the maker's statements (OpenVEX or CycloneDX); a later one about the same finding counts.
        date: when the files were made if they do not state it, in seconds since the epoch.
        key: the key that signs the scan; None: it is not signed.

    Raises:
        UsageError: a file is not as it should be, or the bundle has no SBOM.
        MissingTool: no scanner is installed.
        JobFailed: a scanner failed.
    """
    from deployer.connected.bundle.about import sbom, scan_reports  # slow to import, and push needs neither

    with opened(bundle) as stream:
        whole = begin(stream, bundle, ())
        packages = sealed_file.small(whole.manifest, SBOM_MEMBER, whole.read)
    if packages is None:
        raise UsageError(f"{bundle} has no SBOM", "an older version of deployer packed it: pack it again")
    limit = scan_reports.MAX_SIZE
    given = [[scan_reports.read(files.read_bytes(str(path), limit=limit), str(path), date) for path in paths]
             for paths in (reports, vex)]  # fmt: skip
    found = given[0] or scan_reports.run(packages, names)
    purls = {(item["name"], item.get("version")): item.get("purl") for item in sbom.parsed(packages)["components"]}
    label = f"{whole.manifest.name}:{whole.manifest.version}"
    findings: dict[tuple[str, str, str], Vulnerability] = {}
    for finding in (finding for report in found for finding in report.findings):  # several scanners find the same
        finding = finding._replace(purl=finding.purl or purls.get((finding.package, finding.version)) or "")
        for statement in (statement for document in given[1] for statement in document.findings):
            if _is_about(statement, finding, label):
                finding = finding._replace(status=statement.status, because=statement.because)
        same = finding.id, finding.package, finding.version
        findings[same] = max(findings.get(same, finding), finding, key=_urgency)
    several = sorted(findings.values(), key=_urgency, reverse=True)
    scan, signer = Scan(whole.digest, label, [report.scanner for report in found], several), None
    text = scan.text()
    if key is not None:
        text, signer = signed_text(text.encode(), key, sshsig.SCAN_NAMESPACE)
    if len(text) > plan_update.MAX_SIZE:
        raise UsageError(f"the scan has {len(several)} findings, more than fit into {plan_update.MAX_SIZE} bytes")
    files.write_text(bundle + SUFFIX, text)
    return scan, signer


def verified(bundle: str) -> tuple[Scan, Trust] | None:
    """Return the scan beside a bundle, and who signed it; None as in ``beside``. Raises as ``trust.establish`` does."""
    with opened(bundle) as stream:
        data = beside(bundle, read_seal(stream, bundle).digest)
    message, blobs = plan_update.split(data or b"")
    known = data and trust.establish(message, blobs, what="scan", namespace=sshsig.SCAN_NAMESPACE)
    return (read(message, bundle + SUFFIX), known) if known else None


def beside(bundle: str, digest: str) -> bytes | None:
    """Return the text of the scan beside a bundle; None, with a warning, if it is the scan of another one."""
    path = bundle + SUFFIX
    data = files.read_bytes(path, limit=plan_update.MAX_SIZE) if files.lexists(path) else None
    if data is None or read(plan_update.split(data)[0], path).digest == digest:
        return data
    terminal.warn(f"{path} is the scan of another bundle, and is ignored; scan it again: deployer scan {bundle}")
    return None


def _urgency(finding: Vulnerability) -> tuple[bool, int, Vulnerability]:
    return not finding.status, SEVERITIES.index(finding.severity), finding


def _is_about(statement: Vulnerability, finding: Vulnerability, label: str) -> bool:
    """Return whether a statement is about a finding.

    Its packages are purls. If they are parts of a product, or the product itself is meant, that is NAME or NAME:VERSION
    of this bundle, in the field ``version``.
    """
    packages, product = statement.package.split(", "), statement.version
    is_ours, is_whole = product in (label, label.partition(":")[0]), packages == [product]
    if set(statement.id.split(", ")).isdisjoint(finding.id.split(", ")):
        return False
    if is_ours:
        return is_whole or any(_covers(one, finding.purl) for one in packages)
    return bool(statement.purl or is_whole) and _covers(statement.purl or product, finding.purl)


def _covers(stated: str, purl: str) -> bool:
    """Return whether a purl stands for another one; without a version or qualifiers, it stands for all of them."""
    try:
        one, other = PackageURL.from_string(stated), PackageURL.from_string(purl)
    except ValueError:
        return False
    is_same = one[:3] == other[:3] and one.version in (None, other.version)
    return is_same and dict(one.qualifiers or {}).items() <= dict(other.qualifiers or {}).items()
