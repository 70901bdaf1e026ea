"""Pages in Markdown documents, and what a terminal shows of them."""

from typing import List, Sequence

from deployer.contract.base import pages

TEXT = """# A document

## Not a page

Text.

### a.first

**What**: one `two` [three](rules.md#x). More
text. **Why**: see [it](https://example.org/x) **now**. **Remedy**: none

| a | `b` |
|---|---|
| 1 | 2 |

- x
- y

## 3: refused

**What**: no.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    return [" ".join(row) for row in [head, *rows]]


def wrapped(text, first, others):
    return [first + text]


def test_a_page_is_a_section_whose_heading_begins_with_a_code() -> None:
    first, second = pages.pages({"lint.md": TEXT})
    assert (first.code, first.title, first.topic, second.code, second.title) == ("a.first", "", "lint", "3", "refused")
    assert first.summary == "one two three"
    assert second.summary == "refused"


def test_a_summary_leaves_out_the_severity() -> None:
    text = "## a.code\n\n**What**: A warning: it is slow: why. More."
    assert pages.pages({"rules.md": text})[0].summary == "It is slow"


def test_a_page_without_marks() -> None:
    first = pages.pages({"lint.md": TEXT})[0]
    assert [line for line in first.lines(wrapped, table) if line] == [
        "a.first (lint)",
        "  What: one two three. More text.",
        "  Why: see it (https://example.org/x) now.",
        "  Remedy: none",
        "a b",
        "1 2",
        "  - x",
        "  - y",
    ]


def test_a_page_as_a_record() -> None:
    record = pages.pages({"lint.md": TEXT})[0].record()
    assert record["why"] == "see [it](https://example.org/x) **now**."
    assert len(record["notes"]) == 2
