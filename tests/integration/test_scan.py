"""scan with the real cve-bin-tool, and a database made here: a real entry, and an invented one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.connected.bundle.about import sbom
from deployer.connected.bundle.about.packages import DEB, PYPI, Package, PackageInventory, System
from tests import bundles
from tests.integration.conftest import Cli

pytestmark = pytest.mark.slow

PACKAGES = (
    Package(DEB, "inventedlib", "1.0-1", "/var/lib/dpkg/status", "amd64"),
    Package(PYPI, "setuptools", "65.0.0", "/usr/lib/python3/setuptools-65.0.0.dist-info/METADATA"),
)
#: CVE-2022-40897 is real. The other name is beyond any that was given.
ENTRIES = (
    ("CVE-2022-40897", "MEDIUM", 5.9, "python", "setuptools", "65.5.1"),
    ("CVE-2026-9999999", "CRITICAL", 9.9, "invented", "inventedlib", "2.0"),
)
DATABASE = """
import json, sqlite3, sys
from cve_bin_tool.cvedb import CVEDB
database = sqlite3.connect(sys.argv[1])
for table in CVEDB.TABLE_SCHEMAS.values():
    database.execute(table)
for name, severity, score, vendor, product, before in json.loads(sys.argv[2]):
    row = (name, severity, "", score, 3, "", "NVD", "2026-11-01")
    database.execute(CVEDB.INSERT_QUERIES["insert_severity"], row)
    row = (name, vendor, product, "*", "", "", "", before, "NVD")
    database.execute(CVEDB.INSERT_QUERIES["insert_cve_range"], row)
database.commit()
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of an environment with cve-bin-tool."""
    folder = tmp_path_factory.mktemp("cve-bin-tool")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "cve-bin-tool==3.4"], check=True, timeout=900)
    return folder / "bin"


@pytest.mark.timeout(1200)
def test_cve_bin_tool_finds_what_its_database_has(tmp_path: Path, tool: Path, environment: dict[str, str]) -> None:
    cache = tmp_path / ".cache" / "cve-bin-tool"
    cache.mkdir(parents=True)
    subprocess.run([tool / "python", "-c", DATABASE, cache / "cve.db", json.dumps(ENTRIES)], check=True)
    os.utime(cache / "cve.db", (1795168800, 1795168800))
    pieces = sbom.make("tiny", "1.0", PackageInventory(System("debian", "12"), PACKAGES), [], [])
    bundle = bundles.write(tmp_path / "b.tar", None, [("deployer/sbom.cdx.json", b"".join(pieces))])
    cli = Cli({**environment, "HOME": str(tmp_path), "PATH": f"{tool}:{environment['PATH']}", "TZ": "UTC"})
    record = json.loads(cli("scan", bundle, "--scanner", "cve-bin-tool", "--json", code=3).stdout)
    (scanner,) = record["scanners"]
    assert (scanner["name"], scanner["version"], scanner["database"]) == ("cve-bin-tool", "3.4", 1795168800)
    found = {one["id"]: (one["severity"], one["package"], one["version"], one["purl"]) for one in record["findings"]}
    assert found == {
        "CVE-2022-40897": ("medium", "setuptools", "65.0.0", "pkg:pypi/setuptools@65.0.0"),
        "CVE-2026-9999999": (
            "critical", "inventedlib", "1.0-1", "pkg:deb/debian/inventedlib@1.0-1?arch=amd64&distro=debian-12",
        ),
    }  # fmt: skip
    vex = {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "timestamp": "2026-11-20T10:00:00Z",
        "statements": [
            {
                "vulnerability": {"name": "CVE-2026-9999999"},
                "products": [{"@id": "tiny:1.0", "subcomponents": [{"@id": "pkg:deb/debian/inventedlib"}]}],
                "status": "not_affected",
                "justification": "component_not_present",
            }
        ],
    }
    (tmp_path / "vex.json").write_text(json.dumps(vex))
    said = cli("scan", bundle, "--scanner", "cve-bin-tool", "--vex", tmp_path / "vex.json").stdout
    assert "open findings: 1 medium; closed by statements: 1\n" in said
