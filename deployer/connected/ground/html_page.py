"""Pages of HTML that are one file: no scripts, nothing remote, readable when printed and by a screen reader.

Texts come from images and jobs, so they are hostile. A page is built as a tree, whose serializer escapes texts and
attributes; the policy in the page forbids all content but its own style, if a browser should see any.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

from deployer.contract.text import printable
from deployer.system import files

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; }
body { max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { border-bottom: 1px solid #767676; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { border: 1px solid #949494; padding: .2rem .5rem; text-align: left; }
th, td { vertical-align: top; overflow-wrap: break-word; }
thead th { background: #ececec; }
code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #1a1a1a; }
.bad { font-weight: 700; color: #8f0000; }
nav a { color: #0b3d91; } nav ul { columns: 2; padding-left: 1.2rem; } :target { outline: 2px solid #0b3d91; }
@media print { body { max-width: none; font-size: 10pt; } tr, svg { break-inside: avoid; } }
@media print { thead { display: table-header-group; } nav { display: none; } h2, h3, caption { break-after: avoid; } }
"""


def element(tag: str, /, *children: "ET.Element[str] | str", **attributes: object) -> "ET.Element[str]":
    """Return an element. ``class_`` and ``for_`` are class and for; other underscores become hyphens."""
    made = ET.Element(tag, {key.rstrip("_").replace("_", "-"): _clean(str(value)) for key, value in attributes.items()})
    last: ET.Element[str] | None = None
    for child in children:
        if isinstance(child, str):
            text = _clean(child)
            if last is None:
                made.text = (made.text or "") + text
            else:
                last.tail = (last.tail or "") + text
        else:
            made.append(child)
            last = child
    return made


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence["ET.Element[str] | str"]]) -> "ET.Element[str]":
    """Return a table with a caption; the first cell of each row is its heading."""
    body = element("tbody")
    for first, *cells in rows:
        body.append(element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells)))
    heads = element("tr", *(element("th", name, scope="col") for name in head))
    return element("table", element("caption", caption), element("thead", heads), body)


def facts(caption: str, pairs: Iterable[tuple[str, "ET.Element[str] | str"]]) -> "ET.Element[str]":
    """Return a table of two columns."""
    return table(caption, ("fact", "value"), pairs)


def section(title: str, *children: "ET.Element[str] | str") -> "ET.Element[str]":
    """Return a part of the page with its heading."""
    return element("section", element("h2", title), *children)


def page(title: str, *sections: "ET.Element[str]") -> str:
    """Return a whole page: its heading, a list of its sections, and the sections, each a landmark."""
    contents = element("ul", *(_linked(number, each) for number, each in enumerate(sections, 1)))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
    )
    style = ET.SubElement(head, "style")
    style.text = _STYLE  # ours alone: browsers read no escapes in it
    top = element("header", element("h1", title), element("nav", contents, aria_label="Sections"))
    root = element("html", head, element("body", top, element("main", *sections)), lang="en")
    return "<!DOCTYPE html>\n" + ET.tostring(root, "unicode", "html") + "\n"


def _linked(number: int, part: "ET.Element[str]") -> "ET.Element[str]":
    """Name a section by its heading, and return its entry in the list."""
    name = f"part-{number}"
    part.set("id", name)
    part.set("aria-labelledby", f"{name}-title")
    part[0].set("id", f"{name}-title")
    return element("li", element("a", "".join(part[0].itertext()), href=f"#{name}"))


def write(path: Path, text: str) -> None:
    """Write a page whole or not at all."""
    files.write_text(str(path), text)


def _clean(text: str) -> str:
    """Return a text without control characters, which HTML does not allow; line ends stay."""
    return "\n".join(map(printable, text.split("\n")))
