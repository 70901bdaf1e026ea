"""The folders that a line of Python in a .pth file adds to ``sys.path``, for the few forms that packages use. Pure.

For example, Debian's petsc4py has a line that appends a folder below ``$PETSC_DIR``. Nothing is run.
"""

import ast
import posixpath
from collections.abc import Mapping

from deployer.connected.linker.starts.words import UnknownWord

_MODULES = ("os", "os.path", "sys")
_MAX_LINE = 4096

#: The value of an expression: a string, a boolean, or nothing.
_Value = str | bool | None


class NotUnderstood(Exception):
    """The line is not understood and may do anything."""


def added(line: str, environment: Mapping[str, str]) -> list[str]:
    """Return the folders that a line appends or inserts.

    Args:
        line: the line, which begins with ``import``.
        environment: the variables that the program receives; an unknown value is an UnknownWord.

    Raises:
        NotUnderstood: the line has other statements, or depends on an unknown value.
    """
    if len(line) > _MAX_LINE:
        raise NotUnderstood
    try:
        tree = ast.parse(line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotUnderstood from None
    return _Line(environment).follow(tree)


class _Line:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._variables: dict[str, _Value] = {}
        self._added: list[str] = []

    def follow(self, tree: ast.Module) -> list[str]:
        """Follow the statements in order."""
        for node in tree.body:
            if isinstance(node, ast.Import) and all(item.name in _MODULES and not item.asname for item in node.names):
                continue
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._variables[node.targets[0].id] = self._value(node.value)
            elif isinstance(node, ast.Expr):
                self._value(node.value)
            else:
                raise NotUnderstood
        return self._added

    def _value(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._variables:
            return self._variables[node.id]
        if isinstance(node, ast.BoolOp):
            value: _Value = None
            for operand in node.values:
                value = self._value(operand)
                if bool(value) == isinstance(node.op, ast.Or):
                    break
            return value
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and len(node.ops) == 1:
            if ast.unparse(node.comparators[0]) == "sys.path":
                return self._text(node.left) in self._added  # a duplicate folder changes nothing
        elif isinstance(node, ast.Call) and not node.keywords:
            return self._called(ast.unparse(node.func), node.args)
        raise NotUnderstood

    def _called(self, name: str, arguments: list[ast.expr]) -> _Value:
        if name in ("os.getenv", "os.environ.get") and len(arguments) in (1, 2):
            value = self._environment.get(self._text(arguments[0]))
            if isinstance(value, UnknownWord):
                raise NotUnderstood
            return value if value is not None or len(arguments) == 1 else self._value(arguments[1])
        if name == "os.path.join" and arguments:
            return posixpath.join(*map(self._text, arguments))
        if (name == "sys.path.append" and len(arguments) == 1) or (name == "sys.path.insert" and len(arguments) == 2):
            self._added.append(self._text(arguments[-1]))
            return None
        raise NotUnderstood

    def _text(self, node: ast.expr) -> str:
        value = self._value(node)
        if not isinstance(value, str):
            raise NotUnderstood
        return value
