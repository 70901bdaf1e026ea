"""The page of a bundle for a security officer."""

import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.contract.base import json_records
from deployer.contract.base.tarformat import FILE, TarEntry
from deployer.contract.base.text import printable
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.scan import Scan, Scanner, Vulnerability
from deployer.contract.rules.verdict import judged
from deployer.system.trust import policy
from deployer.system.trust.verify import opened, read_seal
from tests import bundles, running
from tests.bundles import END, ENTRIES, stream
from tests.pages import HOSTILE, Page
from tests.planted import word
from tests.signing import TestKey, signed

FETCH = b"#!/bin/sh\ncurl https://models.example/<b>w.bin\n"
SBOM = {
    "components": [
        {"name": "python", "type": "library", "version": "3.11.2", "purl": "pkg:generic/python@3.11.2"},
        {
            "name": "tar",
            "type": "library",
            "version": "1.34",
            "purl": "pkg:deb/debian/tar@1.34",
            "licenses": [{"license": {"id": "GPL-3.0"}}],
        },
        {"name": "python", "type": "library", "version": "3.6.15", "purl": "pkg:generic/python@3.6.15"},
        {
            "name": HOSTILE,
            "type": "library",
            "version": HOSTILE,
            "purl": "pkg:pypi/x@1",
            "licenses": [{"expression": HOSTILE}],
        },
    ]
}


PACKAGED = b"#!/bin/sh\n# see <https://www.gnu.org/licenses/>\ncurl https://mirror.example/debian.\n"
PYTHON = "lib/python3.11/site-packages/"
#: Files of the image besides ENTRIES: path, mode, content.
FILES = (
    ("bin/fetch", 0o755, FETCH),
    (f"{PYTHON}__pycache__/x.cpython-311.pyc", 0o644, b""),
    (
        f"{PYTHON}x-1.dist-info/RECORD",
        0o644,
        b'x.py,sha256=a,1\n../bin/x,,\nx-1.dist-info/RECORD,,\n"a,b.py",,\n',
    ),
    (f"{PYTHON}x.py", 0o644, b""),
    (f"{PYTHON}y.py", 0o644, b""),
    ("lib/python3.11/bin/x", 0o755, b""),
    ("opt/model.bin", 0o644, b""),
    ("usr/bin/packaged", 0o755, PACKAGED),
    ("var/lib/dpkg/info/curl.list", 0o644, b"/.\n/bin/packaged\n"),
    ("var/lib/dpkg/info/curl.postinst", 0o755, PACKAGED),
    ("var/lib/dpkg/info/other.postinst", 0o755, b""),
)


def write(
    path: Path,
    app: bytes,
    files: Sequence[tuple[str, int, bytes]] = FILES,
    components: Sequence[object] = SBOM["components"],
) -> str:
    more = [(TarEntry(FILE, name.encode(), mode, len(content)), content) for name, mode, content in files]
    entries = [*ENTRIES[:3], *more[:1], *ENTRIES[3:], *more[1:]]
    extra = [("deployer/app/t.py", app), ("deployer/sbom.cdx.json", json.dumps({"components": components}).encode())]
    job = Job("train", ["python3", HOSTILE], 1, 4, 1, "00:10:00")
    pieces = [("files", stream(entries)), ("links", END)]
    return str(bundles.write(path, pieces, extra, jobs=[job]))


@pytest.mark.thorough
def test_the_page_shows_what_an_officer_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "a.tar", b"1"), write(tmp_path / "b.tar", b'x = "http://data.example/d"')
    page = tmp_path / "page.html"
    assert main(["inspect", new, "--html", str(page), "--since", old]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    read = Page(page.read_text())
    assert "<p></p>" not in page.read_text()
    for text in (
        "nobody: compare the digest",
        "/bin/fetch",
        "https://models.example/",
        "http://data.example/d",
        "GPL-3.0",
        "not stated",
        "Files changed: 1",
        "1 node, 4 ranks per node",
        "executable files of the image: 6.",
        "mirror.example2/usr/bin/packaged, /var/lib/dpkg/info/curl.postinst",
        "Addresses of known licences were left out: 2.",
        "No package differs.",
        "deployer/app/t.py",
        "no verdict of check",
        "<script>alert(1)</script>",
    ):
        assert text in read.text.replace("\n", ""), text
    assert "https://www.gnu.org" not in read.text
    assert re.findall("<li><code>(.*?)</code></li>", page.read_text())[:6] == [
        "/bin/fetch",
        "/bin/tool",
        "/var/lib/dpkg/info/other.postinst",
        "/etc/odd\\xff\\nname",
        f"/{PYTHON}y.py",
        "/opt/model.bin",
    ]


def test_the_page_lists_secrets_and_the_places_of_modules(tmp_path: Path) -> None:
    token, page = f"TOKEN=hf_{word(34)}".encode(), tmp_path / "page.html"
    files = [
        (name, mode, token if name in ("opt/model.bin", "usr/bin/packaged") else data) for name, mode, data in FILES
    ]
    module = {"name": "m", "version": "1", "type": "library", "purl": "pkg:golang/a/m@1"}
    places = {"evidence": {"occurrences": [{"location": "/bin/mine"}]}}
    path = write(tmp_path / "a.tar", token, files, [{**module, **places}])
    assert main(["inspect", path, "--html", str(page)]) == 0
    text = Page(page.read_text()).text.replace("\n", "")
    assert "Secrets: 2" in text
    assert "/opt/model.bin1a Hugging Face token" in text
    assert "deployer/app/t.py1a Hugging Face token" in text
    assert "m1not stated/bin/mine" in text
    assert token.decode() not in text


@pytest.mark.thorough
def test_the_page_lists_pickles_of_the_app_and_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    definition = tmp_path / "d"
    (definition / "set").mkdir(parents=True)
    (definition / "set/weights").write_bytes(pickle.dumps({HOSTILE: 1}))
    (definition / "set/<b>.pkl").write_bytes(b"(dp0\n.")
    (definition / "set/model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{}")
    (definition / "set/empty.bin").touch()
    (definition / "bundle.yaml").write_text("name: set\nversion: '1'\ndata: {set: {folder: set}}\n")
    bundle, page = str(tmp_path / "d.tar"), tmp_path / "page.html"
    assert main(["pack", str(definition), "-o", bundle]) == 0
    assert main(["inspect", bundle, "--html", str(page)]) == 0
    text = Page(page.read_text()).text
    assert "run code when they are loaded: 2" in text
    listed = text.partition("hold only numbers.")[2].partition("Addresses")[0]
    assert "".join(listed.split()) == "deployer/data/set/<b>.pkldeployer/data/set/weights"


@pytest.mark.thorough
def test_a_bundle_of_data_has_no_image_and_its_data_were_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = tmp_path / "d"
    (definition / "set").mkdir(parents=True)
    (definition / "set" / "fetch.sh").write_bytes(FETCH)
    (definition / "bundle.yaml").write_text("name: set\nversion: '1'\ndata: {set: {folder: set}}\n")
    bundle, page = str(tmp_path / "d.tar"), tmp_path / "page.html"
    assert main(["pack", str(definition), "-o", bundle]) == 0
    assert main(["inspect", bundle, "--html", str(page)]) == 0
    read = Page(page.read_text())
    assert "none: the bundle has only data" in read.text
    assert "image digest" not in read.text
    assert f"The data folders were not searched: 1 file, {len(FETCH)} bytes." in read.text
    assert (
        "Executable files: 0Other files: 0Files of the app and the data that run code when they are loaded: 0"
        in "".join(read.text.split("\n"))
    )
    capsys.readouterr()
    for words in (["pack", str(definition), "-o", str(tmp_path)], ["inspect", bundle, "--html", str(tmp_path)]):
        assert main(words) == 2
        assert f"cannot write {tmp_path}: it is a folder" in capsys.readouterr().err
    assert main(["inspect", bundle]) == 0
    assert f"data set: 1 file, {len(FETCH)} B" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("known", [True, False])
def test_a_signature_names_a_person_only_if_a_policy_does(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page, key = tmp_path / "a.tar", tmp_path / "page.html", TestKey()
    path.write_bytes(signed(bundles.build(), key))
    rules = {"allowed_signers": "allowed_signers"} if known else {}
    (tmp_path / "allowed_signers").write_text(key.allowed("stager@lab"))
    (tmp_path / "policy.json").write_bytes(
        json_records.dumps({"schema": "deployer.policy", "format": 1, "min_reader": 1, **rules})
    )
    monkeypatch.setattr(policy, "SYSTEM_FILE", str(tmp_path / "policy.json"))
    assert main(["inspect", str(path), "--html", str(page)]) == 0
    read = Page(page.read_text())
    assert key.key.fingerprint in read.text
    assert "A fingerprint does not name a person" in read.text
    assert ("stager@lab" in read.text) is known
    assert ('<span class="bad">unknown: no policy' in page.read_text()) is not known
    assert "The bundle defines no job." in read.text
    assert "No script of a package names an address." in read.text


@pytest.mark.thorough
def test_a_verdict_of_another_deployer_is_marked(tmp_path: Path) -> None:
    plan = running.PLAN._replace(checked=judged([])._replace(deployer="0.0.1"))
    carried = [("deployer/plans/lab.json", json_records.dumps(plan.record()))]
    path, page = tmp_path / "a.tar", tmp_path / "page.html"
    path.write_bytes(bundles.build(extra=carried))
    assert main(["inspect", str(path), "--html", str(page)]) == 0
    assert "RUN (by deployer 0.0.1; this is " in Page(page.read_text()).text


@pytest.mark.thorough
def test_the_scan_comes_first_and_shows_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, page, key = str(tmp_path / "b.tar"), str(tmp_path / "a.tar"), tmp_path / "page.html", TestKey()
    write(Path(old), b"1")
    more = {"name": "curl", "version": "8", "type": "library", "purl": "pkg:apk/alpine/curl@8"}
    write(Path(new), b"1", components=[*SBOM["components"], more])
    words = ["inspect", new, "--html", str(page), "--since", old]
    assert main(words) == 0
    text = Page(page.read_text()).text.replace("\n", "")
    assert "Nobody recorded a scan" in text
    assert "Packages that are new since a.tar: 1PackagespackagekindbeforenowcurlapkabsentA8".replace("A8", "8") in text
    findings = [
        Vulnerability("CVE-1", "critical", printable(HOSTILE), "1"),
        Vulnerability("CVE-2", "high", "tar", "1.34", fixed="1.35"),
        Vulnerability("CVE-3", "low", "tar", "1.34", status="not_affected", because=printable(HOSTILE)),
    ]
    for path, known in ((new, findings), (old, [findings[1]._replace(version="1.33")])):
        with opened(path) as stream:
            digest = read_seal(stream, path).digest
        message = Scan(digest, "tiny:1.0", [Scanner("grype", "1", 1795168800, 1794996000)], known).text().encode()
        signature = sshsig.armored(key.sign(message, sshsig.SCAN_NAMESPACE))
        Path(f"{path}.scan.json").write_bytes(message + signature.encode())
    assert main(words) == 0
    text = Page(page.read_text()).text.replace("\n", "")
    for said in (
        "Known vulnerabilities, secrets, and what is newWhat it is",
        "grype 1on 2026-11-20, with a database of 2026-11-18",
        f"signed by{key.key.fingerprint}",
        "open findings2",
        "closed by the maker's statements1",
        "open findings that are new since a.tar1",
        "CVE-2hightar 1.341.35open",
        "CVE-3lowtar 1.34not knownnot_affected: ",
        "new since a.tar",
    ):
        assert said in text, said
    Path(f"{old}.scan.json").unlink()
    assert main(words) == 0
    assert "unknown: a.tar has no scan" in Page(page.read_text()).text


def test_a_damaged_bundle_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write(tmp_path / "a.tar", b"1"))
    bundles.flip(path, 600)
    assert main(["inspect", str(path), "--html", str(tmp_path / "page.html")]) == 4
    assert not (tmp_path / "page.html").exists()
    assert main(["inspect", str(path), "--since", "b.tar"]) == 2
