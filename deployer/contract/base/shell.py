"""Text for bash, by type: text from outside can never become shell. Pure.

Three types separate the parts of a script:

- ``str`` is data. Wherever it goes into a script, it is quoted as one word.
- ``Word`` is data with references to the script's variables. Only ``Variable`` makes a reference.
- ``Code`` is a piece of a script. Only ``code``, ``filled`` and ``directive`` make one, from deployer's own templates:
  literals or files (a test checks every call). ``script`` accepts nothing else, so forgotten quoting raises a
  TypeError.
"""

import re
import shlex
import string
from typing import Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import escaped, is_name, printable

#: The name of the variable with the shell's own process number.
_OWN_NUMBER = "$"
#: Characters that no argument of a process can have: a NUL, and a surrogate that is not a byte of a path.
_IMPOSSIBLE = re.compile("[\x00\ud800-\udc7f\udd00-\udfff]")
_NOT_FOR_CSH = re.compile("[!\x00-\x1f\x7f]")
#: Characters that a word must not contain unescaped: a line end would start a foreign line of the script, and an escape
#: sequence would reach the reader's terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f]")
#: The part of a template's line that is not code.
_REMARK = re.compile(r"(^|\s)#.*$")


class Variable:
    """The value of a variable, known when the script runs.

    Args:
        name: the variable's name.
        more: the text is a colon and the value, for appending the host's value to a list; empty if there is no value.
    """

    def __init__(self, name: str, more: bool = False) -> None:
        if not (is_name(name) or name == _OWN_NUMBER):
            raise TypeError(f"not a variable of a script: {name!r}")
        self.name, self.more = name, more

    def __repr__(self) -> str:
        return self.text()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variable) and self.text() == other.text()

    def __hash__(self) -> int:
        return hash(self.text())

    def text(self) -> str:
        """Return the reference for bash."""
        return f'"${{{self.name}:+:${self.name}}}"' if self.more else f'"${self.name}"'

    def value(self, environment: Mapping[str, str]) -> str:
        """Return the value in ``environment``; raise TypeError if the name is not in it."""
        value = environment.get(self.name, "")
        if self.more:
            return value and ":" + value
        if not value:
            raise TypeError(f"{self.name} is only known when a script runs")
        return value


class Program:
    """One of deployer's own scripts inside the script, as one word; its lines stay unchanged and readable.

    ``+`` appends another one.
    """

    def __init__(self, text: str) -> None:
        self.own = text

    def __add__(self, other: "Program") -> "Program":
        return Program(self.own + other.own)


#: A part of a word.
_Part = Union[str, Variable]


class Word:
    """A word of a script that contains variables; ``+`` appends text on either side.

    It has no ``str()``, because formatting would turn its variables into data.
    """

    def __init__(self, *parts: Union[_Part, "Word"]) -> None:
        pieces: List[_Part] = []
        for part in parts:
            for piece in part.parts if isinstance(part, Word) else (part,):
                if not isinstance(piece, (str, Variable)):
                    raise TypeError(f"not a part of a word: {piece!r}")
                if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                    pieces[-1] += piece
                elif piece != "":
                    pieces.append(piece)
        self.parts: Tuple[_Part, ...] = tuple(pieces)

    def __add__(self, other: Union[_Part, "Word"]) -> "Word":
        return Word(self, other)

    def __radd__(self, other: str) -> "Word":
        return Word(other, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Word{self.parts!r}"

    def __str__(self) -> str:
        raise TypeError(f"{self!r} is not text before a script runs")


#: The types of a command's words.
Text = Union[str, Word, Program]
#: The text of a path, or of a variable's value.
Value = Union[str, Word]


def joined(parts: Sequence[Value], between: str = "") -> Value:
    """Return parts as one text, separated by ``between``."""
    pieces = [piece for part in parts for piece in (between, part)]
    whole = Word(*pieces[1:])
    return whole if any(isinstance(part, Variable) for part in whole.parts) else "".join(map(str, whole.parts))


def changed(text: Value, change: Callable[[str], Value]) -> Value:
    """Return a text with ``change`` applied to all data in it."""
    parts = Word(text).parts
    return joined([change(part) if isinstance(part, str) else Word(part) for part in parts])


def data(text: Text) -> str:
    """Return all data in a text, for inspection."""
    return "".join(part for part in _parts(text) if isinstance(part, str))


def variables(words: Sequence[Text]) -> List[Variable]:
    """Return the variables that words refer to."""
    return [part for word in words for part in _parts(word) if isinstance(part, Variable)]


def plain(text: Text, environment: Optional[Mapping[str, str]] = None) -> str:
    """Return a text as a process needs it, with variables from ``environment``; raise TypeError for missing ones."""
    return "".join(part if isinstance(part, str) else part.value(environment or {}) for part in _parts(text))


def argv(words: Sequence[Text], environment: Optional[Mapping[str, str]] = None) -> List[str]:
    """Return ``plain`` of each word."""
    return [plain(word, environment) for word in words]


def quoted(words: Sequence[str]) -> str:
    """Return words as a person would type them in bash."""
    return " ".join(map(_quoted, words))


def for_any_login_shell(words: Sequence[str]) -> str:
    """Return a command for sshd, which passes it to the user's login shell; csh reads quotes differently.

    A csh ends a quoted word at a line end and replaces ``!`` in it. Words with either are therefore written as numbers
    that sh decodes.

    Raises:
        UsageError: a word cannot be an argument of a command.
    """
    for word in words:
        _check_possible(word)
    plain_words = " ".join(map(shlex.quote, words))
    if not _NOT_FOR_CSH.search(plain_words):
        return plain_words
    numbers = "".join(f"\\0{byte:03o}" for byte in plain_words.encode("utf-8", "surrogateescape"))
    return "sh -c {}".format(shlex.quote(f'eval "$(printf %b "{numbers}")"'))


class Code:
    """A piece of a script; see ``code``."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        raise TypeError("a piece of a script is not text: give it to code() or script()")


#: The values of a template.
Filling = Union[int, Text, Code, Sequence[Text], None]
#: In a template file: the name of a value, the beginning of a condition, or its middle or end.
_MARK = re.compile(r"@(?:([a-z_]+)|\?([a-z_]+)|([:.]))@")


def code(template: str, **values: Filling) -> Code:
    """Return a piece of a script: ``template``, a literal in deployer, with ``values`` in place of its ``{names}``.

    Data is quoted as one word, and a sequence as one word per item. On a line that is a comment, data is escaped.

    Raises:
        UsageError: the data cannot be in a script.
        TypeError: the template has data in quotes.
    """
    return _composed(((text, name) for text, name, _, _ in string.Formatter().parse(template)), values)


def filled(template: str, values: Mapping[str, Filling]) -> Code:
    """Return a piece of a script from a file of deployer, as ``code`` does.

    In it, ``@name@`` is a value, and ``@?name@...@:@...@.@`` is one of two texts: the second text if the value is None,
    false or empty. The second text may be omitted; conditions may be nested. The shell itself has no such syntax.
    """
    return _composed(_chosen(template, values), values)


def _chosen(template: str, values: Mapping[str, Filling]) -> Iterator[Tuple[str, Optional[str]]]:
    """Yield each text of a template with the name that follows it, except texts whose condition is false."""
    shown = [True]
    text, *marks = _MARK.split(template)
    yield text, None
    for name, condition, end, text in zip(*(marks[at::4] for at in range(4))):
        if condition:
            value = values[condition]
            shown.append(bool(value.text if isinstance(value, Code) else value))
        elif end == ":":
            shown[-1] = not shown[-1]
        elif end:
            shown.pop()
        elif all(shown):
            yield "", name
        if all(shown):
            yield text, None


def _composed(parts: Iterable[Tuple[str, Optional[str]]], values: Mapping[str, Filling]) -> Code:
    text_so_far = own = ""
    for text, name in parts:
        text_so_far, own = text_so_far + text, own + text
        if name is not None:
            text_so_far += _filled(values[name], own, name)
    return Code(text_so_far)


def _filled(value: Filling, before: str, name: str) -> str:
    """Return ``value`` as text that follows ``before`` in a template."""
    if isinstance(value, Code):
        return value.text
    if isinstance(value, int):
        return "%d" % value
    line = before[before.rfind("\n") + 1 :]
    if line.startswith("#") and isinstance(value, (str, Word)):
        return printable("".join(map(str, Word(value).parts)))
    if value is None or line.startswith("#") or _REMARK.search(line) or _in_quotes(before):
        raise TypeError(f"{{{name}}} is None, within quotes, or in a comment behind code")
    return _word(value) if isinstance(value, (str, Word, Program)) else " ".join(map(_word, value))


def directive(prefix: str, line: str) -> Code:
    """Return a line for the batch system, which reads comments that begin with ``prefix``, a literal of ours.

    Raises:
        UsageError: the line has control characters. They would end it, and batch systems have no escape for them.
    """
    if _CONTROL.search(line) or _IMPOSSIBLE.search(line):
        raise UsageError(f"{line!r}: a directive cannot have control characters")
    return Code(f"{prefix} {line}\n")


def export(name: str, value: Value) -> Code:
    """Return a line that sets an environment variable. Raises UsageError if the name is invalid."""
    if not is_name(name):
        raise UsageError(f"{name!r} is not a name for an environment variable", "use letters, digits and underscores")
    return Code(f"export {name}={_word(value)}\n")


def array(name: str, words: Sequence[Text]) -> Code:
    """Return the lines that set an array, one word per line."""
    return code("{name}=({words}\n)\n", name=name, words=Code("\n    ".join(map(_word, words))))


def folded(words: Sequence[Text], width: int) -> Code:
    """Return words in lines of at most ``width`` characters if possible, as in an array or a list."""
    lines = [""]
    for word in map(_word, words):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return Code("\n    ".join(lines))


def together(pieces: Sequence[Code], between: str = "") -> Code:
    """Return pieces as one piece; ``between`` is white space."""
    if between.strip():
        raise TypeError(f"not white space: {between!r}")
    return Code(between.join(piece.text for piece in pieces))


def script(*pieces: Code) -> str:
    """Return the text of a script, its pieces separated by empty lines."""
    return together(pieces, "\n").text


def _parts(text: Text) -> Tuple[_Part, ...]:
    return (text.own,) if isinstance(text, Program) else Word(text).parts


def _word(text: Text) -> str:
    if isinstance(text, Program):
        return shlex.quote(text.own)
    return "".join(part.text() if isinstance(part, Variable) else _quoted(part) for part in Word(text).parts) or "''"


def _check_possible(text: str) -> None:
    if _IMPOSSIBLE.search(text):
        raise UsageError(f"{text!r} has a NUL or half a character: no command can be given one")


def _quoted(text: str) -> str:
    _check_possible(text)
    if not _CONTROL.search(text):
        return shlex.quote(text)
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_CONTROL.sub(lambda match: escaped(match.group()), inner)}'"


def _in_quotes(before: str) -> bool:
    lines = [_REMARK.sub("", line) for line in before.split("\n")]
    return any(sum(line.count(quote) for line in lines) % 2 for quote in "'\"")
