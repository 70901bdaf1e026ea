"""HTML pages in one file: no scripts, nothing remote, readable in print and with a screen reader.

Texts come from images and jobs, so they are untrusted. Templates escape every text. If any markup remains, the policy
in the page forbids all content except its own style.
"""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from deployer.contract.base.text import printable

FOLDER = Path(__file__).parent / "pages"


def page(template: str, **values: object) -> str:
    """Return the page made from a template in the folder ``pages`` with the given values."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return templates.get_template(template).render(values)


def _clean(value: Any) -> Any:
    """Return a text without control characters, which HTML forbids, except line ends. None becomes an empty text."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return "" if value is None else value
    return "\n".join(map(printable, value.split("\n")))
