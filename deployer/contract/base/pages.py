"""The pages of ``explain``, taken from the documents: one per finding code and exit code. Pure.

A page is a section of a Markdown document whose heading begins with its code. Its paragraphs begin with labels:
``**What**:``, ``**Why**:``, ``**Remedy**:``, ``**Evidence**:`` and ``**Example**:``.
"""

import re
from typing import Callable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from deployer.contract.base.json_records import Record

#: The documents with pages, and their topics in workflow order. A topic that a code's prefix names goes first.
DOCUMENTS = {"lint.md": "lint", "rules.md": "check", "job-codes.md": "job", "exit-codes.md": "exit codes"}
TOPICS = {
    "lint": "a definition, before and after its image is built (lint, build)",
    "check": "a bundle at a site, before it is sent (check, pack, plan, push)",
    "rehearse": "a job without network, before it is sent (rehearse)",
    "job": "a job on the site (run, status, result.json)",
    "exit codes": "of each command",
}

_HEADING = re.compile(r"#{1,6} (.*)")
_CODE = re.compile(r"(\d+|[a-z]+\.[a-z][a-z-]*)(?:: (.*))?")
#: Matches a possible finding code in a text.
_IN_TEXT = re.compile(r"\b[a-z]+\.[a-z][a-z-]*\b")
_SEVERITY = re.compile(r"(A )?(error|warning|note)(, of a built image)?[.:] ", re.I)
_LABEL = re.compile(r"\*\*(\w+)\*\*: ?")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_ROW = re.compile(r"\|(.*)\|\s*$")

#: A function that formats a table's head and rows as lines.
TableLayout = Callable[[Sequence[str], Sequence[Sequence[str]]], List[str]]


class Page(NamedTuple):
    """A page.

    Attributes:
        code: the code of a finding, or an exit code.
        title: what follows the code in its heading; may be empty.
        topic: a key of ``TOPICS``.
        body: the text in Markdown.
    """

    code: str
    title: str
    topic: str
    body: str

    def parts(self) -> List[Tuple[str, str]]:
        """Return its blocks of text, each with its label; a table or a second paragraph has an empty label."""
        parts = []
        for block in re.split(r"\n\s*\n", self.body.strip()):
            labels = list(_LABEL.finditer(block))
            starts = [label.start() for label in labels] + [len(block)]
            if block[: starts[0]].strip():
                parts.append(("", block[: starts[0]].strip()))
            parts += [(label[1], block[label.end() : end].strip()) for label, end in zip(labels, starts[1:])]
        return parts

    @property
    def summary(self) -> str:
        """Return its title, or its first sentence without markup and severity."""
        what = _inline(next((text for label, text in self.parts() if label == "What"), ""))
        text = self.title or what
        severity = _SEVERITY.match(text)
        if severity:
            text = text[severity.end() :]
            text = text[:1].upper() + text[1:]
        return re.split(r"(?<=[^.])[.:;] ", text + " ")[0].strip().rstrip(".")

    def record(self) -> Record:
        """Return the page as a JSON object with texts in Markdown."""
        texts = {label.lower(): text for label, text in self.parts() if label}
        notes = [text for label, text in self.parts() if not label]
        return {"code": self.code, "topic": self.topic, **texts, "notes": notes}

    def lines(self, wrapped: Callable[[str, str, str], List[str]], table: TableLayout) -> List[str]:
        """Return the page's lines for a terminal; ``wrapped`` wraps a text and ``table`` lays out a table."""
        shown = ["{} ({}){}".format(self.code, self.topic, self.title and ": " + self.title)]
        for label, text in self.parts():
            rows = [_ROW.match(line) for line in text.splitlines()]
            shown.append("")
            if rows and all(rows):
                cells = [[_inline(cell.strip()) for cell in row[1].split("|")] for row in rows if row]
                shown += table(cells[0], cells[2:])
            else:
                items = re.split(r"(?:^|\n)- ", text) if text.startswith("- ") else [text]
                for item in filter(None, items):
                    first = f"{label}: " if label else "- " if len(items) > 1 else ""
                    shown += wrapped(first + _inline(item), "  ", "    ")
        return shown


def pages(documents: Mapping[str, str]) -> List[Page]:
    """Return the pages from the documents, given by name, in topic order."""
    topics = list(TOPICS)
    in_documents = (page for name in DOCUMENTS for page in _pages(name, documents.get(name, "")))
    return sorted(in_documents, key=lambda page: topics.index(page.topic))


def find(found: Sequence[Page], code: str) -> List[Page]:
    """Return the pages for a code, which several topics may have."""
    return [page for page in found if page.code == code]


def mentioned(found: Sequence[Page], text: str) -> str:
    """Return the first code of a finding in a text, or an empty text."""
    known = {page.code for page in found}
    return next((word for word in _IN_TEXT.findall(text) if word in known), "")


def _pages(name: str, text: str) -> Iterator[Page]:
    code, title, body = "", "", []  # type: Tuple[str, str, List[str]]
    for line in [*text.splitlines(), "# "]:
        heading = _HEADING.match(line)
        if heading is None:
            body.append(line)
            continue
        if code:
            topic = "rehearse" if code.startswith("rehearse.") else DOCUMENTS[name]
            yield Page(code, title, topic, "\n".join(body).strip())
        known = _CODE.fullmatch(heading[1])
        code, title, body = known[1] if known else "", (known[2] or "") if known else "", []


def _inline(text: str) -> str:
    """Return a text without Markdown markup, in one line."""
    text = " ".join(text.split())
    text = _LINK.sub(lambda link: f"{link[1]} ({link[2]})" if "://" in link[2] else link[1], text)
    pieces = re.split(r"(``.+?``(?!`)|`[^`]*`)", text)
    for number, piece in enumerate(pieces):
        if number % 2:
            pieces[number] = piece.strip("`").strip() if not piece.startswith("``") else piece[2:-2].strip()
        else:
            pieces[number] = re.sub(r"(?<![\w*])\*{1,2}(?=\S)|(?<=\S)\*{1,2}(?![\w*])", "", piece)
    return "".join(pieces)
