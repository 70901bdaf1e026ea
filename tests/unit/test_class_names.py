"""A public class or type has a name of its own in the whole package, so that a name alone says what is meant."""

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "deployer"
#: Names that may be defined twice, each with its reason.
EXCEPTIONS: dict[str, str] = {}

_TYPE = re.compile(r"[A-Z]\w*[a-z]\w*")
#: How a formatted module begins the definition of a type, as far as one line shows it.
_MAYBE = re.compile(r"^(?:class +)?([A-Z]\w*[a-z]\w*)(?=[(:]| *=|\[)", re.MULTILINE)


def types(path: Path) -> Iterator[str]:
    """Yield the names of the public classes and type aliases of a module."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from filter(_TYPE.fullmatch, names)


def doubled(package: Path) -> dict[str, list[str]]:
    """Return the names of types that more than one module defines, and those modules."""
    maybe = collections.defaultdict(set)
    for path in package.rglob("*.py"):
        for name in _MAYBE.findall(path.read_text()):
            maybe[name].add(path)
    # Only these modules are parsed: all of them take a second.
    candidates = set[Path]().union(*(paths for paths in maybe.values() if len(paths) > 1))
    where = collections.defaultdict(list)
    for path in sorted(candidates):
        for name in types(path):
            where[name].append(str(path.relative_to(package)))
    return {name: paths for name, paths in where.items() if len(paths) > 1}


@pytest.mark.thorough
def test_no_two_modules_define_a_type_of_one_name() -> None:
    found = doubled(PACKAGE)
    assert {name: paths for name, paths in found.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(found)  # no exception that nobody needs


def test_classes_and_aliases_are_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("class One: pass\nclass _Own: pass\nTwo = int\nLIMIT = 1\n")
    (tmp_path / "inner" / "b.py").write_text("class Two: pass\nclass _Own: pass\nOne = str\nLIMIT = 2\n")
    assert doubled(tmp_path) == {"One": ["a.py", "inner/b.py"], "Two": ["a.py", "inner/b.py"]}
