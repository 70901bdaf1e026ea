"""The package stays small, and no two of its modules import each other."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Lines of code. A change that adds a capability may use what is left below it.
CEILING = 50_000

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str, tree: ast.Module) -> int:
    """Return the number of lines without blank lines, comments and docstrings."""
    texts = map(str.strip, source.splitlines())
    lines = {number for number, text in enumerate(texts, 1) if text and not text.startswith("#")}
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def imported(tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.thorough
def test_the_package_is_small_and_its_modules_import_in_one_direction() -> None:
    paths = sorted((ROOT / "deployer").rglob("*.py"))
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    graph, lines = {}, 0
    for name, path in names.items():
        source = path.read_text()
        tree = ast.parse(source)
        lines += lines_of_code(source, tree)
        graph[name] = {other for other in imported(tree, names) if other in names}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which lists the circle
    assert lines <= CEILING, f"{lines} lines of code: take away before you add"


def test_comments_and_docstrings_are_not_code() -> None:
    source = (
        '"""Doc."""\n\n# why\ndef one():\n    """Doc.\n\n    more\n    """\n    return [  # here\n        1\n    ]\n'
    )
    assert lines_of_code(source, ast.parse(source)) == 4
