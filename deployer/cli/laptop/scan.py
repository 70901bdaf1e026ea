"""deployer scan: record what vulnerability scanners find in a bundle."""

import argparse
import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.site import common
from deployer.connected.bundle.about import scan, scan_reports
from deployer.connected.ground import user_settings
from deployer.contract.base import records
from deployer.contract.base.errors import Refused
from deployer.contract.bundle.scan import SEVERITIES, SUFFIX, day
from deployer.system import terminal

_SHOWN = 20


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command, names = common.add_command(subparsers, "scan", run), scan_reports.names()
    common.add(command, "bundle", "B.tar", "a bundle that `pack` wrote")
    text = f"take this report instead of running scanners: JSON of {', '.join(names)}, SARIF or CycloneDX; repeatable"
    common.repeated(command, "--report", "FILE", text, type=Path)
    text = "run this scanner (default: those that are installed); repeatable"
    common.repeated(command, "--scanner", "NAME", text, choices=names)
    text = "your statements about findings, such as not_affected: OpenVEX or CycloneDX; repeatable"
    common.repeated(command, "--vex", "FILE", text, type=Path)
    common.add(command, "--date", "DAY", "when a report was made that does not state it: YYYY-MM-DD", type=_seconds)
    text = "sign it with this private key, or an agent's .pub (default: that of the settings)"
    common.add(command, "--key", "KEY", text, type=Path)
    command.epilog = "The result is B.tar.scan.json; `push` sends it. The exit code is 3 if a critical finding is open."


def _seconds(text: str) -> int:
    return int(dt.datetime.fromisoformat(f"{text}T00:00:00+00:00").timestamp())


def run(args: argparse.Namespace) -> None:
    """Scan a bundle, and show the open findings. Raises Refused if one of them is critical."""
    key = user_settings.path("key", args.key)
    found, signer = scan.make(args.bundle, args.report, args.scanner, args.vex, args.date, key)
    path, findings = args.bundle + SUFFIX, found.open(SEVERITIES[0])
    counts = Counter(one.severity for one in findings)
    own = {"scan": path, "key": signer.fingerprint if signer else None, "open": counts}
    if not common.as_json(args, {**own, **records.plain(found)}):
        terminal.show(*(f"{one.severity}: {one.line()}" for one in findings[:_SHOWN]))
        for one in found.scanners:
            known = f"of {day(one.database)}" if one.database else "of an unknown date"
            terminal.show(f"{one.name} {one.version} on {day(one.made)}, with a database {known}")
        several = ", ".join(f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity])
        closed = len(found.findings) - len(findings)
        terminal.show(f"open findings: {several or 'none'}; closed by statements: {closed}")
        terminal.show(f"{f'signed by {signer.fingerprint}' if signer else 'not signed'}: {path}")
    if counts[SEVERITIES[-1]]:
        hint = "pack it with fixed packages, or state why a finding does not matter, with --vex"
        raise Refused(f"{path} has open critical findings: {counts[SEVERITIES[-1]]}", hint)
    common.suggest(args, "push", args.bundle, settings.site_for_hint())
