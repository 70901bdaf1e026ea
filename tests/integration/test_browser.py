"""Our pages in a real browser: the tree that it reads is the one that we wrote, and nothing of a hostile name runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from deployer.connected.ground.html_page import element, page, section, table
from deployer.connected.ground.job_page import PicturedJob, TimedStep, make
from tests.integration.conftest import ROOT
from tests.pages import HOSTILE, Page

BROWSER = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed: apt-get install chromium"),
]


def seen(tmp_path: Path, text: str, *words: str) -> str:
    """Return what a browser without a network prints about a page."""
    (tmp_path / "page.html").write_text(text)
    return browse(tmp_path, f"file://{tmp_path}/page.html", *words)


def browse(tmp_path: Path, address: str, *words: str) -> str:
    """Return what a browser without a network prints about an address."""
    argv = [
        "unshare",
        "-rn",
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/c",
    ]
    return subprocess.run([*argv, *words, address], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("name", ["job", "hostile"])
def test_a_browser_reads_what_was_written(tmp_path: Path, name: str) -> None:
    ranks = [{"rank": rank, "host": "cn1", "cpus": str(rank)} for rank in range(4)]
    job = {"job": HOSTILE, "ranks": ranks, "payload": {"loss": [3, 2, 1]}}
    made = {
        "job": make([PicturedJob(job, [TimedStep("payload", 0, 1)])]),
        "hostile": page(HOSTILE, section(HOSTILE, table(HOSTILE, ["a"], [[element("code", HOSTILE)]]))),
    }[name]
    read, written = Page("<!DOCTYPE html>\n" + seen(tmp_path, made, "--dump-dom").partition(">")[2]), Page(made)
    assert read.tags == written.tags
    assert read.text.split() == written.text.split()


def test_it_can_be_printed(tmp_path: Path) -> None:
    made = make([PicturedJob({"job": "x", "ranks": [{"rank": 0, "host": "cn1", "cpus": "0"}]}, [])])
    seen(tmp_path, made, f"--print-to-pdf={tmp_path}/page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF-")


def test_the_documents_are_searched_in_a_folder(tmp_path: Path) -> None:
    built = subprocess.run([ROOT / "scripts" / "docs"], capture_output=True, text=True, check=True, timeout=120).stdout
    site = Path(built.splitlines()[-1]).parent
    words = ["--dump-dom", "--virtual-time-budget=3000"]
    found = browse(tmp_path, f"file://{site}/search.html?q=saved+continued", *words)
    assert 'href="docs/exit-codes.html' in found
    nothing = browse(tmp_path, f"file://{site}/search.html?q=<img+src=x+onerror=alert(1)>", *words)
    assert "No results found" in nothing
    assert "<img src=" not in nothing
