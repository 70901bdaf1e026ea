"""Dockerfiles are read as an engine reads them, as far as rules need it."""

from deployer.connected.image.definition.dockerfile import commands, parse, shell_words

TEXT = """\
# syntax=docker/dockerfile:1
# escape=\\

ARG BASE=x
FROM --platform=linux/amd64 ${BASE} AS Build
ENV A=b C="d e" \\
    # a comment between
    F=g
ENV OLD form is one
run apt-get update \\

 && pip install a
RUN --mount=type=cache,target=/x --network=none true
COPY --from=build --chown=0:0 a b /c/
FROM build
RUN <<EOF sh
FROM nowhere
EOF
CMD ["sh", "-c", "a; b"]
"""


def test_instructions_stages_flags_and_lines() -> None:
    read = parse(TEXT)
    assert read.directives == {"syntax": (1, "docker/dockerfile:1"), "escape": (2, "\\")}
    assert [(step.name, step.value, step.line) for step in read.arguments] == [("ARG", "BASE=x", 4)]
    first, last = read.stages
    assert (first.base, first.name, last.base, last.name) == ("${BASE}", "build", "build", "")
    assert [(step.name, step.line) for step in first.instructions] == [
        ("FROM", 5), ("ENV", 6), ("ENV", 9), ("RUN", 10), ("RUN", 13), ("COPY", 14),
    ]  # fmt: skip
    assert first.instructions[1].pairs() == [("A", "b"), ("C", "d e"), ("F", "g")]
    assert first.instructions[2].pairs() == [("OLD", "form is one")]
    assert first.instructions[3].value == "apt-get update && pip install a"
    assert first.instructions[4].flags == ("--mount=type=cache,target=/x", "--network=none")
    assert first.instructions[5].value == "a b /c/"
    assert [(step.name, step.heredoc) for step in last.instructions[1:]] == [("RUN", True), ("CMD", False)]
    assert last.instructions[2].words() == ["sh", "-c", "a; b"]
    assert [step.line for step in read.image()] == [5, 6, 9, 10, 13, 14, 15, 16, 19]


def test_a_tab_separates_an_instruction_from_its_arguments() -> None:
    """Docker's own parser reads it so; an unseen COPY would let `pack` take an image of old files."""
    read = parse("FROM\tx AS a\nCOPY\t--chown=0:0\ta /b\nRUN \t true\nCMD\n")
    found = [(each.name, each.flags, each.value) for each in read.instructions()]
    assert found == [
        ("FROM", (), "x AS a"),
        ("COPY", ("--chown=0:0",), "a /b"),
        ("RUN", (), "true"),
        ("CMD", (), ""),
    ]
    assert [(stage.base, stage.name) for stage in read.stages] == [("x", "a")]


def test_a_backtick_continues_where_the_file_says_so() -> None:
    read = parse("# escape=`\nFROM x\nRUN a `\n b\nCOPY c:\\ d\n")
    assert [step.value for step in read.stages[0].instructions] == ["x", "a b", "c:\\ d"]


def test_a_stage_that_stands_on_itself_and_a_file_without_an_end_are_read() -> None:
    assert len(parse("FROM a AS a\nRUN b \\").image()) == 2
    assert parse("").image() == []


def test_commands_of_a_shell_line() -> None:
    line = "set -e; if true; then A=b env C=d sudo pip install x; fi && (cd /y && make) | tee 'z; w'"
    assert list(commands(shell_words(line))) == [
        ["set", "-e"], ["true"], ["pip", "install", "x"], ["fi"], ["cd", "/y"], ["make"], ["tee", "z; w"],
    ]  # fmt: skip
    assert shell_words("echo 'broken") != []
