"""The recording in README: its picture is the one of the recorded session."""

import xml.etree.ElementTree as ET

from tests.lab.record import PICTURES, Line, cast, picture, read

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_shows_the_recorded_session() -> None:
    recorded = (PICTURES / "session.cast").read_text()
    lines = read(recorded)
    assert cast(lines) == recorded
    assert (PICTURES / "session.svg").read_text() == picture(lines)
    assert any("COMPLETED, exit 0" in line.text for line in lines)
    assert any(line.text.startswith("proof: 2 of 2 ranks used the site's") for line in lines)
    assert not any("warning" in line.text for line in lines)


def shown(text: str) -> list[str]:
    """Return the rows of a picture of one line, and the styles in it."""
    tree = ET.fromstring(picture([Line(0, text)]))
    rows = ["".join(each.itertext()) for each in tree.iter(f"{SVG}text")][1:]
    return rows + [each.attrib["class"] for each in tree.iter(f"{SVG}tspan")]


def test_what_a_program_prints_is_text() -> None:
    hostile = '<script>alert(1)</script> & "x"'
    assert shown(hostile) == [hostile]


def test_colours_of_the_program_are_styles_and_have_no_width() -> None:
    assert shown("pack     \x1b[32mdone\x1b[0m: " + 60 * "x") == ["pack     done: " + 60 * "x", "green"]


def test_long_lines_are_broken_between_words() -> None:
    for long, indent in ((45, 29), (61, 4)):
        assert shown("push     done         1.0 s  sent to " + long * "x") == [
            "push     done         1.0 s  sent to",
            indent * " " + long * "x",
        ]
    assert shown("$ " + "word " * 30)[0].endswith("word")
