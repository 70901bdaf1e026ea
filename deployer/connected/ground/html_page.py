"""Pages of HTML that are one file: no scripts, nothing remote, readable when printed and by a screen reader.

Texts come from images and jobs, so they are hostile. Templates escape every text, and the policy in the page forbids
all content but its own style, if a browser should see any.
"""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from deployer.contract.text import printable
from deployer.system import files

FOLDER = Path(__file__).parent / "pages"


def page(template: str, **values: object) -> str:
    """Return the page that a template of the folder ``pages`` makes of values."""
    return _templates().get_template(template).render(values)


def write(path: Path, text: str) -> None:
    """Write a page whole or not at all."""
    files.write_text(str(path), text)


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _clean(value: Any) -> Any:
    """Return a text without control characters, which HTML does not allow; line ends stay. None is an empty text."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return "" if value is None else value
    return "\n".join(map(printable, value.split("\n")))
