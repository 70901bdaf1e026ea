"""What a Python text imports and starts, read from its syntax tree. Nothing is run."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: Longer texts are not read, in bytes.
MAX_TEXT = 1024 * 1024

_RUNS = frozenset(("run", "call", "check_call", "check_output", "Popen"))
_OS = re.compile(r"(exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|system|popen)$")
_LIBC = re.compile(r"lib(c|m|dl|pthread|rt)\.so(\.[0-9]+)?$")


class ModuleImports(NamedTuple):
    """What a module imports.

    Attributes:
        certain: dotted names that it imports whenever it is imported.
        possible: dotted names that it imports in a function, under a condition, or in a ``try``.
        relative: names after ``from`` with dots, as (dots, name), certain or not.
        commands: words of programs that it starts; a text for ``sh -c`` is one word.
        unclear: reasons why it may import or start more.
        changes_path: whether it changes ``sys.path``.
    """

    certain: Sequence[str]
    possible: Sequence[str]
    relative: Sequence[tuple[int, str]]
    commands: Sequence[tuple[str, ...]]
    unclear: Sequence[str]
    changes_path: bool


def of_text(text: bytes, main: bool, executable: str) -> ModuleImports | None:
    """Return what a text imports, or None if it cannot be read.

    Args:
        text: the content of the file.
        main: whether it is run as a script.
        executable: the path of the Python that runs it.
    """
    if len(text) > MAX_TEXT:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    certain = list(_certain(tree, main))
    surely = set(map(id, certain))
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    commands: list[tuple[str, ...]] = []
    unclear: list[str] = []
    named: list[str] = []
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Call):
            _called(node, imported, executable, commands, unclear, named)
    return ModuleImports(
        [name for node in certain for name in _names(node)],
        [*(name for node in imports if id(node) not in surely for name in _names(node)), *named],
        [each for node in imports if isinstance(node, ast.ImportFrom) and node.level for each in _relative(node)],
        commands,
        list(dict.fromkeys(unclear)),
        any(isinstance(node, ast.Attribute) and node.attr == "path" and _name(node) == "sys.path" for node in nodes)
        or "addsitedir" in imported,
    )


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level or not node.module:
        return []
    return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")]


def _relative(node: ast.ImportFrom) -> list[tuple[int, str]]:
    if node.module:
        return [(node.level, node.module), *((node.level, f"{node.module}.{alias.name}") for alias in node.names)]
    return [(node.level, alias.name) for alias in node.names]


def _certain(tree: ast.Module, main: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that are reached whenever the module runs: at its top, and in functions that it calls there."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    called: set[str] = set()
    todo: list[ast.stmt] = list(tree.body)[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, (ast.With, ast.ClassDef)):
            todo += node.body[::-1]
        elif isinstance(node, ast.If):
            if main and _is_main(node.test):
                todo += node.body[::-1]
        elif isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return, ast.Raise)):
            for name in _calls(node):
                if name in functions and name not in called:
                    called.add(name)
                    todo += functions[name].body[::-1]


def _calls(node: ast.AST) -> list[str]:
    """Return the functions that a statement calls whatever happens."""
    found = []
    for inner in ast.walk(node):
        if isinstance(
            inner, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
        ):
            return []
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            found.append(inner.func.id)
    return found


def _is_main(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.ops[0], ast.Eq)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    )


def _name(node: ast.expr) -> str:
    """Return a dotted name, empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *parts[::-1]])


def _called(
    node: ast.Call, imported: set[str], executable: str,
    commands: list[tuple[str, ...]], unclear: list[str], named: list[str],
) -> None:  # fmt: skip
    """Add what a call starts or imports by a name in a text."""
    name = _name(node.func)
    first = node.args[0] if node.args else None
    last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    module = name.rpartition(".")[0]
    if last in ("import_module", "__import__"):
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            named.append(first.value)
        else:
            unclear.append(f"line {node.lineno} imports a module by a name that is only known when it runs")
    elif (name == "exec") or last in ("run_path", "run_module"):
        unclear.append(f"line {node.lineno} runs Python that is only known when it runs")
    elif (module == "subprocess" or (not module and name in imported)) and last in _RUNS and module != "os":
        _started(node, first, any(word.arg == "shell" for word in node.keywords), executable, commands, unclear)
    elif (module == "os" or (not module and name in imported)) and _OS.match(last):
        _started(node, first, last in ("system", "popen"), executable, commands, unclear)
    elif last in ("Spawn", "Spawn_multiple") or name == "pexpect.spawn":
        unclear.append(f"line {node.lineno} starts programs")
    elif last in ("CDLL", "PyDLL", "LoadLibrary", "dlopen"):
        value = first.value if isinstance(first, ast.Constant) else ""
        if value is not None and not (isinstance(value, str) and _LIBC.match(value)):
            unclear.append(f"line {node.lineno} loads a library by its name")


def _started(
    node: ast.Call, first: ast.expr | None, shell: bool, executable: str,
    commands: list[tuple[str, ...]], unclear: list[str],
) -> None:  # fmt: skip
    if isinstance(first, (ast.List, ast.Tuple)) and not shell:
        words = [executable if _name(word) == "sys.executable" else _constant(word) for word in first.elts]
        if words and all(word is not None for word in words):
            commands.append(tuple(word for word in words if word is not None))
            return
    text = _constant(first) if first is not None else None
    if text is not None and shell:
        commands.append(("sh", "-c", text))
    else:
        unclear.append(f"line {node.lineno} starts programs that are only known when it runs")


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
