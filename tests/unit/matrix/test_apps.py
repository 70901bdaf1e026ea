"""The second population's pure parts: what is set aside, how a program is started, how what it printed is judged."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployer.contract.site.plan import APP
from tests.matrix import apps, classify, table, watch
from tests.matrix.app import App
from tests.matrix.apps import APPS, BY_NAME, SET_ASIDE
from tests.matrix.classify import FAILS, HANGS, RUNS, WRONG, Outcome
from tests.matrix.inputs import TEXTS
from tests.matrix.pairs import Pair, Site, draw
from tests.matrix.run import Seen
from tests.matrix.table import Line
from tests.matrix.watch import Watched
from tests.matrix.wrappers import DIRECT, IMAGE_SCRIPT, WRAPPERS

PI = BY_NAME["boost-bookworm"]
PRINTED = "pi is 3.14159265 by 2 ranks\n"
OURS, OTHER = ("/opt/openmpi/5.0.11/lib/libmpi.so.40", 7), ("/usr/lib/libmpi.so.40.30.4", 8)
BOTH = [Watched(host, "/usr/local/bin/pi", [OURS]) for host in ("cn1", "cn2")]


def seen(log: str = PRINTED, exit_code: int | None = 0, timed_out: bool = False, watched: Any = BOTH) -> Seen:
    return Seen(exit_code, timed_out, [], frozenset({7}), log, [], 1.0, watched)


# ---------------------------------------------------------------- the population


def test_there_are_twenty_applications_of_each_kind_and_names_are_unique() -> None:
    assert len({app.application for app in APPS}) >= 20
    assert {app.suite for app in APPS} == {"bookworm", "trixie"}
    assert {"C", "C++", "Fortran", "Python"} <= {app.language for app in APPS}
    assert {app.family for app in APPS} == {"openmpi", "mpich", ""}
    assert len(BY_NAME) == len(APPS)


def test_a_third_of_the_applications_is_set_aside() -> None:
    names = {app.application for app in APPS}
    assert set(SET_ASIDE) < names
    assert len(SET_ASIDE) >= len(names) // 3


def test_tuning_draws_nothing_that_is_set_aside_and_the_counted_run_does() -> None:
    assert not any(pair.set_aside for pair in draw(3, 80, tuning=True))
    counted = draw(3, 120)
    assert any(pair.set_aside for pair in counted)
    assert sum(isinstance(pair.image, App) for pair in counted) >= 60
    assert DIRECT in {pair.wrapper for pair in counted} <= set(WRAPPERS)
    assert all(pair.wrapper == DIRECT for pair in counted if not isinstance(pair.image, App))


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_inputs_and_scripts_of_an_application_are_there(app: App) -> None:
    programs = Path(apps.__file__).with_name("programs")
    assert all(name in TEXTS or name.startswith("/") for name in app.inputs)
    assert all((programs / name).is_file() for name in (*app.scripts, *app.source.split()))
    assert re.compile(app.world).groups <= 1


# ---------------------------------------------------------------- wrappers

#: Those that need an image, or end before the program does.
NOT_HERE = ("script in image", "bash -lc", "set -e module", "returns")


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name not in NOT_HERE])
def test_a_wrapper_starts_the_program_with_its_words(name: str, tmp_path: Path) -> None:
    argv = ["/bin/echo", "two words", "$HOME", "it's"]
    started = WRAPPERS[name](argv)
    for file, text in started.app.items():
        (tmp_path / file).write_text(text.replace(APP, str(tmp_path)))
        (tmp_path / file).chmod(0o755)
    command = [word.replace(APP, str(tmp_path)) for word in started.command]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "two words $HOME it's"


def test_the_image_s_script_is_the_same_for_any_wrapper() -> None:
    started = WRAPPERS["script in image"](["prog", "a b"])
    assert started.command == [IMAGE_SCRIPT]
    assert started.image.splitlines()[-1] == "exec prog 'a b'"


# ---------------------------------------------------------------- what was seen


@pytest.mark.parametrize(
    ("found", "kind", "reason"),
    [
        (seen(), RUNS, ""),
        (seen(PRINTED.replace("2 ranks", "1 ranks") * 2), WRONG, "worlds of 1"),
        (seen(PRINTED.replace("3.14", "3.15")), WRONG, "its result is not there: pi is 3.15159265 by 2 ranks"),
        (seen(""), WRONG, "its result is not there: it said nothing"),
        (seen(watched=[]), WRONG, "no MPI library was seen"),
        (seen(watched=[Watched("cn1", "/usr/local/bin/pi", [])]), WRONG, "no MPI library was seen"),
        (seen(watched=BOTH[:1]), WRONG, "no MPI library was seen but on cn1"),
        (seen(watched=[*BOTH, Watched("cn1", "/x", [OTHER])]), WRONG, f"another library: {OTHER[0]}"),
        (seen("p: symbol lookup error: p: undefined symbol: f\n", 127),
         FAILS, "symbol lookup error: p: undefined symbol: f"),
        (seen(timed_out=True, exit_code=137), HANGS, "after its result"),
        (seen("", None, True), HANGS, "before its result"),
    ],
)  # fmt: skip
def test_an_application_is_judged_by_its_output_exit_code_and_maps(found: Seen, kind: str, reason: str) -> None:
    assert classify.outcome(found, PI) == Outcome(kind, reason)


def test_two_results_of_a_program_that_prints_one_a_world_are_two_worlds() -> None:
    netpipe = BY_NAME["netpipe-openmpi-bookworm"]
    line = " 57:    4099 bytes     20 times -->  10787.82 Mbps in       1.45 usec\n"
    assert classify.outcome(seen(line), netpipe) == Outcome(RUNS, "")
    assert classify.outcome(seen(line * 2), netpipe) == Outcome(WRONG, "worlds of 1")


def test_the_table_counts_what_was_set_aside_apart() -> None:
    site = Site("bookworm", "openmpi-5.0.11", "srun", "pmix", "charliecloud")
    aside = next(app for app in APPS if app.application in SET_ASIDE)
    lines = [Line(Pair(app, site, "sh -c"), "RUN", [], Outcome(RUNS, ""), [], 1.0) for app in (PI, aside)]
    text = table.render(lines)
    assert "Applications of others: 2 pairs." in text
    assert "Of these set aside: 1 pairs." in text
    assert f"| {PI.name}, sh -c |" in text


# ---------------------------------------------------------------- the watcher


def test_the_watcher_sees_what_a_program_below_rank_has_mapped_and_no_other(tmp_path: Path) -> None:
    """A library is any file with the name; ``rank`` is told by its command line."""
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(bytes(4096))
    maps = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); input()"
    rank = f"exec {shlex.join([sys.executable, '-c', maps, str(library)])}"
    parent = ["sh", "-c", 'shift; "$@"; exit', "deployer.pyz", "rank", "sh", "-c", rank]
    network = os.readlink("/proc/self/ns/net")
    found = watch.PayloadProcesses({network: "cn1"})
    with (
        subprocess.Popen(parent, stdin=subprocess.PIPE) as below,
        subprocess.Popen(["sh", "-c", rank], stdin=subprocess.PIPE) as beside,
    ):
        for _ in range(100):
            found.look()
            if any(mapped for _, _, mapped in found.found.values()):
                break
        for process in (below, beside):
            process.communicate(b"\n")
    mapped = [(host, list(files)) for host, _, files in found.found.values() if files]
    assert mapped == [("cn1", [(str(library), library.stat().st_ino)])]
    json.dumps(mapped)
