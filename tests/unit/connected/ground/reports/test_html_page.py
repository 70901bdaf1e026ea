"""Templates escape: no text can become an element or an attribute."""

import re
from typing import Any

import pytest

from deployer.connected.ground.reports import html_page, job_page
from tests.conftest import ROOT
from tests.pages import HOSTILE, Page


def hostile_job() -> dict[str, Any]:
    """Return a job in which every text is hostile."""
    finding = dict.fromkeys(("code", "severity", "subject", "message", "remedy"), HOSTILE)
    rank = dict.fromkeys(("rank", "host", "threads", "mpi_library", "provider", "exit_code"), HOSTILE)
    record = dict.fromkeys(("job", "bundle", "version", "site", "runtime", "exit_code"), HOSTILE)
    times = {"seconds": 1, "steps": [{"name": HOSTILE, "seconds": 1}]}
    made = {"findings": [finding], "ranks": [{**rank, "cpus": "0"}], "payload": {HOSTILE: [1, 2]}}
    return {**record, **times, **made}


def test_a_page_is_whole_and_hostile_texts_stay_texts() -> None:
    made = job_page.make([hostile_job()])
    read = Page(made)
    assert read.text.count("<script>alert(1)</script>") >= 24  # as text, in each place
    assert sum("<script>" in label for label in read.labels) == 3
    assert "\x1b" not in made
    assert "\\x1b]0;x\\x07" in read.text
    assert "\\u202e" in read.text


def test_no_template_lets_a_text_through() -> None:
    for template in html_page.FOLDER.glob("*.html"):
        assert not re.search(r"\|\s*safe|autoescape|Markup", template.read_text())
    uses = [path for path in (ROOT / "deployer").rglob("*.py") if "Markup(" in path.read_text()]
    assert uses == []


@pytest.mark.thorough
def test_sections_are_landmarks_that_the_contents_lead_to() -> None:
    read = Page(job_page.make([{"job": name} for name in ("a", "b")]))
    assert read.tags.count("section") == read.tags.count("a") == 10
    assert read.links[:2] == ["#part-1", "#part-2"]
    assert "Findings of b" in read.text


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour as WCAG 2 defines it."""
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


STYLE = (html_page.FOLDER / "style.css").read_text()
SITE = (ROOT / "docs" / "theme" / "site.css").read_text()
#: Names of colours: of texts, of what is behind them, and of lines that are more than ornaments.
INK, PAPER, LINES = ("ink", "faint", "link", "bad", "code", "good"), ("paper", "pane"), ("edge", "faint", "link")


def palettes(style: str) -> list[dict[str, str]]:
    """Return the colours on a light and on a dark screen by their names."""
    light, dark = style.split("prefers-color-scheme: dark", 1)
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]


@pytest.mark.parametrize("style", [STYLE, SITE], ids=["pages", "documents"])
def test_texts_and_lines_have_the_contrast_of_wcag_aa(style: str) -> None:
    assert contrast("#000", "#fff") == pytest.approx(21)
    for colours in palettes(style):
        texts = [colours[name] for name in INK if name in colours]
        papers = [colours[name] for name in PAPER]
        assert len(texts) >= 4
        assert min(contrast(text, paper) for text in texts for paper in papers) >= 4.5
        assert min(contrast(colours[name], papers[0]) for name in LINES if name in colours) >= 3
        for on, under in (("on-bar", "bar"), ("ink", "mark")):
            assert under not in colours or contrast(colours[on], colours[under]) >= 4.5
    named = set(re.findall(r"var\(--([\w-]+)\)", style))
    assert all(named == set(colours) for colours in palettes(style))
    assert not re.findall(r"color: #", re.sub(r":root \{.*?\}", "", style, flags=re.DOTALL))


def test_numbers_in_squares_have_the_contrast_of_wcag_aa() -> None:
    on = {colours["on"] for colours in palettes(STYLE)}
    assert min(contrast(ink, paper) for ink in on for paper in job_page._COLOURS) >= 4.5
