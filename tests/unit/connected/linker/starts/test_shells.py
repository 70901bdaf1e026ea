"""Random scripts are read as bash and dash run them: what they start is found, and what is certain is started."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deployer.connected.linker import commands
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.starts import started
from deployer.connected.linker.starts.started import Started, Surroundings
from deployer.connected.linker.starts.words import UnknownWord
from deployer.contract.bundle import command
from tests.unit.connected.linker.starts.test_started import files

#: Programs that end with 0; ``no`` ends with 1.
GOOD = ("aa", "bb", "cc", "dd")
STUB = '#!/bin/sh\nprintf "%s\\037" "${0##*/}" "$@" "$(printf "\\036")" >>"$LOG"\n'  # in one write
#: What leaves the normal course: nothing is certain after an error.
ABNORMAL = re.compile(r"exit 1|return 1|no &&")


class Writer:
    """Writes random scripts."""

    def __init__(self, seed: int, bash: bool) -> None:
        self.random = random.Random(seed)
        self.bash = bash
        self.functions: list[str] = []
        self.parts = False  # whether it may start other scripts

    def word(self) -> str:
        return self.random.choice([
            "w", "'q r'", '"d e"', "b\\ s", '"$X"', "$X", '"$Y"', "$Y", "$#", '"$@"', "$*", "$1", '"${2:-two}"',
            "${Z:-zed}",
            '"${Z:+set}"', "${X%.*}", '"${X##*/}"', "$((1 + 2))", '""', "''", '"a\\"b"', "x$X.y", '"$(echo out)"',
            "${Z-}",
            "`echo tick`", '"$0"', "${X:+more}", "a=b", "--opt=$X", "\\$X", "'$X'", '"\\$X"', "{", "}", "!", "[", "é",
            *(['"${A[@]}"', '"${A[1]}"', '"${@:2}"', "$'q'", "${#X}"] if self.bash else []),
        ])  # fmt: skip

    def command(self) -> str:
        name = self.random.choice([*GOOD, "$P", '"$P"', "${N:-bb}", *self.functions, *self.functions])
        before = self.random.choice(["", "", "", "", "V=1 ", "X=other ", "command ", "time -p " if self.bash else ""])
        if name in self.functions:
            before = ""
        return before + " ".join([name, *(self.word() for _ in range(self.random.randrange(4)))])

    def assignment(self) -> str:
        return self.random.choice([
            "X=one", "X=a/b.c", "X='two words'", "Y=$X", 'Y="$1"', "P=aa", "P=cc", "export P=dd", "unset Z", "Z=",
            "Z=z",
            "set -- s1 's 2'", "set --", "set -u +u", "set -f +f -- o p", "shift", "X=$X$X", ": ${N:=cc}",
            "X=$(echo sub)", "readonly R=1; X=$R",
            "P=${P}",
            *(["set -euo pipefail; set +eu", "A=(1 '2 3' $X)", "A+=(4)", "X+=more", "local_=1; (( local_++ ))",
            "declare X=dec"] if self.bash else []),
        ])  # fmt: skip

    def statement(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.4:
            return self.random.choice([self.command, self.command, self.assignment])()
        return self.random.choice([self.branch, self.loop, self.case, self.both, self.grouped, self.texts])(depth + 1)

    def body(self, depth: int) -> str:
        return "\n".join(self.statement(depth) for _ in range(self.random.randrange(1, 4)))

    def test(self) -> str:
        return self.random.choice([
            "aa", "no", "true", "false", "! no", "[ $# -gt 1 ]", '[ "$X" = one ]', "[ -f /nowhere ]", "[ -n \"$Z\" ]",
            '[ -z "$Z" ] && true', 'test "$1" != x', "cd /",
            *(["[[ $X == o* ]]", "[[ -z $Z || $X = y ]]"] if self.bash else []),
        ])  # fmt: skip

    def branch(self, depth: int) -> str:
        other = self.random.choice(["", f"elif {self.test()}; then {self.body(depth)}\n", f"else {self.body(depth)}\n"])
        leave = self.random.choice(["", "", "", "exit 0\n", "exit 1\n", "exec bb last\n"])
        return f"if {self.test()}; then\n{self.body(depth)}\n{leave}{other}fi"

    def loop(self, depth: int) -> str:
        leave = self.random.choice(["", "", "break\n", "continue\n", "[ -f /x ] && break\n", "no && continue\n"])
        head = self.random.choice(
            ["for I in 1 2 'three 3'", "for X in $X end", "for P in aa bb", "for I", "while no", "until aa"]
        )
        return f"{head}; do\n{self.body(depth)}\n{leave}{self.body(depth)}\ndone"

    def case(self, depth: int) -> str:
        word = self.random.choice(["$X", '"$1"', "one", "$#", "$Y.z"])
        patterns = self.random.sample(["one", "s1", "*.c", "[0-9]", "a|o*", "*", '"$Y"', "''"], 3)
        items = "\n".join(f"{pattern}) {self.body(depth)};;" for pattern in patterns)
        return f"case {word} in\n{items}\nesac"

    def both(self, depth: int) -> str:
        operator = self.random.choice(["&&", "||", "|", ";"])
        rest = self.random.choice(["", f"|| {self.command()}", ">/dev/null"])
        return f"{self.test()} {operator} {self.command()} {rest}"

    def grouped(self, depth: int) -> str:
        name = f"f{len(self.functions)}"
        leave = self.random.choice(["", "", "return", "no && return 0", "return 1"])
        kind = self.random.randrange(5)
        if kind == 0:
            made = f"{name}() {{\n{self.body(depth)}\n{leave}\n{self.body(depth)}\n}}"
            if depth == 1:
                self.functions.append(name)
            return made
        if kind == 1:
            return f"(\n{self.body(depth)}\n)"
        if kind == 2:
            return f"{{\n{self.body(depth)}\n}} </dev/null"
        if kind == 3:
            return f"X=$(\n{self.body(depth)}\n)"
        return f"if true; then :; fi; {self.command()} &\nwait"

    def texts(self, depth: int) -> str:
        shell = "bash" if self.bash else "sh"
        return self.random.choice([
            f"{shell} -c 'aa \"$1\" $X; exec bb \"$@\"' name {self.word()} {self.word()}",
            f"{shell} -ec \"cc $X\"",
            f"eval {self.command()}",
            "eval 'X=ev; aa $X'",
            f"{shell} <<'END'\n{self.body(depth)}\nEND",
            f"{shell} <<END\naa $X\nEND",
            "cat_=$(cat 2>/dev/null); trap 'cc trapped' EXIT",
            *([". ./part", f"./part2 {self.word()}"] if self.parts else []),
            f"env V=3 {self.random.choice(GOOD)} {self.word()}",
            f"nice -n 1 {self.random.choice(GOOD)}",
        ])  # fmt: skip

    def script(self) -> str:
        return "".join(f"{self.statement()}\n" for _ in range(self.random.randrange(2, 7)))


#: Where the program ``zz``, which is missing, may be in a script. A job fails with it only if the script does.
MISSING = (
    "zz", "zz 2>/dev/null", "zz || true", "zz || aa", "zz && aa", "aa && zz", "no || zz", "! zz", "zz &",
    "zz | aa", "aa | zz", "zz | aa | bb", "(zz)", "{ zz; }", "(zz; aa)", "(set -e; zz; aa)", "X=$(zz)", "aa $(zz)",
    "export X=$(zz)", "X=$(zz; aa)", "X=$(zz) Y=$(aa)", "X=1 zz", "if zz; then aa; fi", "if zz; then aa; else bb; fi",
    "if ! zz; then exit 3; fi", "while zz; do aa; done", "for I in 1 2; do zz; done", "for I in 1 2; do zz; aa; done",
    "case one in one) zz;; esac", "case one in two) zz;; esac", "f() { zz; }; f", "f() { zz; return; }; f",
    "f() { zz; return 0; }; f", "f() { zz || return 4; aa; }; f", "zz || exit 1", "zz || exit", "zz || { aa; exit 5; }",
    "zz; exit", "zz; exit $?", "zz; exit 0", "exec zz", "exec zz || true", "(exec zz)", "(exec zz) || true", "eval zz",
    "eval zz || true", "env zz", "nice zz", "command zz", "sh -c zz", "sh -c 'zz; aa'", "sh -ec 'zz; aa'",
    "sh -ec 'zz; aa' || true", "sh <<END\nzz\nEND", "zz <<END\nzz\nEND",
    "zz; rc=$?; aa; exit $rc", "zz; if [ $? -ne 0 ]; then exit 3; fi", "zz; if [ $? -eq 0 ]; then exit 3; fi",
    'zz; [ $? = 0 ] || exit 3', 'zz; [ "$?" = 127 ] && exit 0', "c() { [ $? -ne 0 ] && exit 1; }; zz; c",
    "trap 'exit 0' EXIT; zz", "trap 'exit 7' EXIT; zz", "trap aa EXIT; zz", "f() { zz; aa; }; f || true",
    "set +e; zz; set -e", "until zz; do break; done", "zz; true", "zz; :", "zz; X=1", "zz; f() { aa; }",
    "zz; wait", "zz\ncd / || exit", "{ zz; } >/dev/null", "if true; then zz; fi", "if false; then zz; fi",
    "if [ -n \"$Q\" ]; then zz; fi", "while true; do zz; break; done", ". ./part",
)  # fmt: skip
BASH_ONLY = ("time zz", "if [[ 1 == 1 ]]; then zz; fi", "command_not_found_handle() { return 0; }; zz",
             "set -o pipefail; zz | aa", "set -o pipefail; aa | zz | bb", "set -o pipefail; zz | aa || true",
             "aa < <(zz)", "local_=$(zz) || exit 4", "declare X=$(zz)", "[[ -z $(zz) ]]")  # fmt: skip


class Lab:
    """A folder with programs that record how they were started."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.made: dict[str, str | None] = {}
        self.status = 0
        (top / "bin").mkdir()
        for name in (*GOOD, "no"):
            self._write(f"bin/{name}", STUB + ("exit 1\n" if name == "no" else ""), True)
        for name in ("env", "nice", "bash", "dash", "sh"):
            (top / "bin" / name).symlink_to(str(shutil.which(name)))
            self.made[f"{top}/bin/{name}"] = None

    def _write(self, name: str, text: str, program: bool = False) -> None:
        path = self.top / name
        path.write_text(text)
        path.chmod(0o755)
        self.made[str(path)] = None if program else text

    def run(self, seed: int, shell: str) -> tuple[str, list[list[str]], Started]:
        """Return a random script, what a shell starts when it runs it, and what was read of it."""
        writer = Writer(seed, shell == "bash")
        self._write("part", writer.body(1) + "\n")
        self._write("part2", f"#!{shutil.which(shell)}\n{writer.body(1)}\n")
        self.made[str(shutil.which(shell))] = None
        writer.parts, writer.functions = True, []
        return self.of_text(writer.script(), shell)

    def of_text(
        self, text: str, shell: str, failing: tuple[str, str] | None = None
    ) -> tuple[str, list[list[str]], Started]:
        """Return a script, what a shell starts when it runs it, and what was read of it."""
        self._write("run.sh", text)
        log = self.top / "log"
        log.write_text("")
        environment = {"PATH": f"{self.top}/bin", "LOG": str(log)}
        argv = [shell, "run.sh", "s1", "x y"]
        done = subprocess.run([str(shutil.which(shell)), *argv[1:]], check=False, cwd=self.top, env=environment,
                              timeout=30, stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        self.status = done.returncode
        seen = [record.split("\037")[:-1] for record in log.read_text().split("\036\037")[:-1]]
        view = JobFilesystem(files(self.made))
        place = commands.place(commands.in_bundle(files(self.made), {}), [f"PATH={self.top}/bin"], str(self.top))
        at = Surroundings(view, place, None, frozenset(), environment)
        return text, seen, started.follow(argv, at, failing=failing)


def matches(words: list[str], program: started.StartedProgram) -> bool:
    """Return whether a program was started with these words, as far as they are known."""
    if os.path.basename(program.argv[0]) != words[0]:
        return False
    if any(isinstance(word, UnknownWord) for word in program.argv):
        return True
    return list(program.argv[1:]) == words[1:]


def compare(lab: Lab, seed: int, shell: str) -> bool:
    """Compare one script; return whether it was followed to its end."""
    text, seen, found = lab.run(seed, shell)
    parts = "\n--\n".join((lab.top / name).read_text() for name in ("part", "part2"))
    note = f"seed {seed}, {shell}:\n{text}\n--\n{parts}"
    if found.unclear:
        return False
    for words in seen:
        assert any(matches(words, program) for program in found.programs), f"{words} was not found in {note}"
    for program in found.programs if not ABNORMAL.search(note) else ():
        if program.certain and program.path:
            assert any(matches(words, program) for words in seen), f"{program.argv} was not started by {note}"
    return True


def lab_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(command, "_OUTSIDE", ())  # the folder of the programs is below /tmp
    lab = Lab(tmp_path)
    lab._write("part", "zz\n")
    return lab


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_random_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    lab = lab_of(tmp_path, monkeypatch)
    followed = sum(compare(lab, seed, shell) for seed in range(20))
    assert followed >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("block", range(4))
def test_many_random_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, block: int) -> None:
    lab = lab_of(tmp_path, monkeypatch)
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        compare(lab, seed, shell)


def decides(lab: Lab, text: str, shell: str) -> tuple[bool, bool]:
    """Return whether a script ends with an error because ``zz`` is missing: by what was read of it, and really."""
    _, _, found = lab.of_text(text, shell)
    fails = lab.status != 0
    keys = {program.key for program in found.programs if program.path is None}
    read = [bool(lab.of_text(text, shell, key)[2].status) for key in sorted(keys)]
    return any(read), fails


#: A failure is the job's here, but only because of what other commands do, which is not known.
NOT_KNOWN = ("trap 'exit 7' EXIT; zz\ntrue", "no || zz", "while true; do zz; break; done")


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("before", ["", "set -e\n"])
@pytest.mark.parametrize("after", ["", "\ntrue"])
def test_a_missing_program_decides_as_in_a_real_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, before: str, after: str
) -> None:
    lab = lab_of(tmp_path, monkeypatch)
    for text in (*MISSING, *(BASH_ONLY if shell == "bash" else ())):
        script = f"{before}{text}{after}\n"
        read, real = decides(lab, script, shell)
        assert read == real or (real and (text + after).startswith(NOT_KNOWN)), script


class Failing(Writer):
    """Writes random scripts with a program that is missing."""

    def command(self) -> str:
        if self.random.random() < 0.7:
            return super().command()
        return self.random.choice([text for text in MISSING if "\n" not in text and "&" not in text[-1:]])

    def script(self) -> str:
        return self.random.choice(["", "", "set -e\n", "set -eu\n"]) + super().script()


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("block", range(2))
def test_what_is_decided_by_random_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, block: int
) -> None:
    """A script that is said to fail does; most that fail are said to."""
    lab = lab_of(tmp_path, monkeypatch)
    said = failed = 0
    for seed in range(100 * block, 100 * block + 100):
        script = Failing(seed, shell == "bash").script()
        if "zz" in script:
            read, real = decides(lab, script, shell)
            assert real or not read or "no &&" in script, f"seed {seed}, {shell}:\n{script}"
            said, failed = said + read, failed + real
    assert failed >= said >= 10
