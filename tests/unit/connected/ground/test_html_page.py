"""Pages are trees, so that no text can become an element or an attribute."""

from deployer.connected.ground.html_page import element, facts, page, section, table
from tests.pages import HOSTILE, Page


def test_a_page_is_whole_and_hostile_texts_stay_texts() -> None:
    picture = element("svg", element("text", HOSTILE), role="img", aria_label=HOSTILE, fill=HOSTILE)
    parts = table(HOSTILE, [HOSTILE, "b"], [[HOSTILE, element("code", HOSTILE)]]), facts("facts", [(HOSTILE, HOSTILE)])
    made = page(HOSTILE, section(HOSTILE, *parts, picture, HOSTILE))
    read = Page(made)
    assert read.text.count("<script>alert(1)</script>") == 11  # as text, in each place
    assert "\x1b" not in made
    assert "\\x1b]0;x\\x07" in read.text
    assert "\\u202e" in read.text
    assert read.tags.count("th") == 2 + 1 + 2 + 1


def test_texts_before_between_and_after_elements() -> None:
    made = page("t", element("p", "a", element("b", "c"), "d", element("i"), "e"))
    assert "<p>a<b>c</b>d<i></i>e</p>" in made
