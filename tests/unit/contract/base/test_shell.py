"""Shell text is a type: data is always quoted, and only our own literals are code."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.contract.base import shell
from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Program, Variable, Word, code

PACKAGE = Path(shell.__file__).resolve().parents[2]
HOSTILE = [
    "a b",
    "",
    "$(touch PWNED)",
    "`touch PWNED`",
    "a\n#SBATCH --wrap=x\ntouch PWNED",
    "';touch PWNED;'",
    "it's\n\\'$(touch PWNED)",
    "\\",
    "\\\n",
    "!!",
    "\x1b[31m\r\t",
    "\x7f",
    "é\u2028\x85",
    "*",
    "~",
    "{a,b}",
]


def bash(text, **environment):
    return subprocess.check_output(["bash", "-c", text], env=dict(environment, PATH="/usr/bin:/bin", LC_ALL="C.UTF-8"))


def test_bash_reads_every_word_as_it_was_given(tmp_path):
    line = code("cd {place}\nprintf '%s\\0' {words}", place=str(tmp_path), words=HOSTILE)
    assert bash(line.text).decode().split("\0")[:-1] == HOSTILE
    assert list(tmp_path.iterdir()) == []
    assert line.text.count("\n") == 1  # no line of the script is a word's
    assert "\x1b" not in line.text


def test_a_nul_is_refused():
    with pytest.raises(UsageError, match="NUL"):
        code("{word}", word="a\0b")


def test_variables_are_read_when_the_script_runs():
    word = "--x=" + Word(Variable("A"), "$A '0") + Word(Variable("C", more=True))
    given = {"A": "a  *", "C": "c"}
    assert bash(code("printf %s {word}", word=word).text, **given).decode() == "--x=a  *$A '0:c"
    assert shell.plain(word, given) == "--x=a  *$A '0:c"
    assert bash(code("printf %s {word}", word=word).text, A="a").decode() == "--x=a$A '0"
    with pytest.raises(TypeError, match="only known when"):
        shell.plain(word)


@pytest.mark.parametrize("name", ["", "A B", "A}$(touch x)", "a[$(x)]", "A\n", "1A", "é"])
def test_a_variable_has_a_name(name):
    with pytest.raises(TypeError):
        Variable(name)
    with pytest.raises(UsageError, match="not a name"):
        shell.export(name, "x")


def test_what_has_variables_is_no_text():
    word = Word("/x/", Variable("A"))
    for make in (str, "{}".format, lambda x: f"{x}", ":".join):
        with pytest.raises(TypeError):
            make(word if make != ":".join else [word])
        with pytest.raises(TypeError):
            make(code("true") if make != ":".join else [code("true")])


def test_data_cannot_be_given_for_code():
    for raw in ("true", Word("true"), Program("true")):
        with pytest.raises((TypeError, AttributeError)):
            shell.script(raw)
        with pytest.raises((TypeError, AttributeError)):
            shell.together([raw])


@pytest.mark.parametrize("template", ['"{x}"', "'{x}'", '"a" "b{x}"', "true  # {x}", 'true\n"a\n{x}"'])
def test_a_template_cannot_quote_what_quotes_itself(template):
    with pytest.raises(TypeError, match="within quotes"):
        code(template, x="$(touch PWNED)")


@pytest.mark.parametrize("program", ["sh", "bash", "tcsh"])
def test_any_login_shell_gives_the_words_to_the_command(program, tmp_path):
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    words = [word for word in HOSTILE if not program.startswith("t") or "\x85" not in word]
    line = shell.for_any_login_shell(["printf", "%s\\0", "$HOME", *words])
    assert not re.search("[!\x00-\x1f]", line)
    said = subprocess.check_output([program, "-c", line], cwd=str(tmp_path))
    assert said.decode().split("\0")[:-1] == ["$HOME", *words]
    assert list(tmp_path.iterdir()) == []
    assert shell.for_any_login_shell(["a", "b c"]) == "a 'b c'"
    with pytest.raises(UsageError, match="NUL"):
        shell.for_any_login_shell(["a\0"])


def test_an_apostrophe_in_a_comment_is_no_quote():
    assert code("# it's\ntrue  # it's {{}}\n{x}", x="a b").text.endswith("\n'a b'")
    assert code("{x} {x}", x='"').text == "'\"' '\"'"


def test_a_comment_stays_one_line():
    made = code("#   {x}: {y}\n", x="a\ntouch PWNED\r\u2028\x1b[2J", y=Word("/", Variable("A")))
    assert made.text == '#   a\\ntouch PWNED\\r\\u2028\\x1b[2J: /"$A"\n'


@pytest.mark.parametrize("word", ["--a=b\n#SBATCH --wrap=x", "a\r", "\0", "a\tb", "\x1b"])
def test_a_directive_is_one_line_or_none(word):
    with pytest.raises(UsageError, match="control characters"):
        shell.directive("#SBATCH", word)


def test_a_program_of_ours_keeps_its_lines():
    assert code("bash -c {p}", p=Program("echo a\necho 'b'")).text == "bash -c 'echo a\necho '\"'\"'b'\"'\"''"


def test_text_is_changed_around_variables():
    word = Word("/deployer/x:", Variable("A"), "/deployer")
    assert shell.changed(word, lambda text: text.replace("deployer", "d")) == Word("/d/x:", Variable("A"), "/d")
    assert shell.changed("/deployer", lambda text: text[1:]) == "deployer"
    assert shell.data(word) == "/deployer/x:/deployer"
    assert shell.joined(["a", "b"], ":") == "a:b"
    assert shell.joined(["a", Word(Variable("A"))], ":") == Word("a:", Variable("A"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": "it's", "b": True, "c": code("{x}", x=1)}, "1 'it'\"'\"'s'1end"),
        ({"a": "x", "b": False, "c": code("")}, "1 xend"),
        ({"a": None, "b": 1, "c": ["x y"]}, "2 x yend"),
        ({"a": "", "b": 0, "c": ()}, "2 noneend"),
    ],
)
def test_a_template_of_a_file_has_conditions(given, text):
    template = "@?a@1 @a@@?b@@c@@.@@:@2 @?b@x y@:@none@.@@.@end"
    assert shell.filled(template, given).text == text
    with pytest.raises(TypeError, match="is None, within quotes"):
        shell.filled("echo '@a@'", given)


def literal(node):
    if isinstance(node, ast.IfExp):
        return literal(node.body) and literal(node.orelse)
    return type(node).__name__ in ("Str", "Constant")


@pytest.mark.thorough
def test_only_literals_of_ours_are_code():
    """Every call in the package that makes code, or a variable, is given a literal; nobody else makes Code."""
    calls = []
    parts = ("contract", "system", "site") if sys.version_info < (3, 10) else (".",)  # what this Python can read
    for path in sorted(path for part in parts for path in (PACKAGE / part).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\b(code|Program|Variable|Code)\(", text):  # as the formatter writes a call
            continue
        tree = ast.parse(text)
        # A literal with a name, as long as it has no other.
        named = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                named[name] = named.get(name, True) and literal(node.value)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if name in ("code", "Program", "Variable", "Code") and path.name != "shell.py":
                first = node.args[0] if node.args else None
                ours = literal(first) or (isinstance(first, ast.Name) and named.get(first.id))
                if name == "Program" and path.parts[-2:] == ("runtimes", "starter.py"):
                    ours = True  # of a file beside it
                if name == "Variable" and path.name == "native.py":
                    ours = True  # of the lists in LISTS; its name is looked at when it is made
                if not ours or name == "Code":
                    pytest.fail("%s:%d: %s() of what is no literal" % (path, node.lineno, name))
                calls.append(name)
    assert calls.count("code") > 20


def test_only_files_of_ours_are_templates_and_programs():
    folders = {path: path.read_text(encoding="utf-8") for path in sorted((PACKAGE / "site").rglob("*.py"))}
    names = r"\b(?:starter\.program|fill)\("
    calls = [text for text in folders.values() for _ in re.findall(r"(?<!def )" + names, text)]
    assert len(calls) == sum(len(re.findall(names + r'\s*"[a-z]+\.sh"', text)) for text in folders.values()) > 10
    readers = ("shell.filled(", "get_data(__name__, file)")
    users = {path.parent.name for path, text in folders.items() if any(each in text for each in readers)}
    assert users == {"templates", "runtimes"}


def test_quoted_words_can_be_pasted():
    assert shell.quoted(["a", "b c", "$d"]) == "a 'b c' '$d'"
