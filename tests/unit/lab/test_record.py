"""The recording in README: its picture is the one of the recorded session."""

import xml.etree.ElementTree as ET

from tests.lab.record import PICTURES, Line, cast, picture, read


def test_the_picture_shows_the_recorded_session() -> None:
    recorded = (PICTURES / "session.cast").read_text()
    lines = read(recorded)
    assert cast(lines) == recorded
    assert (PICTURES / "session.svg").read_text() == picture(lines)
    assert any("COMPLETED, exit 0" in line.text for line in lines)


def test_what_a_program_prints_is_text() -> None:
    hostile = '<script>alert(1)</script> & "x"'
    tree = ET.fromstring(picture([Line(0, hostile)]))
    assert [each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")] == [hostile]
