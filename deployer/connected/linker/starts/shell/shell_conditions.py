"""Evaluates the conditions of a shell script, and finds nodes within its nodes. Pure."""

import re
from collections.abc import Iterator, Sequence

from deployer.connected.linker.starts.shell.shell_syntax import Node
from deployer.connected.linker.starts.words import UnknownWord, known

_NAME = re.compile(r"[A-Za-z_]\w*")
#: Commands in a condition before && that do not show the normal course.
_TESTS = ("[", "test", "[[", "command", "which", "type", "hash", "grep", "false", "!")


def evaluated(words: Sequence[str]) -> bool | None:
    """Return the result of ``test``; None if it is unknown."""
    if not known(words) and not (len(words) == 2 and known(words[:1])):
        return None
    if words[:1] == ["!"] and len(words) > 1:
        truth = evaluated(words[1:])
        return None if truth is None else not truth
    if len(words) == 2 and words[0] in ("-n", "-z"):
        word = words[1]
        if isinstance(word, UnknownWord):
            return (words[0] == "-n") if word.prefix else None
        return bool(word) == (words[0] == "-n")
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 3 and words[1] in ("=", "==", "!="):
        return (words[0] == words[2]) == (words[1] != "!=")
    if len(words) == 3 and all(re.fullmatch(r"-?[0-9]{1,9}", word) for word in (words[0], words[2])):
        one, two = int(words[0]), int(words[2])
        return {
            "-eq": one == two, "-ne": one != two, "-lt": one < two,
            "-le": one <= two, "-gt": one > two, "-ge": one >= two,
        }.get(words[1])  # fmt: skip
    return None


def may_fail(redirect: Node) -> bool:
    """Return whether a redirection may fail, because it opens a file other than /dev/null."""
    parts = (redirect.get("Word") or {}).get("Parts") or [{}]
    return redirect.get("Op") not in ("<<", "<<-", "<<<", "<&", ">&") and parts[0].get("Value") != "/dev/null"


def is_test(statement: Node) -> bool:
    """Return whether a statement before && is a condition, which makes the normal course uncertain."""
    node = statement.get("Cmd") or {}
    if statement.get("Negated") or node.get("Type") not in ("CallExpr", "DeclClause", "BinaryCmd", "Block", "Subshell"):
        return True
    if node["Type"] == "BinaryCmd":
        return is_test(node["X"]) or is_test(node["Y"])
    parts = (node.get("Args") or [{}])[0].get("Parts") or [{}]
    return node["Type"] == "CallExpr" and parts[0].get("Value") in _TESTS


def simple(nodes: Sequence[Node]) -> Iterator[Node | None]:
    """Yield the calls of consecutive statements; None for anything else."""
    for node in nodes:
        command = node.get("Cmd") or {}
        if node.get("Negated") or node.get("Background"):
            yield None
        elif command.get("Type") == "BinaryCmd" and command.get("Op") == "&&":
            yield from simple([command["X"], command["Y"]])
        elif command.get("Type") == "CallExpr" and not command.get("Assigns"):
            yield command
        else:
            yield None


def inside(node: object) -> Iterator[tuple[str, Node]]:
    """Yield substitutions within a node, and the names that arithmetic and ``${X:=...}`` set.

    Names that are set within substitutions are left out.
    """
    if isinstance(node, list):
        for child in node:
            yield from inside(child)
    elif isinstance(node, dict):
        kind = node.get("Type")
        if kind in ("CmdSubst", "ProcSubst"):
            yield "substitution", node
            return
        if kind == "ParamExp" and (node.get("Exp") or {}).get("Op") in ("=", ":="):
            yield "default", node
        operator = str(node.get("Op", ""))
        if kind in ("BinaryArithm", "UnaryArithm") and (
            operator in ("++", "--") or (operator.endswith("=") and operator not in ("==", "!=", "<=", ">="))
        ):
            for part in (node.get("X") or {}).get("Parts") or []:
                if part.get("Type") == "Lit" and _NAME.fullmatch(str(part["Value"])):
                    yield "arithmetic", part
        for child in node.values():
            yield from inside(child)
