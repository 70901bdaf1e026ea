"""Pages are trees, so that no text can become an element or an attribute."""

import re

import pytest

from deployer.connected.ground import html_page, job_page
from deployer.connected.ground.html_page import element, facts, page, section, table
from tests.conftest import ROOT
from tests.pages import HOSTILE, Page


def test_a_page_is_whole_and_hostile_texts_stay_texts() -> None:
    picture = element("svg", element("text", HOSTILE), role="img", aria_label=HOSTILE, fill=HOSTILE)
    parts = table(HOSTILE, [HOSTILE, "b"], [[HOSTILE, element("code", HOSTILE)]]), facts("facts", [(HOSTILE, HOSTILE)])
    made = page(HOSTILE, section(HOSTILE, *parts, picture, HOSTILE))
    read = Page(made)
    assert read.text.count("<script>alert(1)</script>") == 12  # as text, in each place
    assert "\x1b" not in made
    assert "\\x1b]0;x\\x07" in read.text
    assert "\\u202e" in read.text
    assert read.tags.count("th") == 2 + 1 + 2 + 1


def test_texts_before_between_and_after_elements() -> None:
    made = page("t", section("s", element("p", "a", element("b", "c"), "d", element("i"), "e")))
    assert "<p>a<b>c</b>d<i></i>e</p>" in made


def test_sections_are_landmarks_that_the_contents_lead_to() -> None:
    read = Page(page("t", section("First", "a"), section("Second", element("h3", "more"), "b")))
    assert read.tags.count("section") == read.tags.count("a") == 2
    assert read.links == ["#part-1", "#part-2", "#part-1-title", "#part-2-title"]


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


SITE = (ROOT / "docs" / "theme" / "site.css").read_text()
#: Names of colours: of texts, of what is behind them, and of lines that are more than ornaments.
INK, PAPER, LINES = ("ink", "faint", "link", "bad", "code", "good"), ("paper", "pane"), ("edge", "faint", "link")


def palettes(style: str) -> list[dict[str, str]]:
    """Return the colours on a light and on a dark screen by their names."""
    light, dark = style.split("prefers-color-scheme: dark", 1)
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]


@pytest.mark.parametrize("style", [html_page._STYLE, SITE], ids=["pages", "documents"])
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
    on = {colours["on"] for colours in palettes(html_page._STYLE)}
    assert min(contrast(ink, paper) for ink in on for paper in job_page._COLOURS) >= 4.5
