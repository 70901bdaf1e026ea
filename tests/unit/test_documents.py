"""The documents: their links lead somewhere, and the commands in them are commands."""

import functools
import re
import shlex
import unicodedata

import pytest

import deployer
from deployer.cli.laptop import main as laptop
from deployer.cli.site import main as site
from deployer.contract.base.errors import UsageError
from tests.conftest import ROOT

#: Documents with relative links: those of users and developers, and ADRs.
_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Documents of today, and files that `init` writes or people copy: other documents record what was so at a commit.
_WITH_COMMANDS = [
    *(page for page in _PAGES if "adr" not in page.parts and page.name not in ("CHANGELOG.md", "benchmarks.md")),
    *sorted([*(ROOT / "bundles").rglob("*.yaml"), *(ROOT / "site_profiles").glob("*.yaml")]),
]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FRONTS = {"deployer": laptop.front, "deployer.pyz": site.front}
#: What a document may write before a command: the machine's prompt.
_PROMPT = re.compile(r"^(?:\w+[$#]\s+)?(?:srun(?: [-\w=]+)* |)(?:python3 (?:\w+/)?(?=deployer\.pyz))?")
#: Words that stand for something, and that a parser of numbers would refuse.
_PLACEHOLDERS = {"N": "1", "R": "1", "T": "1", "S": "60", "K": "1", "MIB": "100", "SECONDS": "60", "X": "udocker"}


def _name(page):
    return str(page.relative_to(ROOT))


@functools.cache
def _anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        kept = [c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN"]
        found.add("".join(kept).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_links_lead_somewhere(page):
    broken = []
    for link in (a or b for a, b in _LINK.findall(_FENCE.sub("", page.read_text()))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_tables_are_whole(page):
    """An empty line in a table makes text of the rows that follow."""
    blocks = re.findall(r"^\|.*(?:\n\|.*)*", _FENCE.sub("", page.read_text()), re.MULTILINE)
    assert [block for block in blocks if not re.match(r".*\n\|[-:| ]+\|(?:\n|$)", block)] == []


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_no_page_installs_the_other_program_of_our_name(page):
    """`deployer` on the package index is somebody else's; ours is deployer-hpc."""
    assert not re.search(r"\b(install|inject|--with) +(-\S+ +)*deployer(?![-_]hpc|[\w/.])", page.read_text())
    names = re.findall(r"\bdeployer[\w-]*-(\d[\w.]*)(?=-py3-none-any\.whl|\.tar\.gz|-linux)", page.read_text())
    assert page.name == "CHANGELOG.md" or set(names) <= {deployer.__version__}


def _commands(page):
    """Return the command lines of a page, in blocks and in sentences: (front end, words)."""
    text = page.read_text()
    lines = [
        line
        for block in re.findall(r"^```(?:sh|bash|)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    lines += re.findall(r"^(?: {4}| {7})(\S.*)$", _FENCE.sub("", text), re.MULTILINE)
    lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _FENCE.sub("", text))
    for line in lines:
        rest = _PROMPT.sub("", line.strip(), count=1)
        front, _, words = rest.partition(" ")
        front = front.rpartition("/")[2]
        if front in _FRONTS and words and not words.startswith(("error:", "warning:")):
            yield front, words


def test_troubleshooting_quotes_what_is_printed():
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row) if text.count(" ") > 2]
    assert len(quoted) >= 6
    code = "".join(path.read_text() for path in (ROOT / "deployer").rglob("*.py"))
    assert [text for text in quoted if text not in code] == []


def _without_remarks(words):
    found = shlex.split(words.split("   ")[0], comments=True)
    ends = [index for index, word in enumerate(found) if word in (">", "|", "--")]
    return found[: min(ends, default=len(found))]


def _is_partial(error):
    """Return whether the words name a command, as sentences do, and are not all that it needs."""
    return "required" in error.message or "expected" in error.message


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in _WITH_COMMANDS if list(_commands(page))], ids=_name)
def test_commands_are_accepted_by_the_parsers(page):
    wrong = []
    for front, text in _commands(page):
        words = [_PLACEHOLDERS.get(word, word) for word in _without_remarks(text)]
        if words[-1] in ("--help", "--version") or any("..." in word or "[" in word for word in words):
            continue
        parser = _FRONTS[front]()
        parser.add_wanted(words)
        try:
            parsed, unknown = parser.parse_known_args(words)
        except UsageError as error:
            wrong += [] if _is_partial(error) else [f"{front} {text}: {error.message}"]
        else:
            wrong += [f"{front} {text}: unknown: {unknown}"] if unknown else []
            assert hasattr(parsed, "parser")
    assert wrong == []
