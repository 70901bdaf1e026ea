"""A page for a security officer, made at the site of what the bundle itself says: ``inspect --html``."""

import html
from typing import List, Optional, Sequence, Tuple

from deployer.contract.base.text import printable
from deployer.contract.bundle import plan_update, scan, sshsig
from deployer.contract.bundle.scan import SEVERITIES
from deployer.system.trust import trust

PageSection = Tuple[str, Sequence[str]]

_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%s</title><style>body {margin: 2em} pre {white-space: pre-wrap}</style></head><body><h1>%s</h1>
%s
</body></html>
"""
_NONE = "Nobody recorded a scan for vulnerabilities. On the laptop: deployer scan B.tar"


def page(title: str, sections: Sequence[PageSection]) -> str:
    """Return a page without scripts, and with nothing remote, of lines that may come from anybody."""
    parts = [f"<h2>{html.escape(name)}</h2><pre>{html.escape(_text(lines))}</pre>" for name, lines in sections]
    shown = html.escape(printable(title))
    return _PAGE % (shown, shown, "\n".join(parts))


def _text(lines: Sequence[str]) -> str:
    return "\n".join(map(printable, lines))


def scan_lines(data: Optional[bytes], digest: str) -> List[str]:
    """Return what a scan says about the bundle with this digest, the worst first. Errors as in ``trust.establish``."""
    if data is None:
        return [_NONE]
    message, signatures = plan_update.split(data)
    found = scan.read(message, "the scan")
    if found.digest != digest:
        return ["The scan beside it is of another bundle. " + _NONE]
    known = trust.establish(message, signatures, what="scan", namespace=sshsig.SCAN_NAMESPACE)
    lines = ["signed by " + (", ".join(known.signers or [key.fingerprint for key in known.keys]) or "NOBODY")]
    for one in found.scanners:
        dated = scan.day(one.database) if one.database else "an unknown date"
        lines.append(f"{one.name} {one.version} on {scan.day(one.made)}, with a database of {dated}")
    lines.append(f"open findings: {len(found.open(SEVERITIES[0]))} of {len(found.findings)}")
    for finding in sorted(found.findings, key=lambda one: (bool(one.status), -SEVERITIES.index(one.severity))):
        state = f"{finding.status}, says the maker: {finding.because}" if finding.status else "OPEN"
        lines.append(f"  {finding.severity}: {finding.line()}: {state}")
    return lines
