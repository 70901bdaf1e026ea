#!/usr/bin/env python3
"""Add the row of a report of `doctor --report` to the table of real sites: scripts/site_row.py FILE.

The file comes from outside: only plain characters of its texts reach the table.
"""

import datetime as dt
import json
import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/evidence/sites.md"
#: What the document says while the table has no row.
NONE = "No report has arrived yet: the table is empty.\n\n"


def main() -> None:
    """Add a row."""
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/site_row.py FILE")
    try:
        text = "\n" + Path(sys.argv[1]).read_text()
        report = json.loads("{" + text.partition("\n{")[2])
        new = row(report)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        sys.exit(f"deployer: error: {sys.argv[1]} is not a report of `doctor --report`: {error}")
    document = DOCUMENT.read_text()
    DOCUMENT.write_text(document.replace(NONE, "").rstrip("\n") + f"\n{new}\n")
    print(new)


def row(report: dict) -> str:  # type: ignore[type-arg]
    """Return the row of a report."""
    if report["schema"] != "deployer.problem-report":
        raise ValueError(f"its schema is {report['schema']!r}")
    software, plan, rungs = report["versions"], report["plan"] or {}, report["doctor"]
    broken = [rung["name"] for rung in rungs if rung["state"] == "broken"]
    ran = sum(rung["state"] == "ok" for rung in rungs)
    proofs = [proof for proof in [*report["proofs"], (report["last_job"] or {}).get("proof")] if proof]
    cells = [
        dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        *(software[name] for name in ("deployer", "system", "batch", "runtimes", "mpi")),
        (plan.get("check") or {}).get("verdict") or "none",
        f"broken: {broken[0]}" if broken else f"{ran} of {len(rungs)} ok",
        proofs[-1] if proofs else "none",
    ]
    return "| " + " | ".join(re.sub(r"[^\w .,:+/-]", "?", str(cell))[:100].strip() for cell in cells) + " |"


if __name__ == "__main__":
    main()
