"""The programs that a shell script starts, read from its text as far as that is certain. Nothing is run.

The script's statements are followed in order, with the known variables, arguments and working folder. Both branches are
followed unless their condition is known; values that differ between them are unknown afterwards. Anything that is not
understood is reported as unclear.
"""

import functools
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deployer.connected.linker.starts.removed import Removed
from deployer.connected.linker.starts.shell import shell_syntax
from deployer.connected.linker.starts.shell.shell_conditions import evaluated, inside, is_test, may_fail, simple
from deployer.connected.linker.starts.shell.shell_state import FAILED, NOT_FOUND, State, either, piped
from deployer.connected.linker.starts.shell.shell_syntax import Node, NotReadable
from deployer.connected.linker.starts.shell.shell_variables import ShellVariables
from deployer.connected.linker.starts.shell.shell_words import Words, dirname, joined
from deployer.connected.linker.starts.words import UnknownWord, known, known_or_none

#: The maximum number of statements followed for one job; repeated runs of loops and functions count again.
MAX_STATEMENTS = 4_000
_MAX_DEPTH = 40  # nested functions, sourced files and eval
_PASSES = 3  # over a loop, until the known state no longer changes

#: Shell commands that start nothing, and set nothing that is followed here.
_NOTHING = frozenset((
    ":", "true", "false", "echo", "[", "test", "pwd", "wait", "umask", "ulimit", "kill", "jobs", "bg", "fg", "disown",
    "times", "type", "hash", "logout", "suspend", "history", "caller", "compgen", "complete", "shopt", "bind", "fc",
    "help", "sleep",
))  # fmt: skip
_DECLARING = ("export", "readonly", "local", "declare", "typeset")
#: The exit status of these and other shell commands.
_STATUS = {
    **dict.fromkeys((":", "true", "echo", "sleep", "set", "unset", "printf", "trap", *_DECLARING), 0),
    "false": 1,
}
#: Node types whose failure ends a shell with ``set -e``.
_STOPPING = ("CallExpr", "Subshell", "TestClause", "ArithmCmd", "LetClause", "DeclClause")
#: Commands that set the status in other ways: through the text that they read, or their argument.
_OWN_STATUS = (".", "source", "eval", "exit", "return", "break", "continue", "exec", "command", "builtin")
#: Special commands, which functions cannot replace in every shell.
_SPECIAL = frozenset((*_OWN_STATUS, *_DECLARING, ":", "set", "shift", "trap", "unset"))
#: The function that bash runs if it does not find a command.
_HANDLER = "command_not_found_handle"
#: Commands that read code in a way that is not followed.
_UNCLEAR = ("alias", "enable", "mapfile", "readarray")


class Context(NamedTuple):
    """The state in which a command starts.

    Attributes:
        environment: the variables that the program receives.
        path: PATH; None if unknown.
        folder: the working folder; None if unknown.
        via: the wrappers and scripts that start it.
        certain: whether it starts whenever the script runs.
        stdin: the text that it reads as its input; None if unknown.
        removed: variables that were unset before.
        alone: whether no script runs before it.
    """

    environment: Mapping[str, str]
    path: str | None
    folder: str | None
    via: tuple[str, ...] = ()
    certain: bool = True
    stdin: str | None = None
    removed: frozenset[Removed] = frozenset()
    alone: bool = True


class Reader(NamedTuple):
    """The callbacks and settings that a script needs.

    Attributes:
        start: called with each command that is not a shell command, and its line; returns its status, or None.
        unclear: called with a reason and a line.
        content: takes a sourced file, the folder and PATH; returns the file's text, or raises NotReadable.
        located: takes a program's name, the folder and PATH; returns the program's path, or None if unknown.
        budget: yields for each statement that may still be followed, in all scripts of the job.
        normal: whether commands before ``&&`` succeed, except conditions and commands that are known to fail.
    """

    start: Callable[[list[str], Context, int], int | None]
    unclear: Callable[[str, int], None]
    content: Callable[[str, str | None, str | None], tuple[str, str]]
    located: Callable[[str, str | None, str | None], str | None]
    budget: Iterator[int]
    normal: bool = False


class Script(ShellVariables):
    """Follows a script, starting from a given state."""

    def __init__(self, reader: Reader, dialect: str) -> None:
        self._reader = reader
        self._dialect = dialect
        self._words = Words(self._output)
        self._muted = 0
        self._depth = 0
        self._line = 1
        self._loops: list[list[State]] = []
        self._returns: list[list[State]] = []
        self._ends: list[list[int | None]] = []  # possible statuses of each shell that ends before its text does

    def run(self, text: str, state: State) -> int | None:
        """Follow everything that a shell runs. Return its status, or None if unknown. Raises NotReadable."""
        return self._shell(lambda within: self.follow(text, within), state)

    def follow(self, text: str, state: State) -> None:
        """Follow a text to its end. Raises NotReadable."""
        self._statements(shell_syntax.statements(text, self._dialect), state)

    def _shell(self, follow: Callable[[State], None], state: State) -> int | None:
        """Follow what a separate shell runs. Return its status."""
        within = state.copy()
        self._ends.append([])
        follow(within)
        return either([*self._ends.pop(), *([within.status] if within.alive else [])])

    def _end(self, status: int | None) -> None:
        """Record that this shell may end here."""
        if not self._muted:
            self._ends[-1].append(status)

    # ------------------------------------------------------------------------------------------------ statements

    def _statements(self, nodes: Sequence[Node], state: State) -> None:
        for node in nodes:
            if not state.alive:
                break
            self._statement(node, state)

    def _tested(self, nodes: Sequence[Node], state: State) -> None:
        """Follow statements of which only the status is used."""
        tested, state.tested = state.tested, True
        self._statements(nodes, state)
        state.tested = tested

    def _statement(self, node: Node, state: State) -> None:
        if next(self._reader.budget, None) is None:
            raise NotReadable(f"it runs more than {MAX_STATEMENTS} statements")
        self._line = node.get("Position", {}).get("Line", self._line)
        redirects = node.get("Redirs") or []
        for redirect in redirects:
            self._nested(redirect, state)
        if not node.get("Cmd"):
            state.status = None
            return
        state.stdin = self._input(redirects, state)
        if node.get("Background") or node.get("Coprocess"):
            self._shell(lambda within: self._command(node["Cmd"], within), state)
            state.status = 0
            return
        tested, state.tested = state.tested, bool(state.tested or node.get("Negated"))
        self._command(node["Cmd"], state)
        state.tested = tested
        if node.get("Negated") and state.alive:
            state.status = _status(None if state.status is None else state.status != 0)
        if node.get("Negated") or not state.alive:
            return
        if state.status == 0 and any(map(may_fail, redirects)):
            state.status = None
        if state.stops and not tested and (node["Cmd"]["Type"] in _STOPPING or node["Cmd"].get("Op") in ("|", "|&")):
            if state.status != 0:
                self._end(state.status or FAILED)
            state.alive = not state.status
            state.status = 0

    def _input(self, redirects: Sequence[Node], state: State) -> str | None:
        """Return the text that redirections pass to a command as its input; None if there is none."""
        stdin = None
        for redirect in redirects:
            if redirect.get("Op") in ("<<", "<<-"):
                stdin = self._words.heredoc(redirect, state)
            elif redirect.get("Op") == "<<<":
                stdin = self._words.text(redirect.get("Word"), state)
            elif redirect.get("Op") in ("<", "<>", "<&"):
                stdin = UnknownWord("a file as its input")
        return stdin

    def _command(self, node: Node, state: State) -> None:
        kind = node["Type"]
        if kind in ("ArithmCmd", "LetClause", "TestClause"):
            self._nested(node, state)
            state.status = _status(self._clause(node.get("X") or {}, state) if kind == "TestClause" else None)
        elif kind == "Block":
            self._statements(node.get("Stmts") or [], state)
        elif kind == "Subshell":
            state.status = self._shell(lambda within: self._statements(node.get("Stmts") or [], within), state)
        elif kind == "TimeClause":
            self._statements([node["Stmt"]] if node.get("Stmt") else [], state)
        elif kind in self._compound:
            self._compound[kind](node, state)
        else:
            self._not_followed(f"{kind} is not understood", state)

    @property
    def _compound(self) -> Mapping[str, Callable[[Node, State], None]]:
        return {
            "BinaryCmd": self._binary, "CallExpr": self._call, "CaseClause": self._case, "DeclClause": self._declare,
            "ForClause": self._loop, "FuncDecl": self._define, "IfClause": self._if, "WhileClause": self._loop,
        }  # fmt: skip

    def _define(self, node: Node, state: State) -> None:
        name = str((node.get("Name") or {}).get("Value", ""))
        if name in _SPECIAL or not name:
            self._unclear(f"it defines a function called {name}")
        state.functions[name] = node["Body"]
        state.status = 0

    def _binary(self, node: Node, state: State) -> None:
        operator = node.get("Op")
        if operator in ("|", "|&"):
            first = self._shell(lambda within: self._statement(node["X"], within), state)
            if (node["Y"].get("Cmd") or {}).get("Type") == "TimeClause":  # here, time is a program's name
                self._unclear("time within a pipeline is not followed")
            last = self._shell(lambda within: self._statement(node["Y"], within), state)
            state.status = piped([first, last]) if state.pipefail else last
            return
        needed = operator == "&&"
        self._tested([node["X"]], state)
        if not state.alive:
            return
        normal = needed and not is_test(node["X"])
        if state.status is None and normal and self._reader.normal:
            state.status = 0
        if state.status is not None:
            if (state.status == 0) == needed:
                self._statement(node["Y"], state)
            return
        after = state.copy()
        after.status, state.status = (0, FAILED) if needed else (FAILED, 0)
        after.certain = state.certain and normal
        self._statement(node["Y"], after)
        state.merge([state.copy(), after], state.certain)

    def _if(self, node: Node, state: State) -> None:
        condition = node.get("Cond") or []
        if not condition:  # else
            self._statements(node.get("Then") or [], state)
            return
        self._tested(condition, state)
        if not state.alive:
            return
        other, status, certain = node.get("Else"), state.status, state.certain
        one, two = (state, state) if status is not None else (state.copy(), state.copy())
        if status is None:
            one.certain = two.certain = False
        if not status:
            one.status = 0
            self._statements(node.get("Then") or [], one)
        if status != 0:
            two.status = (status or FAILED) if other else 0
            if other:
                self._if(other, two)
        if status is None:
            state.merge([one, two], certain)

    def _case(self, node: Node, state: State) -> None:
        self._nested(node.get("Word") or {}, state)
        word = self._words.text(node.get("Word"), state)
        certain, branches = state.certain, list[State]()
        state.status = 0
        sure = True  # whether all patterns so far certainly do not match
        falls = False  # from the previous item, through ;&
        for item in node.get("Items") or []:
            matches: list[bool | None] = [self._words.matches(word, pattern, state) for pattern in item["Patterns"]]
            if all(match is False for match in matches) and not falls:
                continue
            here = state.copy()
            here.certain = certain and sure and True in matches and not branches
            self._statements(item.get("Stmts") or [], here)
            branches.append(here)
            falls = item.get("Op") != ";;"
            if True in matches and not falls and None not in matches[: matches.index(True)]:
                break
            sure = sure and not falls and None not in matches and True not in matches
        else:
            branches.append(state.copy())
        state.merge(branches, certain)

    def _loop(self, node: Node, state: State) -> None:
        certain = state.certain
        loop = node.get("Loop") or {}
        self._nested(loop, state)
        if node["Type"] == "WhileClause":
            self._tested(node.get("Cond") or [], state)
            if not state.alive:
                return
        items: list[str] | None = None
        if loop.get("Type") == "WordIter" and not node.get("Select"):
            if loop.get("Items") or loop.get("InPos", {}).get("Line"):
                items = self._words.fields(loop.get("Items") or [], state)
            elif state.arguments is not None:
                items = list(state.arguments)
        name = str((loop.get("Name") or {}).get("Value", ""))
        if items is not None and known(items) and len(items) <= 32:
            self._unrolled(node, name, items, state)
            return
        # The common prefix of all items, such as the variable names from ``${!PMI*}``.
        prefixes = [item.prefix for item in items or () if isinstance(item, UnknownWord) and item.startswith("${!")]
        prefix = posixpath.commonprefix(prefixes) if len(prefixes) == len(items or ()) else ""
        value = UnknownWord(f"${name}", prefix)
        state.certain = False
        self._muted += 1
        for _ in range(_PASSES):  # find the changes that the loop makes
            before = (dict(state.variables), state.arguments, state.folder, dict(state.functions))
            self._pass(node, name, value, state)
            if before == (state.variables, state.arguments, state.folder, state.functions):
                break
        else:
            self._forget(state)
        self._muted -= 1
        self._pass(node, name, value, state)
        state.certain = certain
        state.alive = True
        state.status = None

    def _pass(self, node: Node, name: str, value: str, state: State) -> None:
        """Follow the body of a loop once; the body may or may not run."""
        body = state.copy()
        if name:
            body.variables[name] = value
        self._loops.append([])
        self._statements(node.get("Do") or [], body)
        if node["Type"] == "WhileClause" and body.alive:
            self._tested(node.get("Cond") or [], body)
        state.become([state.copy(), body, *self._loops.pop()])

    def _unrolled(self, node: Node, name: str, items: Sequence[str], state: State) -> None:
        left: list[State] = []
        certain = state.certain
        state.status = 0
        for item in items:
            state.variables[name] = item
            self._loops.append([])
            self._statements(node.get("Do") or [], state)
            escaped = self._loops.pop()
            if escaped:  # by break or continue: the loop continues or ends
                left += [other.copy() for other in escaped]
                state.become([state.copy(), *escaped])
                state.certain = False
            if not state.alive:
                break
        state.merge([state.copy(), *left], certain)

    # -------------------------------------------------------------------------------------------------- commands

    def _call(self, node: Node, state: State) -> None:
        arguments, assigns, line = node.get("Args") or [], node.get("Assigns") or [], self._line
        status = self._nested({"Args": arguments, "Assigns": assigns}, state)
        self._line = line
        words = self._words.fields(arguments, state)
        names = [str(assign["Name"]["Value"]) for assign in assigns]
        saved, exported = {name: state.variables.get(name) for name in names}, state.exported
        for assign in assigns:
            self._assign(assign, state)
        if not words:
            state.status = status
            return
        stays = words[0] in _SPECIAL or words[0] in state.functions
        state.exported |= frozenset(names)
        self._run(words, state)
        if not stays:
            state.exported = exported
        for name, value in saved.items():
            if stays:
                state.variables[name] = UnknownWord(f"${name}")
            elif value is None:
                state.variables.pop(name, None)
            else:
                state.variables[name] = value

    def _run(self, words: list[str], state: State, functions: bool = True) -> None:
        name = words[0]
        if functions and name in state.functions:
            self._function(name, words[1:], state)
        elif name in self._builtins:
            self._builtins[name](words, state)
            if name not in _OWN_STATUS:
                state.status = _STATUS.get(name)
        elif name in _UNCLEAR:
            self._not_followed(f"{name} is not followed", state)
        elif name in ("test", "["):
            state.status = _status(evaluated(words[1:-1] if name == "[" else words[1:]))
        elif name in _NOTHING:
            state.status = _STATUS.get(name)
        else:
            self._start(words, state)

    @property
    def _builtins(self) -> Mapping[str, Callable[[list[str], State], None]]:
        """The shell commands that start a program or set a value."""
        return {
            ".": self._source, "source": self._source, "eval": self._eval, "trap": self._trap,
            "exit": self._leave, "return": self._leave, "break": self._leave, "continue": self._leave,
            "cd": self._cd, "pushd": self._pushd, "popd": self._popd, "shift": self._shift, "set": self._set,
            "read": self._read, "getopts": self._read, "unset": self._unset, "printf": self._printf,
            "exec": self._exec, "command": self._named, "builtin": self._named,
            **dict.fromkeys(_DECLARING, self._export_words),
        }  # fmt: skip

    def _start(self, words: list[str], state: State) -> None:
        if isinstance(words[0], UnknownWord):
            self._unclear(f"the command is {words[0]}, which is only known when it runs")
        if isinstance(words[0], UnknownWord) or self._muted:
            state.status = None
            return
        path = known_or_none(state.variables.get("PATH"))
        context = Context(
            state.environment(), path, state.folder, certain=state.certain, stdin=state.stdin, removed=state.removed,
            alone=False,
        )  # fmt: skip
        state.status = self._reader.start(words, context, self._line)
        if state.status == NOT_FOUND and _HANDLER in state.functions:
            state.status = None

    def _unclear(self, reason: str) -> None:
        if not self._muted:
            self._reader.unclear(reason, self._line)

    def _not_followed(self, reason: str, state: State) -> None:
        """Report a command that is not followed, so that its status is unknown."""
        self._unclear(reason)
        state.status = None

    def _function(self, name: str, words: Sequence[str], state: State) -> None:
        body = state.functions[name]
        if body is None:
            self._not_followed(f"{name} is one of several functions", state)
            return
        arguments = state.arguments
        state.arguments = tuple(words)
        self._until_return(lambda: self._statement(body, state), state)
        state.arguments = arguments

    def _deeper(self, follow: Callable[[], None]) -> None:
        """Follow a text within another one."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotReadable(f"more than {_MAX_DEPTH} functions, sourced files and eval in each other")
        line = self._line
        follow()
        self._depth, self._line = self._depth - 1, line

    def _until_return(self, follow: Callable[[], None], state: State) -> None:
        """Follow a function or a sourced file, which ``return`` ends."""
        certain = state.certain
        self._returns.append([])
        loops, self._loops = self._loops, []
        self._deeper(follow)
        self._loops = loops
        escaped = self._returns.pop()
        if escaped:
            state.merge([state.copy(), *escaped], certain)

    def _leave(self, words: list[str], state: State) -> None:
        """Follow ``exit``, ``return``, ``break`` and ``continue``."""
        name, words = words[0], words[1:]
        if name in ("break", "continue"):
            state.status = 0
        elif words:
            state.status = int(words[0]) if known(words[:1]) and words[0].isdecimal() else None
        if name == "exit" or (name == "return" and not self._returns):
            state.ended = words[:1] in ([], ["0"])
            self._end(state.status)
        elif name == "return":
            self._returns[-1].append(state.copy())
        elif self._loops:
            for loop in self._loops:  # with nested loops, the target loop is not determined
                loop.append(state.copy())
        else:
            return
        state.alive = False

    def _exec(self, words: list[str], state: State) -> None:
        words = words[1:]
        while words and words[0].startswith("-") and not isinstance(words[0], UnknownWord):
            option = words.pop(0)
            if option == "-a":
                words = words[1:]
            elif option not in ("--", "-l"):
                self._not_followed(f"exec {option} is not followed", state)
                return
        state.status = 0
        if words:
            self._start(words, state)
            self._end(state.status)
            state.alive, state.ended = False, True

    def _named(self, words: list[str], state: State) -> None:
        """Follow ``command`` and ``builtin``."""
        rest = words[2:] if words[1:2] == ["--"] else words[1:]
        state.status = None if rest else 0
        if rest and rest[0].startswith("-") and rest[0] not in ("-v", "-V"):
            self._unclear(f"{words[0]} {rest[0]} is not followed")
        elif rest and not rest[0].startswith("-"):
            self._run(rest, state, functions=False)

    def _eval(self, words: list[str], state: State) -> None:
        text = joined([part for word in words[1:] for part in (word, " ")])
        if isinstance(text, UnknownWord):
            self._not_followed(f"{words[0]} runs a text that is only known then", state)
            if "unset" in text:
                state.removed |= {Removed("*", False, f"{words[0]} {text.strip()}")}
        else:
            if not text.strip():
                state.status = 0
            self._deeper(lambda: self.follow(text, state))

    def _source(self, words: list[str], state: State) -> None:
        if len(words) < 2:
            state.status = None
            return
        if self._dialect == "posix" and words[0] == "source":
            self._unclear("source is a command of bash, not of sh")
        name = words[1]
        path = state.variables.get("PATH")
        try:
            if isinstance(name, UnknownWord):
                raise NotReadable("its name is only known when it runs")
            file, text = self._reader.content(name, state.folder, path if isinstance(path, str) else None)
        except NotReadable as error:
            self._not_followed(f"it reads {name}: {error}", state)
            self._lost(state)
            return
        arguments, before = state.arguments, state.file
        if len(words) > 2 and self._dialect != "posix":
            state.arguments = tuple(words[2:])
        state.file = file
        self._until_return(lambda: self.follow(text, state), state)
        state.file = before
        if len(words) > 2:
            state.arguments = arguments

    def _trap(self, words: list[str], state: State) -> None:
        rest = [word for word in words[1:] if word != "--"]
        if len(rest) < 2 or rest[0] in ("", "-") or rest[0].startswith("-"):
            return
        after = state.copy()
        after.certain, after.tested = False, True
        self._ends.append([])
        self._eval(["trap", rest[0]], after)
        if not all(self._ends.pop()):  # the shell may end without an error
            self._end(None)

    # -------------------------------------------------------------------------------------- what is within words

    def _nested(self, node: Node, state: State) -> int | None:
        """Follow what words, tests and arithmetic start; forget what they set. Return the last one's status."""
        status: int | None = 0
        for kind, inner in inside(node):
            if kind == "arithmetic":
                state.variables[str(inner["Value"])] = UnknownWord(f"${inner['Value']}", single=True)
            elif kind == "default":
                name = str(inner["Param"]["Value"])
                value = self._words.fields([{"Parts": [{"Type": "DblQuoted", "Parts": [inner]}]}], state)
                state.variables[name] = value[0] if len(value) == 1 else UnknownWord(f"${name}")
            else:
                within = state.copy()
                within.stops = state.stops and self._dialect != "bash"  # bash does not inherit it
                printed = self._shell(functools.partial(self._statements, inner.get("Stmts") or []), within)
                status = printed if inner["Type"] == "CmdSubst" else status
        return status

    def _output(self, nodes: Sequence[Node], state: State) -> str:
        """Return the output of a command substitution, if it is certain; nothing is started here."""
        unknown = UnknownWord("$(...)")
        calls = list(simple(nodes))
        if not calls or any(call is None for call in calls):
            return unknown
        within = state.copy()
        *before, last = [(call or {}).get("Args") or [] for call in calls]
        for arguments in before:
            words = self._words.fields(arguments, within)
            if words[:1] != ["cd"] or not known(words):
                return unknown
            self._cd(words, within)
        words = self._words.fields(last, within)
        printed = self._printed(words, within) if words and words[0] not in state.functions else None
        return printed or unknown

    def _printed(self, words: list[str], state: State) -> str | None:
        """Return the output of some well-known programs."""
        name, rest = words[0], [word for word in words[1:] if word != "--"]
        if isinstance(name, UnknownWord):
            return None
        if name == "nproc" or (name == "id" and rest in (["-u"], ["-g"])):
            return UnknownWord(f"$({name})", single=True)
        if name in ("hostname", "uname", "date", "mktemp") or not known(rest):
            return UnknownWord(f"$({name})")
        if name == "dirname" and len(rest) == 1:
            return dirname(rest[0])
        if name == "basename" and len(rest) in (1, 2):
            base = posixpath.basename(rest[0].rstrip("/")) or "/"
            return base.removesuffix(rest[1]) if rest[1:] and base != rest[1] else base
        if name == "pwd" and rest in ([], ["-P"], ["-L"]):
            return state.folder
        if name == "echo" and rest and not rest[0].startswith("-") and not any("\\" in word for word in rest):
            return " ".join(rest).rstrip("\n")
        path = known_or_none(state.variables.get("PATH"))
        if (name == "which" and len(rest) == 1) or (name == "command" and rest[:1] == ["-v"] and len(rest) == 2):
            return self._reader.located(rest[-1], state.folder, path)
        if name in ("realpath", "readlink"):
            rest = [word for word in rest if word not in ("-f", "-e", "-m")]
            if len(rest) == 1 and (name == "realpath" or len(words) > 2):
                return self._reader.located(rest[0] if "/" in rest[0] else f"./{rest[0]}", state.folder, path)
        return None

    def _clause(self, node: Node, state: State) -> bool | None:
        """Return whether ``[[ ... ]]`` is true, for the simplest tests."""
        if node.get("Type") == "UnaryTest" and node.get("Op") in ("-z", "-n"):
            return evaluated([str(node["Op"]), self._words.text(node["X"], state)])
        if node.get("Type") == "BinaryTest" and node.get("Op") in ("==", "=", "!="):
            word = self._words.text(node["X"], state)
            matches = self._words.matches(word, node["Y"], state)
            return matches if node["Op"] != "!=" or matches is None else not matches
        return None


def _status(truth: bool | None) -> int | None:
    """Return the exit status of a condition."""
    return None if truth is None else int(not truth)
