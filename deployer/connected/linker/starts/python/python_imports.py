"""The modules that Python source text imports and the programs that it starts, from its syntax tree. Nothing is run."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

#: Longer source texts, in bytes, are not read.
MAX_TEXT = 1024 * 1024

_RUNS = frozenset(("run", "call", "check_call", "check_output", "Popen"))
_OS = re.compile(r"(exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|system|popen)$")
#: Names that affect where and how modules are found, besides ``sys.path`` and ``sys.modules``.
_IMPORT_SYSTEM = (
    "meta_path", "path_hooks", "path_importer_cache", "addsitedir", "addpackage", "spec_from_file_location",
    "spec_from_loader", "extend_path", "load_source", "load_module", "zipimporter", "ModuleType",
)  # fmt: skip
#: Names of functions that may end the program.
_ENDS = re.compile(
    r"exit|quit|abort|usage|help|die|fatal|error|fail|version|^exec[lv]|^(main|run|cli|skip|kill)$", re.IGNORECASE
)
_WORDS_OF_ENTRY = 3
_LIBC = re.compile(r"lib(c|m|dl|pthread|rt)\.so(\.[0-9]+)?$")


class ModuleImports(NamedTuple):
    """The imports of a module.

    Attributes:
        certain: dotted names imported whenever the module is.
        possible: dotted names imported in a function, under a condition, or in a ``try``, each with its first line.
        relative: names after ``from`` with dots, as (dots, name), certain or not.
        entries: entry points that it loads: a distribution, a group and a name.
        commands: command lines of programs that it starts; the text for ``sh -c`` is one word.
        unclear: reasons why it may import or start more.
        changes_path: whether it changes where or how modules are found.
        required: modules that always make it fail if they are missing.
        loaded: dotted names that are imported with them, in order; some are not modules.
    """

    certain: Sequence[str]
    possible: Mapping[str, int]
    relative: Sequence[tuple[int, str]]
    entries: Sequence[tuple[str, ...]]
    commands: Sequence[tuple[str, ...]]
    unclear: Sequence[str]
    changes_path: bool
    required: Mapping[str, "Required"]
    loaded: Sequence[str]


class Required(NamedTuple):
    """The place where a module is required: ``line``. Nothing after the line ``until`` has run before it."""

    line: int
    until: int


def of_text(text: bytes, main: bool, executable: str) -> ModuleImports | None:
    """Return the imports of a source text, or None if it is too long, or nested too deeply.

    Args:
        text: the content of the file.
        main: whether it runs as a script.
        executable: the path of the Python that runs it.

    Raises:
        SyntaxError: deployer's own Python cannot parse it.
    """
    if len(text) > MAX_TEXT:
        return None
    try:
        tree = ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError):
            raise
        return None
    reached = list(_reached(tree, main))
    certain = [node for node, _, _ in reached]
    surely = set(map(id, certain))
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    commands: list[tuple[str, ...]] = []
    unclear: list[str] = []
    named: list[tuple[str, int]] = []
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Call):
            _called(node, imported, executable, commands, unclear, named)
    required: dict[str, Required] = {}
    for node, sure, until in reached:
        for name in _modules(node) if sure else ():
            required.setdefault(name, Required(node.lineno, until))
    possible: dict[str, int] = {}
    for name, line in [*((name, n.lineno) for n in imports if id(n) not in surely for name in _names(n)), *named]:
        possible[name] = min(line, possible.get(name, line))
    return ModuleImports(
        [name for node in certain for name in _names(node)],
        possible,
        [each for node in imports if isinstance(node, ast.ImportFrom) and node.level for each in _relative(node)],
        [entry for node in nodes if isinstance(node, ast.Call) for entry in _entries(node)],
        commands,
        list(dict.fromkeys(unclear)),
        _changes_path(nodes, imports),
        required,
        [name for node, sure, _ in reached if sure for name in _names(node)],
    )


def _entries(node: ast.Call) -> Iterator[tuple[str, ...]]:
    """Yield the entry point that a call loads, as setuptools scripts do: DISTRIBUTION==VERSION, group, name."""
    if _name(node.func).rpartition(".")[2] == "load_entry_point":
        words = [_constant(word) for word in node.args]
        if len(words) == _WORDS_OF_ENTRY and all(words):
            yield tuple(word for word in words if word)


def _changes_path(nodes: Sequence[ast.AST], imports: Sequence[ast.Import | ast.ImportFrom]) -> bool:
    """Return whether a source text uses names that affect where and how modules are found."""
    aliases = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "sys"}
    parts = {alias.name for node in imports if isinstance(node, ast.ImportFrom) for alias in node.names}
    if not parts.isdisjoint((*_IMPORT_SYSTEM, "modules")) or any(
        isinstance(node, ast.ImportFrom) and node.module == "sys" and any(alias.name == "path" for alias in node.names)
        for node in imports
    ):
        return True
    return any(
        isinstance(node, ast.Attribute)
        and (
            node.attr in _IMPORT_SYSTEM
            or (node.attr in ("path", "modules") and isinstance(node.value, ast.Name) and node.value.id in aliases)
        )
        for node in nodes
    )


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import statement names, without the names that it imports from them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


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


def _reached(tree: ast.Module, main: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, int]]:
    """Yield the imports that always run with the module: at its top level, and in functions called there.

    Each comes with a flag and a line. The flag states that nothing before the import can end or guard the program, so
    that the program fails without the module. No code of the module after the line has run before the import.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    ending = _ending(functions, tree)
    called: set[str] = set()
    # Also: whether it is guarded, and the last line of the top-level statement that calls its function.
    todo: list[tuple[ast.stmt | None, bool, int]] = [(node, False, 0) for node in tree.body[::-1]]
    sure = True
    while todo:
        node, guarded, until = todo.pop()
        if node is None:
            sure = False
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, sure and not guarded, until or node.lineno
        elif isinstance(node, (ast.With, ast.ClassDef)):
            todo += [(inner, True, until) for inner in node.body[::-1]]
        elif isinstance(node, ast.If) and main and _is_main(node.test):
            todo += [(inner, guarded, until) for inner in node.body[::-1]]
        elif isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return, ast.Raise)):
            names = [name for name in _calls(node) if name in functions and name not in called]
            called.update(names)
            plain = len(names) == 1 and not _is_special(functions[names[0]])
            if _may_end(node, ending):
                todo.append((None, guarded, until))
            last = until or node.end_lineno or node.lineno
            todo += [(inner, guarded or not plain, last) for name in names for inner in functions[name].body[::-1]]
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            sure = sure and not _may_end(node, ending)


def _is_special(function: ast.FunctionDef) -> bool:
    """Return whether a call to a function may not run its body from the beginning."""
    within = (node for statement in function.body for node in ast.walk(statement))
    return bool(function.decorator_list) or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in within)


def _ending(functions: Mapping[str, ast.FunctionDef], tree: ast.Module) -> frozenset[str]:
    """Return the functions of a module, including imported ones by their local names, that may end the program."""
    aliases = (alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names)
    found = frozenset(alias.asname for alias in aliases if alias.asname and _ENDS.search(alias.name))
    while True:
        more = found | {name for name, function in functions.items() if _may_end(function, found)}
        if more == found:
            return found
        found = more


def _may_end(node: ast.AST, ending: Collection[str]) -> bool:
    """Return whether a statement may end the program or the enclosing function other than by a failed import."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Raise, ast.Return)):
            return True
        if isinstance(inner, ast.Call):
            name = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
            if name in ending or _ENDS.search(name):
                return True
    return False


def _calls(node: ast.AST) -> list[str]:
    """Return the functions that a statement always calls."""
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
    """Return a dotted name; empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *parts[::-1]])


def _called(
    node: ast.Call, imported: set[str], executable: str,
    commands: list[tuple[str, ...]], unclear: list[str], named: list[tuple[str, int]],
) -> None:  # fmt: skip
    """Add the programs and modules that a call starts or imports through a name in a string."""
    name = _name(node.func)
    first = node.args[0] if node.args else None
    last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    module = name.rpartition(".")[0]
    if last in ("import_module", "__import__"):
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            named.append((first.value, node.lineno))
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
