"""Values of a Python file without running it: literals, names of literals, sums, and variables of the environment.

The file is parsed, never compiled or executed. All that needs a program stays a ``Computed``.
"""

import ast
import warnings
from typing import Any

from deployer.connected.site_profile.importers.values import Computed, LocatedValue, hole
from deployer.contract.errors import UsageError

#: Expressions within expressions.
_MAX_DEPTH = 80
#: Members of all lists and mappings together, after sums: a file can repeat a list in itself.
_MAX_VALUES = 50_000
#: Characters of a text, and the largest number: a file can repeat a text or number in itself.
_MAX_TEXT, _MAX_NUMBER = 64 * 1024, 2**53


def read(text: str, file: str, name: str) -> LocatedValue | None:
    """Return the value that a file binds to ``name`` at its top level, or None.

    Raises:
        UsageError: the file is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its texts with strange escapes
            tree = ast.parse(text, file)
    except SyntaxError as error:
        raise UsageError(f"{file}:{error.lineno or 1}: not a Python file: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):  # a NUL; brackets without end
        raise UsageError(f"{file} is not a Python file, or is nested too deeply") from None
    try:
        return _Module(file).run(tree).get(name)
    except RecursionError:
        raise UsageError(f"{file} is nested too deeply") from None


class _Module:
    def __init__(self, file: str) -> None:
        self._file = file
        self._names: dict[str, LocatedValue] = {}
        self._count = 0

    def run(self, tree: ast.Module) -> dict[str, LocatedValue]:
        """Return the values of all names that the module's own statements bind."""
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._bind(target, statement.value)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._bind(statement.target, statement.value)
            elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
                self._extend(statement.target, statement.value)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._call(statement.value)
        return self._names

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = self._value(value, 0)
        elif isinstance(target, ast.Subscript):
            holder: Any = self._value(target.value, 0).value
            key: Any = self._value(target.slice, 0).value
            if (isinstance(holder, dict) and isinstance(key, str)) or _is_index(holder, key):
                holder[key] = self._value(value, 0)

    def _extend(self, target: ast.expr, value: ast.expr) -> None:
        held, more = self._value(target, 0).value, self._value(value, 0)
        if isinstance(held, list) and isinstance(more.value, list):
            held += self._counted(list(more.value))
        elif isinstance(target, ast.Name):
            self._names[target.id] = LocatedValue(Computed(ast.unparse(target)), more.line)

    def _call(self, call: ast.Call) -> None:
        """Follow ``x.append(y)`` and ``x.extend(y)`` at the top level."""
        if not isinstance(call.func, ast.Attribute) or len(call.args) != 1 or call.keywords:
            return
        holder, value = self._value(call.func.value, 0).value, self._value(call.args[0], 0)
        if call.func.attr == "append" and isinstance(holder, list):
            holder.append(value)
        elif call.func.attr == "extend" and isinstance(holder, list) and isinstance(value.value, list):
            holder += self._counted(list(value.value))
        elif call.func.attr == "update" and isinstance(holder, dict) and isinstance(value.value, dict):
            holder.update(value.value)

    def _counted(self, members: Any) -> Any:
        self._count += len(members)
        if self._count > _MAX_VALUES:
            raise UsageError(f"{self._file} has more than {_MAX_VALUES} values")
        return members

    def _value(self, node: ast.expr, depth: int) -> LocatedValue:
        if depth > _MAX_DEPTH:
            raise UsageError(f"{self._file}:{node.lineno}: nested too deeply")
        found = self._evaluated(node, depth + 1)
        return found if isinstance(found, LocatedValue) else LocatedValue(found, node.lineno)

    def _evaluated(self, node: ast.expr, depth: int) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
            large = isinstance(node.value, int | float) and not abs(node.value) <= _MAX_NUMBER
            return Computed("a large number") if large else node.value
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id].value
        if isinstance(node, ast.List | ast.Tuple):
            return self._list(node, depth)
        if isinstance(node, ast.Dict):
            return self._dict(node, depth)
        if isinstance(node, ast.JoinedStr):
            return self._sized("".join(self._text(part, depth) for part in node.values))
        if isinstance(node, ast.BinOp):
            return self._operation(node, depth)
        if isinstance(node, ast.Subscript):
            return self._member(node, depth)
        if isinstance(node, ast.Call):
            return self._variable(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, depth).value
            if isinstance(value, int | float):
                return -value
        return self._unknown(node)

    def _unknown(self, node: ast.expr) -> Computed:
        return Computed(" ".join(ast.unparse(node).split()))

    def _list(self, node: ast.List | ast.Tuple, depth: int) -> list[LocatedValue]:
        found: list[LocatedValue] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                inner = self._value(each.value, depth)
                found += inner.value if isinstance(inner.value, list) else [inner]
            else:
                found.append(self._value(each, depth))
        self._counted(found)
        return found

    def _dict(self, node: ast.Dict, depth: int) -> dict[str, LocatedValue]:
        found: dict[str, LocatedValue] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self._value(each, depth)
            if key is None:
                found.update(value.value if isinstance(value.value, dict) else {"**": value})
                continue
            name = self._value(key, depth)
            text = name.value if isinstance(name.value, str) else name.computed() or str(name.value)
            found[text] = LocatedValue(value.value, value.line if isinstance(each, ast.Constant) else key.lineno)
        self._counted(found)
        return found

    def _operation(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self._value(node.left, depth), self._value(node.right, depth)
        if isinstance(node.op, ast.Add):
            if isinstance(left.value, list) or isinstance(right.value, list):
                both = [each.value if isinstance(each.value, list) else [each] for each in (left, right)]
                return self._counted([*both[0], *both[1]])
            if isinstance(left.value, str) or isinstance(right.value, str):
                return self._sized(_as_text(left.value, node.left) + _as_text(right.value, node.right))
        if isinstance(node.op, ast.Mult) and all(isinstance(each.value, int | float) for each in (left, right)):
            product = left.value * right.value
            return product if abs(product) <= _MAX_NUMBER else self._unknown(node)
        if isinstance(node.op, ast.BitOr) and isinstance(left.value, dict) and isinstance(right.value, dict):
            return {**left.value, **right.value}
        return self._unknown(node)

    def _member(self, node: ast.Subscript, depth: int) -> Any:
        if ast.unparse(node.value) == "os.environ":
            key = self._value(node.slice, depth).text()
            return f"${key}" if key else self._unknown(node)
        holder: Any = self._value(node.value, depth).value
        member: Any = self._value(node.slice, depth).value
        if (isinstance(holder, dict) and isinstance(member, str) and member in holder) or _is_index(holder, member):
            return holder[member].value
        return self._unknown(node)

    def _variable(self, node: ast.Call, depth: int) -> Any:
        """Return ``$NAME`` for a variable of the environment without a default."""
        function = ast.unparse(node.func) if isinstance(node.func, ast.Attribute | ast.Name) else ""
        if function in ("os.getenv", "os.environ.get") and len(node.args) == 1 and not node.keywords:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier():
                return f"${name.value}"
        if function == "os.path.join" and node.args and not node.keywords:
            return self._sized("/".join(self._text(each, depth).rstrip("/") for each in node.args))
        return self._unknown(node)

    def _text(self, node: ast.expr, depth: int) -> str:
        """Return an expression as a part of a text."""
        inner = node.value if isinstance(node, ast.FormattedValue) else node
        return _as_text(self._value(inner, depth).value, inner)

    def _sized(self, text: str) -> str:
        if len(text) > _MAX_TEXT:
            raise UsageError(f"{self._file} has a text of more than {_MAX_TEXT} characters")
        return text


def _as_text(value: Any, node: ast.expr) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return hole(value.source if isinstance(value, Computed) else ast.unparse(node))


def _is_index(holder: Any, key: Any) -> bool:
    return isinstance(holder, list) and isinstance(key, int) and -len(holder) <= key < len(holder)
