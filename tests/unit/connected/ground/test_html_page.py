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


INK = re.findall(r"(?<!-)color: (#\w+)", html_page._STYLE)
PAPER = ["#fff", *re.findall(r"background: (#\w+)", html_page._STYLE), *job_page._COLOURS]


@pytest.mark.parametrize("paper", PAPER)
def test_texts_have_the_contrast_of_wcag_aa(paper: str) -> None:
    assert len(INK) >= 3
    assert contrast("#000", "#fff") == pytest.approx(21)
    assert min(contrast(ink, paper) for ink in INK) >= 4.5


def test_lines_have_the_contrast_of_wcag_aa() -> None:
    borders = re.findall(r"solid (#\w+)", html_page._STYLE)
    assert min(contrast(line, "#fff") for line in [*borders, "#5a5a5a", "#0b5394"]) >= 3


def test_the_documents_have_the_contrast_of_wcag_aa() -> None:
    style = (ROOT / "docs" / "site.css").read_text()
    bar, menu, page_, pale = "#1f6391", "#343131", "#fcfcfc", "#7fc4ef"
    ink = set(re.findall(r"(?<!-)color: (#\w+)", style)) - {pale}
    assert len(ink) >= 4
    assert min(contrast(each, page_) for each in ink) >= 4.5
    assert f"background-color: {bar}" in style
    assert min(contrast(page_, bar), contrast(pale, menu)) >= 4.5
