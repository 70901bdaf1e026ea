"""MkDocs hooks of scripts/docs: gather pages, list decisions, mark up blocks, turn the search index into a script."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.exceptions import PluginError

from deployer import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.handbook import handbook  # noqa: E402  MkDocs loads this file alone

_LINK = re.compile(r"\]\(([^)#\s]+)")
#: A block of code, a prompt in it, and a remark at the end of a line.
_BLOCK = re.compile(r"<pre><code(?P<kind>[^>]*)>(?P<text>.*?)</code></pre>", re.DOTALL)
_PROMPT = re.compile(r"(?:(?:laptop|login|site)\s*[$#]|\$) +")
_REMARK = re.compile(r"(?:^|  +)# .*$")
#: What a browser loads by itself: attributes of elements, and of stylesheets.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|embed|object|video|audio|link)\b[^>]*?\b(?:src|href|data|srcset)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""",
    re.IGNORECASE,
)


def on_config(config: Any) -> Any:
    """Gather the pages, and add the decisions to the navigation."""
    source = Path(config.docs_dir)
    if ROOT / ".deployer" not in source.parents:
        raise PluginError(f"{source} is not below .deployer: it would be removed")
    shutil.rmtree(source)
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        _copy(page, source)
        for link in _LINK.findall(page.read_text()):
            target = (page.parent / link).resolve()  # pictures, and files of the repository that a page shows
            if target.is_file() and target.suffix != ".md" and ROOT in target.parents:
                _copy(target, source)
    reference = source / "docs" / "reference"
    reference.mkdir()
    for name, text in handbook(lambda heading: slugify(heading, "-")).items():
        (reference / name).write_text(text)
    decisions = [{_title(page): f"docs/adr/{page.name}"} for page in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    config.nav[-1]["Development"].append({"Decisions": decisions})
    config.extra["version"] = __version__
    return config


def on_page_content(text: str, page: Any, **_: Any) -> str:
    """Let wide tables scroll by themselves, and tell what is typed in a session from what is printed."""
    if "<th></th>" in text:
        raise PluginError(f"{page.file.src_uri}: a column of a table has no name")
    text = text.replace("<table>", '<div class="wide" role="group" aria-label="Table" tabindex="0"><table>')
    text = text.replace("</table>", "</table></div>").replace("<th>", '<th scope="col">')
    return _BLOCK.sub(_marked, text)


def _marked(block: re.Match[str]) -> str:
    """Return a block of code: prompts are not copied with the commands, and remarks are paler."""
    session = "console" in block["kind"]
    lines = []
    for line in block["text"].split("\n"):
        prompt = _PROMPT.match(line)
        typed = line[prompt.end() :] if prompt else line
        command, remark = typed, ""
        if not session and (found := _REMARK.search(typed)):
            command, remark = typed[: found.start()], f'<span class="remark">{found[0]}</span>'
        if prompt:
            line = f'<span class="prompt">{prompt[0]}</span><span class="typed">{command}</span>{remark}'
        elif remark:
            line = command + remark
        lines.append(line)
    return f'<div class="block"><pre tabindex="0"><code{block["kind"]}>' + "\n".join(lines) + "</code></pre></div>"


def on_post_build(config: Any) -> None:
    """Make the index a script, and refuse a page that loads something from elsewhere: a folder has no network."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    sections = json.dumps(json.loads(index.read_text())["docs"])
    index.with_suffix(".js").write_text(f"window.searchIndex = {sections};\n")
    index.unlink()
    found = []
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            found += [f"{path}: {a or b}" for a, b in _LOADED.findall(path.read_text())]
    if found:
        raise PluginError("pages load remote content:\n" + "\n".join(found))


def _copy(path: Path, source: Path) -> None:
    target = source / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _title(page: Path) -> str:
    number = page.name.partition("-")[0]
    heading = re.sub(r"^#\s+(?:ADR\s*)?\d*[.:]?\s*", "", page.read_text().partition("\n")[0])
    return f"{int(number)}: {heading}".replace("`", "")
