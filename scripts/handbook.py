"""The Markdown reference generated from the code: commands, definition and profile keys, variables, codes.

Used by scripts/docs.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator

from deployer.cli.laptop import main as laptop
from deployer.cli.site import main as site
from deployer.cli.site.common import Front
from deployer.connected.image.definition import definition
from deployer.connected.site_profile import profile
from deployer.contract.base import pages
from deployer.system.tool import documents
from scripts import output_schemas, variables
from scripts.command_tree import commands
from scripts.reference import table

_READERS = {
    "On the laptop and at the site": variables.BOTH,
    "On the laptop": variables.LAPTOP,
    "At the site": variables.SITE,
    "In the program of a job": variables.JOB,
}
_RANKS = "../cluster.md#where-ranks-find-each-other"
_PROFILES = "What people usually write, and what `capture` finds: [admin.md](../admin.md#what-to-write)."


def handbook(section: Callable[[str], str]) -> dict[str, str]:
    """Return the pages by file name.

    Args:
        section: returns the website's anchor for a heading.
    """
    return {
        "commands-of-the-laptop.md": _page("Commands of the laptop", _commands(laptop.front())),
        "commands-of-the-site.md": _page("Commands of the site", _commands(site.front())),
        "keys-of-definitions.md": _page("Keys of `bundle.yaml`", [table(definition.schema())]),
        "keys-of-profiles.md": _page("Keys of site profiles", [_PROFILES, table(profile.schema())]),
        "records-of-commands.md": _page("Records of commands", _records()),
        "variables.md": _page("Settings and environment variables", _variables()),
        "codes.md": _page("All codes", _codes(section)),
    }


def _page(title: str, blocks: Iterator[str] | list[str]) -> str:
    return "\n\n".join([f"# {title}", "This page is made from the code.", *blocks]) + "\n"


def _commands(front: Front) -> Iterator[str]:
    described = commands(front)
    for title, listed in front.groups.items():
        yield f"## {title[0].upper()}{title[1:]}"
        for command in (command for name in listed for command in described if command.words[0] == name.name):
            yield f"### {front.prog} {' '.join(command.words)}"
            yield f"{command.summary[:1].upper()}{command.summary[1:].rstrip('.')}."
            # The usage in lines that fit a page, broken between arguments.
            whole = re.sub(r"\[[^]]*\]", lambda argument: argument[0].replace(" ", "\xa0"), command.usage)
            usage = textwrap.fill(whole, 88, subsequent_indent="    ", break_on_hyphens=False)
            yield _block(usage.replace("\xa0", " "))
            if command.arguments:
                yield _table("argument", ((argument.shown, argument.text) for argument in command.arguments))
            if command.example:
                yield f"Example:\n\n{_block(command.example)}"


def _table(name: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and their meanings."""
    lines = (f"| `{word}` | {_cell(meaning)} |" for word, meaning in rows)
    return f"| {name} | meaning |\n|---|---|\n" + "\n".join(lines)


def _records() -> Iterator[str]:
    for command, schema in output_schemas.schemas().items():
        yield f"## {command}"
        forms = [
            schema["$defs"].get(form.get("$ref", "").rpartition("/")[2], form) for form in schema.get("anyOf", [schema])
        ]
        for form in forms:
            named = form.get("properties") or form.get("items", {}).get("properties", {})
            if named:
                yield _table("key", ((key, about.get("description", "")) for key, about in named.items()))


def _variables() -> Iterator[str]:
    order = "An option overrides a variable, and a variable overrides the settings file"
    yield f"{order}: [Settings](../laptop.md#settings)."
    for title, readers in _READERS.items():
        yield f"## {title}"
        yield _table("variable", (("`, `".join(item.names), item.text) for item in variables.read_by(readers)))
    yield f"Variables that find the other ranks (`RANK`, `MASTER_ADDR`, ...) are in the [guide]({_RANKS})."


def _codes(section: Callable[[str], str]) -> Iterator[str]:
    every = documents.every_page()
    for topic, when in pages.TOPICS.items():
        yield f"## {topic[0].upper()}{topic[1:]}"
        yield f"{when[0].upper()}{when[1:]}."
        listed = [page for page in every if page.topic == topic]
        rows = [f"| [`{page.code}`]({_link(page, section)}) | {_cell(page.summary)} |" for page in listed]
        yield "| code | meaning |\n|---|---|\n" + "\n".join(rows)
    yield "`deployer explain CODE` prints the page of a code; `python3 deployer.pyz explain CODE` does so on the site."


def _link(page: pages.Page, section: Callable[[str], str]) -> str:
    """Return the path of a page's section."""
    topic = "check" if page.topic == "rehearse" else page.topic
    name = next(name for name, subject in pages.DOCUMENTS.items() if subject == topic)
    heading = f"{page.code}: {page.title}" if page.title else page.code
    return f"../{name}#{section(heading)}"


def _block(text: str) -> str:
    return f"```\n{text}\n```"


def _cell(text: str) -> str:
    """Return one line of text in the form that a Markdown table shows unchanged."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
