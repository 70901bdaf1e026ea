"""Shell commands that change the known state: variables, arguments, the folder."""

import posixpath
import re
from collections.abc import Sequence

from deployer.connected.linker.starts.removed import Removed
from deployer.connected.linker.starts.shell.shell_state import State, VariableValue
from deployer.connected.linker.starts.shell.shell_syntax import Node
from deployer.connected.linker.starts.shell.shell_words import Words, joined
from deployer.connected.linker.starts.words import UnknownWord, known

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)


class ShellVariables:
    """Follows shell commands that change a state."""

    _words: Words

    def _unclear(self, reason: str) -> None:
        """Report something that is not followed."""
        raise NotImplementedError

    def _nested(self, node: Node, state: State) -> int | None:
        """Follow what words start, and return the last one's status."""
        raise NotImplementedError

    def _assign(self, node: Node, state: State) -> None:
        name = str((node.get("Name") or {}).get("Value", ""))
        elements = (node.get("Array") or {}).get("Elems") or []
        value: VariableValue
        if node.get("Index") or any(element.get("Index") for element in elements):
            value = UnknownWord(f"${name}")
        elif node.get("Array"):
            value = tuple(self._words.fields([element["Value"] for element in elements if element.get("Value")], state))
        else:
            value = self._words.text(node.get("Value"), state)
        before = state.variables.get(name, "") if node.get("Append") else None
        if isinstance(before, tuple) and isinstance(value, tuple):
            value = (*before, *value)
        elif isinstance(before, str) and isinstance(value, str):
            value = joined([before, value])
        elif before is not None:
            value = UnknownWord(f"${name}")
        state.variables[name] = value

    def _declare(self, node: Node, state: State) -> None:
        variant = str(node["Variant"]["Value"])
        self._nested(node, state)
        options = ""
        for argument in node.get("Args") or []:
            if argument.get("Naked") and argument.get("Value"):
                for word in self._words.fields([argument["Value"]], state):
                    if word.startswith(("-", "+")) and not isinstance(word, UnknownWord):
                        options += word
                    else:
                        self._export(variant, [word], state)
            elif argument.get("Naked"):
                self._export(variant, [str(argument["Name"]["Value"])], state)
            else:
                self._assign(argument, state)
                name = str(argument["Name"]["Value"])
                if variant == "export" or "x" in options:
                    state.exported |= {name}
                if set(options) & set("niluc"):
                    state.variables[name] = UnknownWord(f"${name}")

    def _export(self, variant: str, words: Sequence[str], state: State) -> None:
        for word in words:
            text = word.prefix if isinstance(word, UnknownWord) else word
            match = _ASSIGNMENT.match(text)
            if match:
                value = word[match.end() :]
                unknown = isinstance(word, UnknownWord) or match[2]
                state.variables[match[1]] = UnknownWord(f"${match[1]}", text[match.end() :]) if unknown else value
                if variant == "export":
                    state.exported |= {match[1]}
            elif isinstance(word, UnknownWord):
                self._unclear(f"{variant} of {word}, which is only known when it runs")
            elif variant == "export":
                state.exported |= {word}
            elif variant in ("local", "declare", "typeset"):
                state.variables[word] = UnknownWord(f"${word}") if word in state.variables else ""

    def _export_words(self, words: list[str], state: State) -> None:
        """Follow ``export`` and similar commands in shells that parse them like other commands."""
        if "-f" not in words:
            self._export(words[0], [word for word in words[1:] if not word.startswith("-")], state)

    def _unset(self, words: list[str], state: State) -> None:
        unknown = [name for name in words[1:] if isinstance(name, UnknownWord)]
        literal = [name for name in words[1:] if not isinstance(name, UnknownWord) and not name.startswith("-")]
        for name in literal:
            state.variables.pop(name, None)
            state.functions.pop(name, None)
        if words[1:2] != ["-f"]:
            state.removed |= {Removed(name, True, f"unset {name}") for name in literal}
            state.removed |= {Removed(f"{name.prefix}*", False, f"unset {name}") for name in unknown}
        prefixes = tuple(name.prefix for name in unknown)
        known_prefixes = tuple(filter(None, prefixes))  # else assumed to be a launcher's: see ``removed``
        for name in state.variables:
            if name.startswith(prefixes if name not in state.exported else known_prefixes):
                state.variables[name] = UnknownWord(f"${name}")

    def _read(self, words: list[str], state: State) -> None:
        """Follow ``read`` and ``getopts``."""
        for name in filter(_NAME.fullmatch, [*words[1:], "REPLY", "OPTARG", "OPTIND"]):
            state.variables[name] = UnknownWord(f"${name}")
        if not known(words):
            self._lost(state)

    def _printf(self, words: list[str], state: State) -> None:
        for name in words[2:3] if words[1:2] == ["-v"] else ():
            state.variables[name] = UnknownWord(f"${name}")

    def _cd(self, words: list[str], state: State) -> None:
        rest = [word for word in words[1:] if isinstance(word, UnknownWord) or word not in ("--", "-P", "-L", "-e")]
        state.variables["OLDPWD"] = UnknownWord("$OLDPWD")
        if len(rest) != 1 or not known(rest) or rest[0] in ("-", "") or "CDPATH" in state.variables:
            state.folder = None
        elif state.folder or rest[0].startswith("/"):
            state.folder = posixpath.normpath(posixpath.join(state.folder or "/", rest[0]))

    def _pushd(self, words: list[str], state: State) -> None:
        before = state.folder
        self._cd(words, state)
        state.pushed = (*state.pushed, before)[-50:] if len(words) == 2 else ()

    def _popd(self, words: list[str], state: State) -> None:
        last = state.pushed[-1] if state.pushed and len(words) == 1 else None
        state.folder, state.pushed = last, state.pushed[:-1]

    def _shift(self, words: list[str], state: State) -> None:
        count = words[1] if len(words) > 1 else "1"
        number = int(count) if known([count]) and count.isdecimal() and len(count) <= 4 else None
        gone = (state.arguments or ())[:number]
        if number is None or any(isinstance(word, UnknownWord) and not word.single for word in gone):
            state.arguments = None
        elif state.arguments and len(gone) == number:
            state.arguments = state.arguments[number:]

    def _set(self, words: list[str], state: State) -> None:
        rest = words[1:]
        while rest and known(rest[:1]) and rest[0].startswith(("-", "+")) and rest[0] not in ("-", "--"):
            option = rest.pop(0)
            names = rest[: option.count("o")]  # a name follows each: set -euo pipefail
            rest = rest[len(names) :]
            if "e" in option[1:] or "errexit" in names:
                state.stops = option.startswith("-")
            if "pipefail" in names:
                state.pipefail = option.startswith("-")
            if "n" in option[1:] or "t" in option[1:]:
                self._unclear(f"set {option} is not followed")
        if rest and rest[0] in ("-", "--") and not isinstance(rest[0], UnknownWord):
            state.arguments = tuple(rest[1:])
        elif rest:
            state.arguments = None if isinstance(rest[0], UnknownWord) else tuple(rest)

    def _forget(self, state: State) -> None:
        """Mark everything that a loop may have changed as unknown."""
        state.variables = {name: UnknownWord(f"${name}") for name in state.variables}
        state.arguments = state.folder = None
        state.functions = dict.fromkeys(state.functions)

    def _lost(self, state: State) -> None:
        """Mark everything that unread text may change as unknown."""
        self._forget(state)
        for name in ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH"):
            state.variables[name] = UnknownWord(f"${name}")
        state.certain = False
