"""Calls in a Python script that affect its ranks: they start more ranks, or remove variables. Pure."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from deployer.connected.linker.starts.python.python_imports import MAX_TEXT
from deployer.connected.linker.starts.removed import Removed

_SPAWN = ("Spawn", "Spawn_multiple")
_POOL = "MPIPoolExecutor"
_MAPPINGS = ("environ", "os.environ")
_COMMAND = "-c "


class SpawnCall(NamedTuple):
    """A call that starts more ranks.

    Attributes:
        line: its line number.
        name: the function called.
        certain: whether it is reached whenever the script runs.
    """

    line: int
    name: str
    certain: bool


def spawns(text: str) -> list[SpawnCall]:
    """Return the calls that start more ranks in a script that uses ``mpi4py``, certain ones first."""
    tree = _parsed(text if "mpi4py" in text else "")
    certain = {id(node) for statement in _reached(tree) for node in ast.walk(statement)}
    calls = []
    for node in ast.walk(tree):
        name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and (name == _POOL or (name in _SPAWN and isinstance(node.func, ast.Attribute))):
            calls.append(SpawnCall(node.lineno, name, id(node) in certain))
    return sorted(calls, key=lambda call: (not call.certain, call.line))


def removed(text: str) -> frozenset[Removed]:
    """Return the variables that a script may remove from its environment before it starts MPI."""
    tree = _parsed(text if "env" in text else "")
    starts = [node.lineno for node in tree.body if "mpi4py import MPI" in ast.unparse(node)]
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt))]
    before = [node for node in nodes if node.lineno < min(starts, default=MAX_TEXT)]
    removals = [(node, name) for node in before for name in _removed(node)]
    return frozenset(Removed(name, False, f"line {node.lineno}: {ast.unparse(node)}") for node, name in removals)


def _removed(node: ast.AST) -> Iterator[str]:
    """Yield the variables that an expression or statement removes, as names or globs."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of_environment = ast.unparse(node.func.value) in _MAPPINGS
        if of_environment and node.func.attr == "clear":
            yield "*"
        elif (of_environment and node.func.attr == "pop") or node.func.attr == "unsetenv":
            yield _name(node.args[0] if node.args else None)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) in _MAPPINGS:
                yield _name(target.slice)


def _name(node: ast.expr | None) -> str:
    """Return the name of a variable, or a glob for all names if it is only known at run time."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "*"


def _parsed(text: str) -> ast.Module:
    """Return a script's syntax tree; empty if it is too long or cannot be parsed."""
    try:
        return ast.parse(text.removeprefix(_COMMAND) if len(text) <= MAX_TEXT else "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _reached(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that always run with a script: at its top level, and in functions called there.

    It stops at the first condition, which may end the script or choose another path.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    todo: list[ast.stmt] = tree.body[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            todo += node.body[::-1]
        elif isinstance(node, (ast.With, ast.Try)):
            yield from (item.context_expr for item in (node.items if isinstance(node, ast.With) else ()))
            todo += node.body[::-1]
        elif isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
            if not any(isinstance(inner_node, (ast.IfExp, ast.BoolOp, ast.Lambda)) for inner_node in ast.walk(node)):
                yield node
            names = [ast.unparse(inner_node.func) for inner_node in ast.walk(node) if isinstance(inner_node, ast.Call)]
            todo += [inner for name in names if name in functions for inner in functions.pop(name).body[::-1]]
        elif not isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return
