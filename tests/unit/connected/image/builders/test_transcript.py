"""What builders print: their own lines, recorded, and what a transcript keeps of them."""

from pathlib import Path
from typing import Any

import pytest

from deployer.connected.image.builders import buildkit, podman
from deployer.connected.image.builders.transcript import Transcript, reason
from deployer.contract.base.errors import JobFailed, SpaceError

#: Builds of one Dockerfile of two stages, whose last step fails: the first time, or again with its steps in the cache.
RECORDED = Path(__file__).parents[4] / "recordings" / "builders"


def transcript(said: list[str] | None = None) -> Transcript:
    return Transcript("deployer/x:1", "/log", (said if said is not None else []).append)


@pytest.mark.parametrize(
    ("recording", "lines", "step", "steps", "cached"),
    [
        ("docker-20.10", buildkit.BuildKitLines, "stage-1 3/3", 6, 0),
        ("buildx-0.13-cached", buildkit.BuildKitLines, "stage-1 3/3", 6, 3),
        ("podman-4.3", podman.BuildahLines, "3/3 of stage 2/2", 6, 0),
        ("podman-5.4-cached", podman.BuildahLines, "3/3 of stage 2/2", 6, 3),
    ],
)
def test_a_recorded_build_has_its_steps_its_log_and_its_failure(
    recording: str, lines: Any, step: str, steps: int, cached: int
) -> None:
    said: list[str] = []
    kept = transcript(said)
    reader = lines(kept)
    for line in filter(None, (RECORDED / f"{recording}.txt").read_bytes().decode().split("\n")):
        reader.line(line)
    assert (kept.steps, kept.cached) == (steps, cached)
    assert said.count("E: Unable to locate package vmi") == 1
    assert ("red" in said) == ("cached" not in recording)
    with pytest.raises(JobFailed) as caught:
        kept.failed(reader.error, reader.code)
    failed = f"failed in step {step}, RUN echo 'E: Unable to locate package vmi' >&2; exit 100: exit 100: "
    assert caught.value.message == f"build of deployer/x:1 {failed}E: Unable to locate package vmi"


def test_lines_of_steps_that_run_together_follow_their_heading() -> None:
    said: list[str] = []
    kept = transcript(said)
    reader = buildkit.BuildKitLines(kept)
    for line in (
        "#4 [a 2/2] RUN one", "#5 [b 2/3] RUN two", "#4 0.1 1", "#4 0.2 2", "#5 0.3 3", "#4 DONE 0.4s",
        "#6 exporting to image", "#6 exporting layers 0.0s done", "#5 ERROR: exit code: 2",
    ):  # fmt: skip
        reader.line(line)
    reader.line("#4 0.5 another step goes on for a moment")
    one, two = "[a 2/2] RUN one", "[b 2/3] RUN two"
    assert said == [one, two, one, "1", "2", two, "3", "ERROR: exit code: 2", "another step goes on for a moment"]
    assert (reader.code, kept.step) == (2, "in step b 2/3, RUN two")


def test_a_download_that_fails_is_named_and_not_the_step_before() -> None:
    kept = transcript()
    reader = buildkit.BuildKitLines(kept)
    for line in ("#4 [a 1/2] FROM x", "#5 https://h.example/x", "#5 ERROR: no such host", "#6 [a 2/2] RUN true"):
        reader.line(line)
    assert (reader.error, kept.step) == ("no such host", "at https://h.example/x")


def test_a_program_of_another_processor_is_told_from_other_failures() -> None:
    kept = transcript()
    kept.begin("2", "2/2, RUN true", 2, 2)
    kept.output("exec /bin/sh: exec format error")
    with pytest.raises(JobFailed) as caught:
        kept.failed("exit code: 1", 1)
    assert caught.value.hint.startswith("programs of another architecture need emulation: apt-get install qemu-user")


@pytest.mark.parametrize(
    "line",
    [
        "failed to solve with frontend dockerfile.v0: failed to create LLB definition: unknown instruction: FORM",
        "ERROR: failed to solve: dockerfile parse error on line 2: unknown instruction: FORM",
    ],
)
def test_an_error_before_the_first_step_is_the_builder_s(line: str) -> None:
    reader = buildkit.BuildKitLines(transcript())
    reader.line(line)
    assert reader.error.endswith("unknown instruction: FORM")
    assert reader.code is None


# ------------------------------------------------------------------------------------------------ what both share


def test_steps_that_the_build_of_a_stage_made_are_not_counted_as_cached() -> None:
    said: list[str] = []
    image = transcript(said)
    stage = image.for_part("stage tools")
    of_stage, of_image = buildkit.BuildKitLines(stage), buildkit.BuildKitLines(image)
    for line in ("#1 [t 1/3] FROM x", "#2 [t 2/3] RUN 2", "#2 CACHED", "#3 [t 3/3] RUN 3", "#3 DONE 0.1s"):
        of_stage.line(line)
    image.continues(stage)
    for line in ("#1 [t 2/3] RUN 2", "#1 CACHED", "#2 [t 3/3] RUN 3", "#2 CACHED", "#3 [u 2/2] RUN 4", "#3 CACHED"):
        of_image.line(line)
    assert image.cached == 2  # 2 was cached for the stage, 3 was not, 4 is
    assert said[0] == "stage tools: [t 1/3] FROM x"
    assert said[4] == "[t 2/3] RUN 2"


def test_a_failing_step_shows_itself_and_the_end_of_its_log() -> None:
    kept = transcript()
    reader = podman.BuildahLines(kept)
    for line in ("STEP 1/3: FROM x", "of another step", "STEP 2/3: RUN make", *(f"line {n}" for n in range(30))):
        reader.line(line)
    with pytest.raises(JobFailed) as caught:
        kept.failed("returned a non-zero code: 7", 7)
    assert "in step 2/3, RUN make: exit 7" in caught.value.message
    assert caught.value.message.endswith(": line 29")
    assert "line 28" not in caught.value.message
    assert "of another step" not in caught.value.message
    assert "/log" in caught.value.hint


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (["Reading package lists...", "E: Unable to locate package vmi", "W: a warning"], 1),
        (
            ["Collecting a", "ERROR: Could not find a version that satisfies the requirement a==9", "",
             "ERROR: No matching distribution found for a==9", "[notice] A new release of pip is available"],
            3,
        ),
        (
            ["  x.c:3:10: fatal error: mpi.h: No such file or directory", "  compilation terminated.",
             "  error: command '/usr/bin/gcc' failed with exit code 1", "  [end of output]",
             "  note: This error originates from a subprocess", "  ERROR: Failed building wheel for a",
             "ERROR: Failed to build installable wheels for some pyproject.toml based projects (a)"],
            2,
        ),
        (["x.c:3:10: fatal error: mpi.h: No such file or directory", "compilation terminated.",
          "make: *** [Makefile:2: x.o] Error 1"], 0),
        (["Traceback (most recent call last):", '  File "a"', "ModuleNotFoundError: No module named 'numpy'"], 2),
        (["/bin/sh: 1: mpicc: not found"], 0),
        (["make: *** No rule to make target 'all'.  Stop."], 0),
        (["fatal: unable to access 'https://h.example/x/': Could not resolve host: h.example", "done"], 0),
        (["CMake Error at CMakeLists.txt:3 (find_package):", "-- Configuring incomplete, errors occurred!"], 0),
        (["some words", "the last words", ""], 1),
    ],
)  # fmt: skip
def test_a_failed_step_is_reported_by_the_line_that_says_why(log: list[str], line: int) -> None:
    assert reason(log) == log[line].strip()


def test_the_report_of_a_failed_build_is_short_and_names_the_log() -> None:
    kept = transcript()
    reader = podman.BuildahLines(kept)
    reader.line("STEP 2/3: RUN " + "apt-get install a b c && " * 60 + "true")
    for line in ("E: Unable to correct problems " + "x" * 3000, *["more"] * 300):
        reader.line(line)
    with pytest.raises(JobFailed) as caught:
        kept.failed("returned a non-zero code: 100", 100)
    assert "exit 100: E: Unable to correct problems xxx" in caught.value.message
    assert len(caught.value.message) < 520
    assert caught.value.hint == "the whole log: /log"


def test_a_full_disk_is_a_space_error() -> None:
    kept = transcript()
    podman.BuildahLines(kept).line("STEP 1/1: RUN dd")
    with pytest.raises(SpaceError):
        kept.failed("write /x: no space left on device", None)
