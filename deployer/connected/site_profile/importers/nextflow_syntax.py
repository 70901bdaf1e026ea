"""A tolerant reader of Nextflow's configuration language: nested blocks and assignments. Nothing is executed.

The language is Groovy, so a file is a program. Read are blocks, assignments, and values that need no program: texts,
numbers with units, lists, maps, their sums, parameters of the same file, and variables of the environment. All else is
a ``Computed`` with its source; conditions and functions are skipped.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from deployer.connected.site_profile.importers.values import Computed, LocatedValue, hole
from deployer.contract.errors import UsageError

#: Blocks within blocks, and brackets within brackets.
_MAX_DEPTH = 60
#: Parameters that stand for other parameters.
_MAX_PARAMETERS = 10
#: Tokens of a file's values, counted again for each parameter that stands for others; and characters of a text.
_MAX_EVALUATED, _MAX_TEXT = 2_000_000, 64 * 1024

_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_NUMBER = re.compile(r"\d[\d_]*(?:\.\d+)?")
_SPACE = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_PATTERN = re.compile(r"/(?:[^/\\\n]|\\.)+/")
_SIGN = re.compile(r"==~|<=>|\?:|\?\.|->|&&|\|\||=~|==|!=|<=|>=|<<|\+=|-=|\+\+|--|.", re.DOTALL)
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
#: After these a slash begins a pattern; after another token it divides.
_BEFORE_PATTERN = {"=~", "==~", "~", "(", ",", "=", ":", "?", "&&", "||", "return"}
#: A statement goes on in the next line after, or before, one of these.
_GOES_ON_AFTER = {"?", ":", "?:", "&&", "||", "+", "<<", "=", ",", "==", "<", ">", "<=", ">=", "(", "[", "->", "."}
_GOES_ON_BEFORE = {"?", ":", "?:", "&&", "||", ".", "?.", "<<"}
#: What is before and after a text that is the result of an expression, and before a text that is not.
_BEFORE_RESULT = {"?", ":", "?:", "return", "{", "(", "->", "}", ";", "else"}
_AFTER_RESULT = {":", "}", ")", ";", "else"}
_BEFORE_OPERAND = {"==", "!=", "=", ",", "=~", "==~", "+", "<<"}
#: Words that begin a statement of a program.
_CODE = {"if", "else", "try", "catch", "finally", "for", "while", "switch", "def", "return", "import", "throw"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
#: Methods that change only the white space of a text.
_SPACING = {(name, "(", ")") for name in ("stripIndent", "trim", "strip", "toString")}
_SELECTORS = ("withLabel", "withName")


class Token(NamedTuple):
    """A token.

    Attributes:
        kind: word, number, text (its content is literal), template (a text with expressions), pattern, sign or line.
        text: its source; the content of a text or template, without the quotes.
        line: its line.
    """

    kind: str
    text: str
    line: int


class Quantity(NamedTuple):
    """A number with its unit: memory (``GB``) or time (``h``)."""

    number: float
    unit: str


class Setting(NamedTuple):
    """An assignment.

    Attributes:
        selectors: the profiles and process selectors around it: ``profile x``, ``withLabel gpu``.
        path: the names of blocks, and its own. A statement that is not an assignment has none.
        tokens: its value.
        line: its line.
    """

    selectors: tuple[str, ...]
    path: tuple[str, ...]
    tokens: tuple[Token, ...]
    line: int

    @property
    def profile(self) -> str | None:
        """Return the name of the profile around it, or None."""
        return next((each[8:] for each in self.selectors if each.startswith("profile ")), None)


def read(text: str, name: str) -> list[Setting]:
    """Return the assignments of a file, in its order.

    Raises:
        UsageError: a text or comment has no end, or blocks are nested too deeply.
    """
    return list(_Blocks(list(_tokens(text, name)), name).statements((), (), 0))


class Values:
    """The values of a file's settings."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._parameters: dict[tuple[str | None, str], Setting] = {}
        self._evaluated = 0
        for each in settings:
            if each.path[:1] == ("params",) and len(each.path) == 2:
                self._parameters[each.profile, each.path[1]] = each

    def of(self, setting: Setting) -> LocatedValue:
        """Return the value of a setting."""
        return LocatedValue(self._value(setting.tokens, setting.profile, 0), setting.line)

    def parameter(self, name: str, profile: str | None = None) -> LocatedValue | None:
        """Return the value of a parameter, or None if the file does not set it."""
        found = self._parameters.get((profile, name)) or self._parameters.get((None, name))
        return self.of(found) if found else None

    def _value(self, tokens: Sequence[Token], profile: str | None, depth: int) -> Any:
        tokens = _stripped(tokens)
        self._evaluated += len(tokens)
        if not tokens or depth > _MAX_DEPTH or self._evaluated > _MAX_EVALUATED:
            return Computed(_source(tokens))
        parts = _split(tokens, {"+", "<<"})
        if len(parts) > 1:
            return self._sum(parts, profile, depth)
        either = _split(tokens, {"?:"})
        if len(either) == 2:
            first = self._value(either[0], profile, depth + 1)
            return self._value(either[1], profile, depth + 1) if first is None else _computed(first, tokens)
        return self._single(tokens, profile, depth)

    def _sum(self, parts: list[Sequence[Token]], profile: str | None, depth: int) -> Any:
        """Return the sum of texts."""
        if any(token.text in ("?", "&&", "||") for part in parts for token in part if token.kind == "sign"):
            outer = [token.text for part in parts for token in _outer(part) if token.kind == "sign"]
            if {"?", "&&", "||", ":"} & set(outer):
                return Computed(" + ".join(map(_source, parts)))
        values = [self._value(part, profile, depth + 1) for part in parts]
        if not any(isinstance(value, str) for value in values):
            return Computed(" + ".join(map(_source, parts)))
        return _sized("".join(_as_text(value, part) for value, part in zip(values, parts, strict=True)))

    def _single(self, tokens: Sequence[Token], profile: str | None, depth: int) -> Any:
        first = tokens[0]
        if len(tokens) == 1:
            if first.kind in ("text", "pattern"):
                return first.text
            if first.kind == "template":
                return self._template(first, profile, depth)
            if first.kind == "number":
                return _number(first.text)
            return {"true": True, "false": False, "null": None}.get(first.text, Computed(first.text))
        words = [token.text for token in tokens]
        if words[1] == "." and tuple(words[2:]) in _SPACING and first.kind in ("text", "template"):
            return self._single(tokens[:1], profile, depth)
        if first.kind == "number" and len(tokens) == 3 and words[1] == "." and tokens[2].kind == "word":
            return Quantity(float(first.text.replace("_", "")), words[2])
        if words[:4] == ["System", ".", "getenv", "("] and len(tokens) == 6 and tokens[4].kind in ("text", "template"):
            return f"${words[4]}" if _WORD.fullmatch(words[4]) else Computed(_source(tokens))
        if words[:2] == ["params", "."] and len(tokens) == 3:
            return self._parameter(words[2], profile, depth)
        if first.text in _OPEN and _closing(tokens, 0) == len(tokens) - 1:
            inner = tokens[1:-1]
            if first.text == "[":
                return self._collection(inner, profile, depth)
            return self._value(inner, profile, depth + 1)
        return Computed(_source(tokens))

    def _parameter(self, name: str, profile: str | None, depth: int) -> Any:
        found = self._parameters.get((profile, name)) or self._parameters.get((None, name))
        if found is None or depth > _MAX_PARAMETERS:
            return Computed(f"params.{name}")
        value = self._value(found.tokens, profile, depth + _MAX_DEPTH // _MAX_PARAMETERS)
        return Computed(f"params.{name}") if value is None else value

    def _collection(self, tokens: Sequence[Token], profile: str | None, depth: int) -> Any:
        members = [part for part in _split(tokens, {","}) if _stripped(part)]
        found: dict[str, LocatedValue] = {}
        for part in members:
            key, *rest = _split(part, {":"})
            key = _stripped(key)
            if not rest or len(key) != 1:
                break
            value = [token for each in rest for token in each]
            found[key[0].text] = LocatedValue(self._value(value, profile, depth + 1), key[0].line)
        if members and len(found) == len(members):
            return found
        return [LocatedValue(self._value(part, profile, depth + 1), _stripped(part)[0].line) for part in members]

    def _template(self, token: Token, profile: str | None, depth: int) -> str | Computed:
        found: list[str] = []
        for literal, expression in _parts(token.text):
            found.append(literal)
            if expression is not None:
                try:
                    tokens = list(_tokens(expression, "")) if depth <= _MAX_PARAMETERS else []
                except UsageError:  # a quote without its partner
                    tokens = []
                value = self._value(tokens, profile, depth + 1) if tokens else Computed(expression)
                found.append(_as_text(value, tokens))
        return _sized("".join(found))


def choices(tokens: Sequence[Token]) -> list[str]:
    """Return the texts that an expression can have as its value: those after ``?``, ``:``, ``return`` and the like."""
    found: list[str] = []
    significant = [token for token in tokens if token.kind != "line"]
    for at, token in enumerate(significant):
        if token.kind != "text" or not token.text.strip():
            continue
        before = significant[at - 1] if at else None
        after = significant[at + 1] if at + 1 < len(significant) else None
        called = at > 1 and significant[at - 1].text == "(" and significant[at - 2].kind == "word"
        begins = before is None or before.text in _BEFORE_RESULT or before.line < token.line
        ends = after is None or after.text in _AFTER_RESULT or after.line > token.line
        if begins and ends and not called and (before is None or before.text not in _BEFORE_OPERAND):
            found.append(token.text.strip())
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------------------------------------------------- statements


class _Blocks:
    def __init__(self, tokens: list[Token], name: str) -> None:
        self._tokens = tokens
        self._name = name
        self._at = 0

    def statements(self, selectors: tuple[str, ...], path: tuple[str, ...], depth: int) -> Iterator[Setting]:
        """Yield the assignments up to the end of the block."""
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if depth > _MAX_DEPTH:
                raise UsageError(f"{self._name}:{token.line}: blocks are nested too deeply")
            if token.kind == "line" or token.text == ";":
                self._at += 1
            elif token.text == "}" and token.kind == "sign":
                self._at += 1
                if depth:
                    return
            else:
                yield from self._statement(token, selectors, path, depth)

    def _statement(
        self, first: Token, selectors: tuple[str, ...], path: tuple[str, ...], depth: int
    ) -> Iterator[Setting]:
        begin = self._at
        names = self._names()
        following = self._peek()
        if self._tokens[self._at : self._at + 1] and self._tokens[self._at].kind == "line" and self._next_opens():
            self._at += 1
            following = "{"
        if not names or (first.kind == "word" and first.text in _CODE):
            yield self._skipped(begin, first, selectors)
        elif len(names) == 1 and names[0] in _SELECTORS and following == ":":
            self._at += 1
            chosen: list[str] = []
            while self._at < len(self._tokens) and self._peek() != "{":
                chosen.append(self._tokens[self._at].text.strip())
                self._at += 1
            self._at += 1
            yield from self.statements((*selectors, f"{names[0]} {''.join(chosen)}"), path, depth + 1)
        elif following == "{":
            self._at += 1
            if path == ("profiles",) or (not path and names[0] == "profiles" and len(names) == 2):
                yield from self.statements((*selectors, f"profile {names[-1]}"), (), depth + 1)
            else:
                yield from self.statements(selectors, (*path, *names), depth + 1)
        elif following == "=":
            self._at += 1
            place = (*path, *names)
            if len(place) > 2 and place[0] == "profiles":
                selectors, place = (*selectors, f"profile {place[1]}"), place[2:]
            yield Setting(selectors, place, tuple(self._expression()), first.line)
        else:
            yield self._skipped(begin, first, selectors)

    def _names(self) -> list[str]:
        """Read ``a.b.c`` or ``'a'``."""
        found: list[str] = []
        while self._at < len(self._tokens) and self._tokens[self._at].kind in ("word", "text"):
            found.append(self._tokens[self._at].text)
            self._at += 1
            if self._peek() != ".":
                break
            self._at += 1
        return found

    def _peek(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at].kind in ("text", "template", "line"):
            return ""
        return self._tokens[self._at].text

    def _next_opens(self) -> bool:
        """Return whether the next line begins with a brace, the block of the name in this line."""
        following = self._tokens[self._at + 1 : self._at + 2]
        return bool(following) and following[0].kind == "sign" and following[0].text == "{"

    def _skipped(self, begin: int, first: Token, selectors: tuple[str, ...]) -> Setting:
        """Skip a statement of a program, with the blocks that belong to it."""
        self._at = begin
        found = self._expression()
        if self._at == begin:  # a bracket without its partner
            self._at += 1
            found = [first]
        return Setting(selectors, (), tuple(found), first.line)

    def _expression(self) -> list[Token]:
        """Return the tokens up to the end of the statement."""
        found: list[Token] = []
        open_brackets: list[str] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind == "sign" and token.text in _OPEN:
                open_brackets.append(_OPEN[token.text])
                if len(open_brackets) > _MAX_DEPTH:
                    raise UsageError(f"{self._name}:{token.line}: brackets are nested too deeply")
            elif token.kind == "sign" and token.text in _CLOSE:
                if not open_brackets:
                    break
                while open_brackets and open_brackets.pop() != token.text:
                    pass
            elif not open_brackets and (token.kind == "line" or token.text == ";") and not self._goes_on(found):
                break
            found.append(token)
            self._at += 1
        return found

    def _goes_on(self, found: list[Token]) -> bool:
        """Return whether a statement goes on after the line that ends here."""
        last = next((token for token in reversed(found) if token.kind != "line"), None)
        if self._tokens[self._at].kind == "line" and (
            last is None or (last.kind == "sign" and last.text in _GOES_ON_AFTER)
        ):
            return True
        rest = self._at
        while rest < len(self._tokens) and self._tokens[rest].kind == "line":
            rest += 1
        following = self._tokens[rest] if rest < len(self._tokens) else None
        if following is None:
            return False
        if following.kind == "word" and following.text in ("else", "catch", "finally"):
            return True
        return following.kind == "sign" and following.text in _GOES_ON_BEFORE


# -------------------------------------------------------------------------------------------------------------- tokens


def _tokens(text: str, name: str) -> Iterator[Token]:
    at, line, before = 0, 1, ""
    while at < len(text):
        begin = at
        if text.startswith("//", at) or (at == 0 and text.startswith("#!")):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        if text.startswith("/*", at):
            at = _end_of(text, "*/", at + 2, name, line)
        elif found := _SPACE.match(text, at):
            at = found.end()
        elif text[at] == "\n":
            if before != "\n":
                yield Token("line", "\n", line)
            at, before = at + 1, "\n"
        elif text[at] in "'\"":
            quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
            end = _end_of_text(text, quote, at + len(quote), name, line)
            content = text[at + len(quote) : end - len(quote)]
            if quote[0] == '"' and re.search(r"(?<!\\)\$", content):
                yield Token("template", content, line)
            else:
                yield Token("text", _unescaped(content), line)
            at, before = end, "text"
        else:
            kind, found = _plain(text, at, before)
            yield Token(kind, found.group(), line)
            at, before = found.end(), found.group()
        line += text.count("\n", begin, at)


def _plain(text: str, at: int, before: str) -> tuple[str, re.Match[str]]:
    """Return the kind and match of a token that is not a text."""
    if text[at] == "/" and before in _BEFORE_PATTERN and (found := _PATTERN.match(text, at)):
        return "pattern", found
    for kind, form in (("word", _WORD), ("number", _NUMBER), ("sign", _SIGN)):
        if found := form.match(text, at):
            return kind, found
    raise AssertionError(text[at])  # _SIGN matches any character


def _end_of(text: str, end: str, at: int, name: str, line: int) -> int:
    found = text.find(end, at)
    if found < 0:
        raise UsageError(f"{name}:{line}: a text or comment that begins here has no end")
    return found + len(end)


def _end_of_text(text: str, quote: str, at: int, name: str, line: int) -> int:
    """Return the index after a text; expressions in it can have quotes of their own."""
    inner = 0
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif inner:
            inner += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        elif quote[0] == '"' and text.startswith("${", at):
            inner, at = 1, at + 2
        elif text.startswith(quote, at):
            return at + len(quote)
        elif text[at] == "\n" and len(quote) == 1:
            break
        else:
            at += 1
    raise UsageError(f"{name}:{line}: a text that begins here has no end")


def _parts(content: str) -> Iterator[tuple[str, str | None]]:
    """Yield each literal part of a template with the expression after it."""
    literal, at = 0, 0
    while at < len(content):
        if content[at] == "\\":
            at += 2
            continue
        if content[at] == "$":
            found = re.compile(r"\$([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)").match(content, at)
            if content.startswith("${", at):
                depth, end = 1, at + 2
                while end < len(content) and depth:
                    depth += {"{": 1, "}": -1}.get(content[end], 0)
                    end += 1
                yield _unescaped(content[literal:at]), content[at + 2 : end - 1]
                literal = at = end
                continue
            if found:
                yield _unescaped(content[literal:at]), found.group(1)
                literal = at = found.end()
                continue
        at += 1
    yield _unescaped(content[literal:]), None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\n|.)", lambda found: _ESCAPES.get(found.group(1), found.group(1).strip("\n")), text)


def _number(text: str) -> int | float:
    plain = text.replace("_", "")
    return float(plain) if "." in plain else int(plain[:20])


def _stripped(tokens: Sequence[Token]) -> Sequence[Token]:
    begin, end = 0, len(tokens)
    while begin < end and tokens[begin].kind == "line":
        begin += 1
    while end > begin and tokens[end - 1].kind == "line":
        end -= 1
    return tokens[begin:end]


def _closing(tokens: Sequence[Token], at: int) -> int:
    """Return the index of the bracket that closes the one at ``at``, or -1."""
    depth = 0
    for index in range(at, len(tokens)):
        if tokens[index].kind == "sign":
            depth += (tokens[index].text in _OPEN) - (tokens[index].text in _CLOSE)
            if not depth:
                return index
    return -1


def _outer(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens that are not in brackets."""
    depth = 0
    for token in tokens:
        if token.kind == "sign":
            depth -= token.text in _CLOSE
        if not depth:
            yield token
        if token.kind == "sign":
            depth += token.text in _OPEN


def _split(tokens: Sequence[Token], signs: set[str]) -> list[Sequence[Token]]:
    """Return the tokens between signs that are not in brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "sign":
            depth += (token.text in _OPEN) - (token.text in _CLOSE)
            if not depth and token.text in signs:
                parts.append([])
                continue
        parts[-1].append(token)
    return list(parts)


def _source(tokens: Sequence[Token]) -> str:
    quoted = [f"'{token.text}'" if token.kind in ("text", "template") else token.text for token in tokens]
    text = " ".join(word for word in quoted if word.strip())
    return re.sub(r" ?(\.|\(|\)|\[|\]) ?", r"\1", text)


def _sized(text: str) -> str | Computed:
    return text if len(text) <= _MAX_TEXT else Computed(text[:_MAX_TEXT])


def _as_text(value: Any, tokens: Sequence[Token]) -> str:
    """Return a value as a part of a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Computed):
        return hole(value.source)
    if isinstance(value, bool) or value is None or not isinstance(value, int | float):
        return hole(_source(tokens))
    return str(value)


def _computed(value: Any, tokens: Sequence[Token]) -> Any:
    """Return a value that counts if it is known: a variable of the environment may be empty."""
    known = isinstance(value, bool | int | float) or (isinstance(value, str) and "$" not in value)
    return value if known else Computed(_source(tokens))
