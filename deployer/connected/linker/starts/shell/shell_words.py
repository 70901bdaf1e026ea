"""Expands the words of a shell command as far as they are certain. Pure, except for the lookup of a program's path."""

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Callable, Sequence

from deployer.connected.linker.starts.shell.shell_state import FAILED, State, VariableValue
from deployer.connected.linker.starts.shell.shell_syntax import Node
from deployer.connected.linker.starts.words import UnknownWord

#: The maximum length of a value.
_MAX_VALUE = 64 * 1024
_MAX_FIELDS = 4096
_GLOB = re.compile(r"(?<!\\)(?:[*?]|\[.*\])|\{[^}]*(?:,|\.\.)|^~|:~|[@!+]\(")
_BLANK = re.compile(r"[ \t\n]+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_QUOTED_ESCAPE = re.compile(r'\\(?:([$`"\\])|\n)')
_HEREDOC_ESCAPE = re.compile(r"\\(?:([$`\\])|\n)")
#: Parameters, and variables of launchers, that are always numbers.
_NUMBERS = ("?", "$", "!", "RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID")
_RANKS = re.compile(r"(SLURM|PMI|PMIX|MPI|OMPI|PALS|FLUX|MV2|I_MPI)_[A-Z_]*(ID|RANK|SIZE|NTASKS|NPROCS|CPUS_PER_TASK)$")
#: Prefixes of names that the launcher, the runtime or deployer sets.
_SET_OUTSIDE = re.compile(r"(SLURM|PMI|PMIX|OMPI|PRTE|HYD|MPI|I_MPI|MV2|FI|UCX|OMP|KMP|GOMP|DEPLOYER|CUDA|MPICH)")

#: Returns the output of a command substitution.
Output = Callable[[Sequence[Node], State], str]


class Words:
    """Expands words in a state."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def fields(self, words: Sequence[Node], state: State) -> list[str]:
        """Return the fields that a command's words expand to; unknown fields are UnknownWord."""
        fields: list[str] = []
        for word in words:
            fields += self._fields(word, state)
            if len(fields) > _MAX_FIELDS:
                return [*fields[:_MAX_FIELDS], UnknownWord("more words than are read")]
        return fields

    def text(self, word: Node | None, state: State) -> str:
        """Return the text of a word that is not split, for example in an assignment."""
        return joined([_flat(self._piece(part, state, False)) for part in (word or {}).get("Parts", [])])

    def heredoc(self, redirect: Node, state: State) -> str:
        """Return the text of a here document."""
        word = redirect["Word"]
        raw = any(part["Type"] != "Lit" or "\\" in part["Value"] for part in word["Parts"])
        pieces = []
        for part in (redirect.get("Hdoc") or {}).get("Parts", []):
            if part["Type"] == "Lit":
                pieces.append(part["Value"] if raw else _unescaped(_HEREDOC_ESCAPE, part["Value"]))
            else:
                pieces.append(_flat(self._piece(part, state, True)))
        return joined(pieces)

    def _fields(self, word: Node, state: State) -> list[str]:
        fields: list[list[str]] = []
        begun = False  # whether the next piece continues the last field
        for part in word.get("Parts", []):
            quoted = part["Type"] in ("DblQuoted", "SglQuoted")
            for piece, joins, ends in self._split(part, state, quoted):
                if begun and joins and fields:
                    fields[-1].append(piece)
                else:
                    fields.append([piece])
                begun = not ends
        return [joined(pieces) for pieces in fields]

    def _split(self, part: Node, state: State, quoted: bool) -> list[tuple[str, bool, bool]]:
        """Return the pieces of a part: the text, whether it joins the previous field, whether it ends its field."""
        if part["Type"] == "DblQuoted":
            pieces = [self._piece(inner, state, True) for inner in part.get("Parts") or []]
            texts = [piece for piece in pieces if isinstance(piece, str)]
            return _spliced(pieces) if len(texts) < len(pieces) else [(one_word(joined(texts)), True, False)]
        piece = self._piece(part, state, quoted)
        if isinstance(piece, tuple):
            if not any(_GLOB.search(text) or _BLANK.search(text) or text == "" for text in piece):
                return _spliced([piece])
            piece = UnknownWord("$@") if any(isinstance(text, UnknownWord) for text in piece) else " ".join(piece)
        if part["Type"] in ("Lit", "SglQuoted") or isinstance(piece, UnknownWord):
            return [(piece, True, False)]
        if _GLOB.search(piece) or "IFS" in state.variables or (piece and not piece.strip(" \t\n")):
            return [(UnknownWord(shown(part)), True, False)]
        return [split for split in _spliced([tuple(_BLANK.split(piece))]) if split[0]]

    def _piece(self, part: Node, state: State, quoted: bool) -> str | tuple[str, ...]:
        """Return the value of a part of a word; a tuple for several fields."""
        kind = part["Type"]
        if kind == "Lit":
            value = str(part["Value"])
            if quoted:
                return _unescaped(_QUOTED_ESCAPE, value)
            return UnknownWord(value) if _GLOB.search(value) else _ESCAPE.sub(r"\1", value)
        if kind == "SglQuoted":
            value = str(part.get("Value", ""))
            return UnknownWord(value) if part.get("Dollar") and "\\" in value else value
        if kind == "DblQuoted":
            if part.get("Dollar"):
                return UnknownWord('$"..."')
            return joined([_flat(self._piece(inner, state, True)) for inner in part.get("Parts") or []])
        if kind == "ParamExp":
            return self._parameter(part, state, quoted)
        if kind == "ArithmExp":
            return UnknownWord("$((...))", single=True)
        if kind == "CmdSubst":
            return self._output(part.get("Stmts") or [], state)
        return UnknownWord(kind)

    def _parameter(self, part: Node, state: State, quoted: bool) -> str | tuple[str, ...]:
        name = str((part.get("Param") or {}).get("Value", ""))
        source = shown(part)
        if part.get("Names"):  # ${!PMI*}: the names of variables
            return UnknownWord(f"${{!{name}@}}", name)
        if any(part.get(key) for key in ("Excl", "Width", "Repl", "Modifiers", "NestedParam", "Flags")):
            return UnknownWord(source)
        value = self._value(name, part.get("Index"), state)
        if part.get("Length"):
            return UnknownWord(source, single=True)
        if part.get("Slice") or part.get("Exp"):
            if part.get("Slice"):
                value = _sliced(value, name, part["Slice"])
            else:
                value = self._operated(value, part["Exp"], state, quoted)
            return UnknownWord(source) if value is None else value
        return "" if value is None else value

    def _value(self, name: str, index: Node | None, state: State) -> str | tuple[str, ...] | None:
        """Return the value of a parameter; None if it is unset."""
        if index is not None:
            return _element(state.variables.get(name), index, name, state)
        if name in ("@", "*"):
            return state.arguments if state.arguments is not None else UnknownWord(f"${name}")
        if name.isdecimal():
            return _positional(int(name), state)
        if name == "#":
            counted = state.arguments is not None and _all_known(state.arguments)
            return str(len(state.arguments or ())) if counted else UnknownWord("$#", single=True)
        if name == "?" and state.status not in (None, FAILED):
            return str(state.status)
        if name in _NUMBERS:
            return UnknownWord(f"${name}", single=True)
        if name == "PWD" and state.folder:
            return state.folder
        if name == "BASH_SOURCE":
            return state.file
        value = state.variables.get(name)
        if isinstance(value, tuple):
            return value[0] if value else ""
        if value is None and (_SET_OUTSIDE.match(name) or not name or not re.match(r"\w", name)):
            return UnknownWord(f"${name}", single=bool(_RANKS.match(name)))
        return value

    def _operated(
        self, value: str | tuple[str, ...] | None, operation: Node, state: State, quoted: bool
    ) -> str | tuple[str, ...] | None:
        """Return the value after an operation of ``${...}``; None if it is unknown."""
        operator, word = str(operation.get("Op")), operation.get("Word")
        if isinstance(value, UnknownWord) and value.single and operator.strip(":") in ("-", "="):
            # A launcher's number, or the default that replaces it.
            default = self.text(word, state)
            number = default.single if isinstance(default, UnknownWord) else default.isalnum()
            return UnknownWord(value, single=True) if number else None
        if isinstance(value, UnknownWord) or (isinstance(value, tuple) and operator.strip(":") not in "-+"):
            return None
        absent = value is None or (operator.startswith(":") and value in ("", ()))
        plain = operator.lstrip(":")
        if plain == "+" and absent:
            return ""
        if plain in ("-", "=", "?") and not absent:
            return value
        if plain in ("-", "=", "+"):
            return self._default(word, state, quoted)
        if plain in ("%", "%%", "#", "##") and not isinstance(value, tuple):
            pattern = self._pattern(word, state)
            return None if pattern is None else _trimmed(value or "", pattern, plain)
        return None

    def _default(self, word: Node | None, state: State, quoted: bool) -> str | tuple[str, ...] | None:
        parts = (word or {}).get("Parts", [])
        if not quoted and len(parts) == 1 and parts[0]["Type"] == "DblQuoted":
            inner = parts[0].get("Parts") or []
            if len(inner) == 1:
                return self._piece(inner[0], state, True)
        return self.text(word, state)

    def _pattern(self, word: Node | None, state: State) -> str | None:
        """Return a pattern in fnmatch syntax; None if it is unknown."""
        text = ""
        for part in (word or {}).get("Parts", []):
            if part["Type"] == "Lit" and "\\" not in part["Value"] and "(" not in part["Value"]:
                text += part["Value"].replace("[", "[[]")
                continue
            piece = self._piece(part, state, True)
            if not isinstance(piece, str) or isinstance(piece, UnknownWord):
                return None
            text += re.sub(r"([*?\[])", r"[\1]", piece)
        return text

    def matches(self, word: str, pattern: Node, state: State) -> bool | None:
        """Return whether a ``case`` pattern matches; None if that is unknown."""
        if any(part["Type"] == "Lit" and re.search(r"[\[\\(~]", part["Value"]) for part in pattern.get("Parts", [])):
            return None
        text = self._pattern(pattern, state)
        return None if text is None or isinstance(word, UnknownWord) else fnmatch.fnmatchcase(word, text)


def _flat(piece: str | tuple[str, ...]) -> str:
    return piece if isinstance(piece, str) else " ".join(piece)


def _unescaped(escapes: re.Pattern[str], text: str) -> str:
    return escapes.sub(lambda match: match[1] or "", text)


def joined(pieces: Sequence[str]) -> str:
    """Return pieces as one text; unknown if any piece is unknown."""
    text = "".join(pieces)
    if len(text) > _MAX_VALUE:
        return UnknownWord("a value that is too long")
    unknown = [piece for piece in pieces if isinstance(piece, UnknownWord)]
    if not unknown:
        return text
    before = "".join(itertools.takewhile(lambda piece: not isinstance(piece, UnknownWord), pieces))
    return UnknownWord(text, before + unknown[0].prefix, all(piece.single for piece in unknown))


def one_word(text: str) -> str:
    """Return a quoted text: even if it is unknown, it is one word."""
    return UnknownWord(text, text.prefix, single=True) if isinstance(text, UnknownWord) else text


def shown(part: Node) -> str:
    """Return an expansion as a person would write it, for messages."""
    name = (part.get("Param") or {}).get("Value")
    kind = str(part["Type"])
    return f"${name}" if name else {"CmdSubst": "$(...)", "ArithmExp": "$((...))"}.get(kind, kind)


def _spliced(pieces: Sequence[str | tuple[str, ...]]) -> list[tuple[str, bool, bool]]:
    """Return the pieces of a quoted text that contains ``$@``."""
    return [
        (text, at == 0, at < len(texts) - 1)
        for texts in ((piece,) if isinstance(piece, str) else piece for piece in pieces)
        for at, text in enumerate(texts)
    ]


def _all_known(words: Sequence[str]) -> bool:
    """Return whether the number of words is known."""
    return not any(isinstance(word, UnknownWord) and not word.single for word in words)


def _positional(number: int, state: State) -> str | None:
    if number == 0:
        return state.name
    before = (state.arguments or ())[:number]
    if state.arguments is None or not _all_known(before[: number - 1]):
        return UnknownWord(f"${number}")
    last = before[-1] if len(before) == number else None
    return UnknownWord(f"${number}", last.prefix) if isinstance(last, UnknownWord) else last


def _element(value: VariableValue | None, index: Node, name: str, state: State) -> str | tuple[str, ...] | None:
    literal = _literal(index)
    unknown = UnknownWord(f"${{{name}[{literal}]}}")
    if name == "BASH_SOURCE":
        return state.file if literal == "0" else UnknownWord("$BASH_SOURCE")
    if isinstance(value, str):
        value = (value,) if not isinstance(value, UnknownWord) else None
    elif value is None:
        return () if literal in ("@", "*") else None
    if value is None or not _all_known(value):
        return unknown
    if literal in ("@", "*"):
        return value
    if literal.isdecimal():
        return value[int(literal)] if int(literal) < len(value) else None
    return unknown


def _literal(word: Node) -> str:
    return "".join(str(part.get("Value", "$")) for part in word.get("Parts", []))


def _sliced(value: str | tuple[str, ...] | None, name: str, cut: Node) -> tuple[str, ...] | None:
    start = _literal(cut.get("Offset") or {})
    if not isinstance(value, tuple) or cut.get("Length") or not start.isdecimal() or not _all_known(value):
        return None
    skipped = int(start) - 1 if name in ("@", "*") else int(start)
    return None if skipped < 0 else value[skipped:]


def _trimmed(value: str, pattern: str, operator: str) -> str:
    """Return a value without the shortest or longest match of a pattern at its start or end."""
    regex = re.compile(fnmatch.translate(pattern))
    lengths = range(len(value) + 1) if len(operator) == 1 else range(len(value), -1, -1)
    if len(value) > 4096:
        return UnknownWord("a long value")
    for length in lengths:
        if operator[0] == "%" and regex.match(value[len(value) - length :]):
            return value[: len(value) - length]
        if operator[0] == "#" and regex.match(value[:length]):
            return value[length:]
    return value


def dirname(path: str) -> str:
    """Return the output of ``dirname``."""
    return posixpath.dirname(path.rstrip("/") or "/") or ("/" if path.startswith("/") else ".")
