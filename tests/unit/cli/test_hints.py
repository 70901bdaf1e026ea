"""Hints name commands that their reader has: `deployer` on the laptop, `deployer.pyz` at the site."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.cli.laptop import main as laptop
from deployer.cli.site import common
from deployer.cli.site import main as site
from scripts import command_tree
from tests.conftest import ROOT

#: Modules whose texts are read at the site, most of them on the laptop too.
_BOTH = ("contract", "system", "site", "cli/site")
_COMMAND = re.compile(r"(?P<quote>`?)(?P<program>\bdeployer(?:\.pyz)?) (?P<name>[a-z][a-z-]*)(?P<rest>[^`;,():\n]*)")
#: Not a hint: what made an image.
_RECORDED = "deployer pack (flattened)"


def _tree(front: common.Front) -> dict[str, set[str]]:
    """Return the options of each command, of its subcommands too."""
    found: dict[str, set[str]] = {}
    for each in command_tree.commands(front):
        names = {name for argument in each.arguments for name in argument.names}
        found[each.words[0]] = found.get(each.words[0], set()) | names
    return found


LAPTOP, SITE = _tree(laptop.front()), _tree(site.front())


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module without its docstrings, each with its line; a placeholder stands for a value."""
    tree = ast.parse(path.read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.List | ast.Tuple | ast.Call):
            words = node.args[1:] if isinstance(node, ast.Call) else node.elts
            texts = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            suggests = isinstance(node, ast.Call) and ast.unparse(node.func) in ("common.suggest", "common.command")
            if texts and suggests:
                of_site = "site" in path.parts and texts[0] in SITE  # the program says for whom others are
                yield node.lineno, f"`deployer.pyz {texts[0]}`" if of_site else f"`deployer {texts[0]}` on the laptop"
            elif texts[:1] == ["deployer"]:
                yield node.lineno, f"`{' '.join(texts)}` on the laptop"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def _faults(text: str, at_the_site: bool) -> Iterator[str]:
    for found in _COMMAND.finditer(text):
        tree = SITE if found["program"] == "deployer.pyz" else LAPTOP
        name, options = found["name"], re.findall(r"(?<!\S)--[a-z][a-z-]*", found["rest"].partition(" -- ")[0])
        if name not in tree:
            if found["quote"] or name in LAPTOP or name in SITE:
                yield f"{found['program']} has no command {name}: {text}"
            continue
        yield from (f"{name} has no option {option}: {text}" for option in options if option not in tree[name])
        if at_the_site and tree is LAPTOP and "laptop" not in text and text != _RECORDED:
            yield f"say that `deployer {name}` is for the laptop, or name the site's command: {text}"


@pytest.mark.thorough
@pytest.mark.parametrize("package", [*_BOTH, "connected", "cli/laptop"])
def test_hints_name_commands_that_their_reader_has(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / "deployer" / package).rglob("*.py")):
        for line, text in _texts(path):
            place = f"{path.relative_to(ROOT)}:{line}"
            wrong += [f"{place}: {fault}" for fault in _faults(text, package in _BOTH)]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "at_the_site", "wrong"),
    [
        ("see `deployer status`", True, True),
        ("on the laptop, `deployer status`", True, False),
        ("see `deployer.pyz status`", True, False),
        ("see `deployer.pyz pack`", True, True),
        ("see `deployer status`", False, False),
        ("see `deployer statsu`", False, True),
        ("this deployer has no runtime", True, False),
        ("make it again: deployer plan B.tar --sit lab", False, True),
        ("make it again: deployer plan B.tar --site lab", False, False),
    ],
)
def test_faults_are_found(text: str, at_the_site: bool, wrong: bool) -> None:
    assert bool(list(_faults(text, at_the_site))) == wrong
