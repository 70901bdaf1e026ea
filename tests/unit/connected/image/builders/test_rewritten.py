"""Dockerfiles as builders receive them, and what each builder knows."""

from deployer.connected.image.builders import features, rewritten
from deployer.connected.image.definition.dockerfile import parse

TEXT = """\
# syntax=docker/dockerfile:1.7
# escape=\\
ARG BASE
FROM ${BASE} AS one
COPY --link --chown=1:1 a /a
run echo one \\
    --link two
RUN <<EOF
RUN this is not an instruction
EOF
FROM one
RUN --mount=type=cache,target=/c ["true"]
"""


def test_the_own_frontend_and_link_are_left_out_and_nothing_else() -> None:
    changed = rewritten.portable(TEXT).splitlines()
    kept = TEXT.splitlines()
    assert changed[:2] == [kept[1], "#"]
    assert changed[4] == "COPY --chown=1:1 a /a"
    assert [*changed[2:4], *changed[5:]] == [*kept[2:4], *kept[5:]]
    assert rewritten.portable("FROM x\nRUN true") == "FROM x\nRUN true"
    assert "x/y:1" in rewritten.portable("# syntax=x/y:1\nFROM x\nCOPY --link a /\n")
    assert parse(rewritten.portable(TEXT)).directives == {"escape": (1, "\\")}


def test_each_run_step_mounts_the_settings_and_the_first_of_a_stage_has_the_variables() -> None:
    options = rewritten.mount_options(["ca.crt"])
    assert options == " --mount=type=secret,id=deployer-ca.crt,target=/run/deployer/ca.crt,mode=0444"
    changed = rewritten.mounting(TEXT, ["ca.crt"], ["PIP_CERT"])
    assert changed.replace(options, "").replace("ARG PIP_CERT\n", "") == TEXT
    steps = [step for step in parse(changed).instructions() if step.name in ("RUN", "ARG")]
    assert [(step.name, "deployer-ca.crt" in "".join(step.flags)) for step in steps] == [
        ("ARG", False), ("ARG", False), ("RUN", True), ("RUN", True), ("ARG", False), ("RUN", True),
    ]  # fmt: skip
    assert "\nRUN this is not" in changed
    assert rewritten.mounting(TEXT, [], ["PIP_CERT"]) == TEXT


def test_messages_have_the_line_numbers_of_the_users_file() -> None:
    text = "FROM x AS 1\nRUN 2\nCOPY 3 3\nFROM 4\nENV 5 5\nRUN 6 \\\n 7\nFROM 8\nCOPY 9 9\n"
    changed = rewritten.mounting(text, ["ca.crt"], ["A", "B"])
    for line, words in enumerate(text.splitlines(), 1):
        at = next(at for at, word in enumerate(changed.splitlines(), 1) if word[-2:] == words[-2:])
        assert rewritten.own_lines(f"error on line {at}: 4", changed, 2) == f"error on line {line}: 4"
    assert rewritten.own_lines("line 3", changed, 2) == "line 2"  # an added line
    assert rewritten.own_lines("line 9", text, 0) == "line 9"


def test_what_a_builder_does_not_know_is_found_with_those_that_do() -> None:
    docker, buildah = features.Known(docker=(20, 10)), features.Known(buildah=(1, 28))
    parsed = parse(TEXT)
    assert [part.what for part in features.lacking(parsed, docker)] == ["RUN a here-document"]
    lacking = features.lacking(parsed, features.Known())
    assert [(part.line, part.what) for part in lacking] == [(8, "RUN a here-document"), (12, "RUN --mount")]
    assert lacking[0].able == "BuildKit of Docker 23.0 or buildah 1.35 (podman has one)"
    assert [part.what for part in features.lacking(parsed, buildah)] == ["RUN a here-document"]
    assert not features.lacking(parsed, features.Known(buildah=(1, 39)))
    assert features.lacking(parse("FROM x\nRUN --security=insecure x\n"), docker)[0].able.startswith("no builder")


def test_the_builders_that_mount_a_secret_as_a_variable_are_named() -> None:
    parsed = parse("FROM x\nRUN --mount=type=secret,id=a,env=A true\nRUN --mount=type=cache,target=/env=x true\n")
    (part,) = features.lacking(parsed, features.Known(docker=(26, 1)))
    assert (part.line, part.what) == (2, "RUN --mount=type=secret,env=")
    assert part.able == "BuildKit of Docker 27.3 or buildah 1.44 (podman has one)"
    assert not features.lacking(parsed, features.Known(docker=(27, 3)))


def test_a_frontend_named_by_digest_decides_what_buildkit_knows() -> None:
    parsed = parse(f"# syntax=docker/dockerfile:1.7@sha256:{64 * 'a'}\n" + TEXT.partition("\n")[2])
    assert not features.lacking(parsed, features.Known(docker=(20, 10)))
    for ignores_it in (features.Known(), features.Known(buildah=(1, 28))):
        assert features.lacking(parsed, ignores_it)


def test_versions_are_read_from_what_programs_print() -> None:
    assert features.version("Docker version 20.10.24+dfsg1, build 297e128") == (20, 10)
    assert features.version("28.2.2") == (28, 2)
    assert features.version("") == (0, 0)
