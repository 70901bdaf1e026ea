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
#: Expressions of which some parts may not be evaluated.
_NOT_ALWAYS = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
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
    calls = _Calls(executable, {alias.asname or alias.name for node in imports for alias in node.names})
    for node in nodes:
        if isinstance(node, ast.Call):
            calls.add(node)
    required: dict[str, Required] = {}
    for node, sure, until in reached:
        for name in _names(node, inner=False) if sure else ():
            required.setdefault(name, Required(node.lineno, until))
    possible: dict[str, int] = {}
    in_statements = [(name, node.lineno) for node in imports if id(node) not in surely for name in _names(node)]
    for name, line in [*in_statements, *calls.modules]:
        possible[name] = min(line, possible.get(name, line))
    return ModuleImports(
        certain=[name for node in certain for name in _names(node)],
        possible=possible,
        relative=[name for node in imports for name in _relative(node)],
        entries=calls.entries,
        commands=calls.commands,
        unclear=list(dict.fromkeys(calls.unclear)),
        changes_path=_changes_path(nodes, imports),
        required=required,
        loaded=[name for node, sure, _ in reached if sure for name in _names(node)],
    )


def _changes_path(nodes: Sequence[ast.AST], imports: Sequence[ast.Import | ast.ImportFrom]) -> bool:
    """Return whether a source text uses names that affect where and how modules are found."""
    aliases = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "sys"}
    taken = [(node.module, alias.name) for node in imports if isinstance(node, ast.ImportFrom) for alias in node.names]
    if ("sys", "path") in taken or any(name in (*_IMPORT_SYSTEM, "modules") for _, name in taken):
        return True
    attributes = [(node.attr, node.value) for node in nodes if isinstance(node, ast.Attribute)]
    of_sys = {name for name, value in attributes if isinstance(value, ast.Name) and value.id in aliases}
    return not of_sys.isdisjoint(("path", "modules")) or any(name in _IMPORT_SYSTEM for name, _ in attributes)


def _names(node: ast.Import | ast.ImportFrom, inner: bool = True) -> list[str]:
    """Return the modules that an import statement names; with ``inner``, the names that it imports from them too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level or not node.module:
        return []
    inside = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*"]
    return [node.module, *(inside if inner else ())]


def _relative(node: ast.Import | ast.ImportFrom) -> list[tuple[int, str]]:
    if isinstance(node, ast.Import) or not node.level:
        return []
    above = f"{node.module}." if node.module else ""
    names = [node.module or "", *(above + alias.name for alias in node.names)]
    return [(node.level, name) for name in names if name]


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
        elif isinstance(node, ast.If) and main and ast.unparse(node.test) == "__name__ == '__main__'":
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
    ending = frozenset(alias.asname for alias in aliases if alias.asname and _ENDS.search(alias.name))
    while True:
        more = ending | {name for name, function in functions.items() if _may_end(function, ending)}
        if more == ending:
            return ending
        ending = more


def _may_end(node: ast.AST, ending: Collection[str]) -> bool:
    """Return whether a statement may end the program or the enclosing function other than by a failed import."""
    functions = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    names = [call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in functions]
    ends = any(name in ending or _ENDS.search(name) for name in names)
    return ends or any(isinstance(inner, (ast.Raise, ast.Return)) for inner in ast.walk(node))


def _calls(node: ast.AST) -> list[str]:
    """Return the functions that a statement always calls."""
    nodes = list(ast.walk(node))
    if any(isinstance(inner, _NOT_ALWAYS) for inner in nodes):
        return []
    return [inner.func.id for inner in nodes if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)]


def _name(node: ast.expr) -> str:
    """Return a dotted name; empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *parts[::-1]])


class _Calls:
    """Collects what the calls in a source text start, and import through a name in a string."""

    def __init__(self, executable: str, imported: set[str]) -> None:
        self._executable = executable
        self._imported = imported
        self.commands: list[tuple[str, ...]] = []
        self.unclear: list[str] = []
        self.modules: list[tuple[str, int]] = []
        self.entries: list[tuple[str, ...]] = []

    def add(self, node: ast.Call) -> None:
        """Add a call."""
        name = _name(node.func)
        first = node.args[0] if node.args else None
        module, _, last = name.rpartition(".")
        last = last or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        is_of = {known: module == known or (not module and name in self._imported) for known in ("os", "subprocess")}
        if last in ("import_module", "__import__"):
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self.modules.append((first.value, node.lineno))
            else:
                self.unclear.append(f"line {node.lineno} imports a module by a name that is only known when it runs")
        elif name == "exec" or last in ("run_path", "run_module"):
            self.unclear.append(f"line {node.lineno} runs Python that is only known when it runs")
        elif is_of["subprocess"] and last in _RUNS:
            self._start(node, first, any(word.arg == "shell" for word in node.keywords))
        elif is_of["os"] and _OS.match(last):
            self._start(node, first, last in ("system", "popen"))
        elif last in ("Spawn", "Spawn_multiple") or name == "pexpect.spawn":
            self.unclear.append(f"line {node.lineno} starts programs")
        elif last in ("CDLL", "PyDLL", "LoadLibrary", "dlopen"):
            value = first.value if isinstance(first, ast.Constant) else ""
            if value is not None and not (isinstance(value, str) and _LIBC.match(value)):
                self.unclear.append(f"line {node.lineno} loads a library by its name")
        elif name and last == "load_entry_point":  # in scripts of setuptools: DISTRIBUTION==VERSION, group, name
            words = [word for word in map(_constant, node.args) if word]
            if len(words) == len(node.args) == _WORDS_OF_ENTRY:
                self.entries.append(tuple(words))

    def _start(self, node: ast.Call, first: ast.expr | None, shell: bool) -> None:
        if isinstance(first, (ast.List, ast.Tuple)) and not shell:
            words = [self._executable if _name(word) == "sys.executable" else _constant(word) for word in first.elts]
            if words and None not in words:
                self.commands.append(tuple(word for word in words if word is not None))
                return
        text = _constant(first) if first is not None else None
        if text is not None and shell:
            self.commands.append(("sh", "-c", text))
        else:
            self.unclear.append(f"line {node.lineno} starts programs that are only known when it runs")


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
