"""Our pages in a real browser: the tree that it reads is the one that we wrote, and nothing of a hostile name runs."""

import re
import subprocess
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground.reports.job_page import make
from tests.integration.conftest import ROOT
from tests.pages import HOSTILE, Page
from tests.unit.connected.bundle.about.test_officer_page import write as bundle
from tests.unit.connected.ground.reports.test_html_page import hostile_job

pytestmark = pytest.mark.needs("chromium")


def seen(tmp_path: Path, text: str, *words: str) -> str:
    """Return what a browser without a network prints about a page."""
    (tmp_path / "page.html").write_text(text)
    return browse(tmp_path, f"file://{tmp_path}/page.html", *words)


def browse(tmp_path: Path, address: str, *words: str) -> str:
    """Return what a browser without a network prints about an address."""
    argv = [
        "unshare",
        "-rn",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/c",
    ]
    return subprocess.run([*argv, *words, address], capture_output=True, text=True, check=True, timeout=120).stdout


def job_page() -> str:
    ranks = [{"rank": rank, "host": "cn1", "cpus": str(rank)} for rank in range(4)]
    job = {"job": HOSTILE, "ranks": ranks, "payload": {"loss": [3, 2, 1]}, "seconds": 1}
    return make([job])


def officer_page(folder: Path) -> str:
    old, new = bundle(folder / "a.tar", b"1"), bundle(folder / "b.tar", b'x = "http://data.example/d"')
    assert main(["inspect", new, "--html", str(folder / "officer.html"), "--since", old]) == 0
    return (folder / "officer.html").read_text()


@pytest.mark.parametrize("name", ["job", "officer", "hostile"])
def test_a_browser_reads_what_was_written(tmp_path: Path, name: str) -> None:
    made = make([hostile_job()]) if name == "hostile" else job_page() if name == "job" else officer_page(tmp_path)
    read, written = Page("<!DOCTYPE html>\n" + seen(tmp_path, made, "--dump-dom").partition(">")[2]), Page(made)
    assert read.tags == written.tags
    assert read.text.split() == written.text.split()


@pytest.mark.slow
def test_it_can_be_printed(tmp_path: Path) -> None:
    assert printed(tmp_path, job_page()) == 2


def printed(folder: Path, text: str) -> int:
    """Return how many sheets of paper a page needs."""
    seen(folder, text, f"--print-to-pdf={folder}/page.pdf")
    return len(re.findall(rb"/Type\s*/Page\b", (folder / "page.pdf").read_bytes()))


def test_an_officer_prints_five_sheets_of_a_bare_debian(tmp_path: Path) -> None:
    """As many packages, executables and addresses as Debian 12 has without any other package."""
    licences = [{"license": {"name": f"{name}-{number}"}} for name in ("GPL", "LGPL", "BSD") for number in range(3)]
    packages = [
        {"name": f"package-{number}", "version": "1:2.38.1-5+deb12u3", "licenses": licences, "purl": "pkg:deb/debian/x"}
        for number in range(97)
    ]
    programs = [f"usr/bin/program-{number}" for number in range(500)]
    listed = "\n".join(f"/{name}" for name in programs).encode()
    files = [(f"etc/file-{number}", 0o644, b"") for number in range(73)]
    files += [(name, 0o755, b"#!/bin/sh\n# http://www%d.example.org/" % (at % 30)) for at, name in enumerate(programs)]
    path = bundle(tmp_path / "b.tar", b"1", [*files, ("var/lib/dpkg/info/x.list", 0o644, listed)], packages)
    assert main(["inspect", path, "--html", str(tmp_path / "officer.html")]) == 0
    assert printed(tmp_path, (tmp_path / "officer.html").read_text()) <= 5


@pytest.fixture(scope="module")
def documents() -> Path:
    built = subprocess.run([ROOT / "scripts" / "docs"], capture_output=True, text=True, check=True, timeout=300).stdout
    return Path(built.splitlines()[-1]).parent


@pytest.mark.slow
def test_the_documents_are_searched_in_a_folder(documents: Path, tmp_path: Path) -> None:
    words = ["--dump-dom", "--virtual-time-budget=3000"]
    found = browse(tmp_path, f"file://{documents}/search.html?q=saved+continued", *words)
    assert 'href="docs/exit-codes.html#' in found
    assert "<mark>saved</mark>" in found
    assert 'role="status">7 sections have all words:' in re.sub(r">\d+ ", ">7 ", found)
    nothing = browse(tmp_path, f"file://{documents}/search.html?q=<img+src=x+onerror=alert(1)>", *words)
    assert "No results found" in nothing
    assert "<img src=" not in nothing


@pytest.mark.slow
def test_the_documents_are_read_by_keyboard_and_screen_reader(documents: Path) -> None:
    titles = set()
    for path in documents.rglob("*.html"):
        text = path.read_text()
        for once in ("<h1", "<main ", '<a class="skip" href="#text"', 'id="text"', "<title>", 'role="search"'):
            assert text.count(once) == 1, (path, once)
        for nav in re.findall("<nav [^>]*>", text):
            assert "aria-label=" in nav
        assert not re.search(r"<th[^>]*></th>", text)
        assert text.count("<table>") == text.count('class="wide"')
        titles.add(re.findall("<title>(.*)</title>", text)[0])
    assert len(titles) == len([*documents.rglob("*.html")])


@pytest.mark.slow
def test_prompts_are_not_copied_with_commands(documents: Path) -> None:
    page = (documents / "docs" / "tutorials" / "laptop.html").read_text()
    assert '<span class="prompt">$ </span><span class="typed">scripts/lab up</span>' in page
    assert ".prompt { color: var(--faint); user-select: none; }" in (documents / "site.css").read_text()
