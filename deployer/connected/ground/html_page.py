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
#: Colours have the contrast of WCAG AA, on a light and on a dark screen; print is light.
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --pane: #f3f6f9; --line: #d3dae2; --ink: #1b2430; }
:root { --faint: #4f5b69; --link: #0f5c9c; --bad: #a3180c; --edge: #6b7784; --on: #1b2430; }
@media screen and (prefers-color-scheme: dark) {
:root { --paper: #12171e; --pane: #1b222c; --line: #38434f; --ink: #e3e8ee; }
:root { --faint: #a9b4c0; --link: #84bdf2; --bad: #ff9d96; --edge: #8794a1; --on: #1b2430; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere; } h1 { font-size: 1.7rem; margin: 0 0 .75rem; }
h2 { font-size: 1.3rem; border-bottom: 2px solid var(--line); padding-bottom: .25rem; margin: 2.5rem 0 1rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p { max-width: 48rem; } .lead { font-size: 1.1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .4rem; list-style: none; margin: 0; padding: 0; }
nav a { display: block; padding: .2rem .7rem; border: 1px solid var(--line); border-radius: 1rem; }
nav a { background: var(--pane); color: var(--link); text-decoration: none; }
nav a:hover { text-decoration: underline; } :focus-visible, :target { outline: 3px solid var(--link); }
.wide { overflow-x: auto; margin: .5rem 0 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .75rem .35rem .25rem; text-align: left; }
th, td { vertical-align: top; overflow-wrap: break-word; min-width: 3.5rem; }
tbody th { font-weight: 500; } thead th { border-bottom: 2px solid var(--edge); }
.facts tbody th { width: min(12rem, 30%); color: var(--faint); } .facts td { overflow-wrap: anywhere; }
code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .9em; overflow-wrap: anywhere; }
.many { columns: 22rem; padding-left: 1.2rem; max-height: 22rem; overflow: auto; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; margin: 0 0 1.5rem; }
figure { margin: 0; } figcaption { font-size: .85rem; font-weight: 600; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .name { font-weight: 600; } svg .faint { fill: var(--faint); } svg .on { fill: var(--on); }
svg .edge { stroke: var(--edge); } svg .grid { stroke: var(--line); } svg .empty { fill: none; }
svg .curve { fill: none; stroke: var(--link); stroke-width: 2; } svg .bar { fill: var(--link); }
.bad { font-weight: 700; color: var(--bad); }
@media print { html, body { font-size: 10pt; } body { max-width: none; padding: 0; } tr, svg { break-inside: avoid; } }
@media print { thead { display: table-header-group; } nav { display: none; } h2, h3, caption { break-after: avoid; } }
@media print { .wide, .many { overflow: visible; max-height: none; } rect, polyline { print-color-adjust: exact; } }
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


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence["ET.Element[str] | str"]], kind: str = "wide"
) -> "ET.Element[str]":
    """Return a table with a caption, which scrolls if it is too wide; the first cell of each row is its heading."""
    body = element("tbody")
    for first, *cells in rows:
        body.append(element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells)))
    heads = element("tr", *(element("th", name, scope="col") for name in head))
    made = element("table", element("caption", caption), element("thead", heads), body)
    return element("div", made, class_=kind, role="group", aria_label=caption, tabindex=0)


def facts(caption: str, pairs: Iterable[tuple[str, "ET.Element[str] | str"]]) -> "ET.Element[str]":
    """Return a table of two columns."""
    return table(caption, ("fact", "value"), pairs, "wide facts")


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
