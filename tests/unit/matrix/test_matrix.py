"""The matrix's pure parts: what is drawn, how a job's script is changed, what is seen, how it is judged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import classify, run, table
from tests.matrix.classify import FAILS, HANGS, RUNS, WRONG, Outcome
from tests.matrix.images import BY_NAME, IMAGES
from tests.matrix.pairs import RUNTIMES, Pair, Site, draw
from tests.matrix.run import Seen, unstopped
from tests.matrix.table import Line

GOLDEN = Path(__file__).parents[2] / "golden"
SITE = Site("bookworm", "intel-2021.15", "srun", "pmi2", "charliecloud")
OURS, OTHER = ["/opt/intel/lib/libmpi.so.12", 7], ["/usr/lib/libmpich.so.12", 8]


def seen(exit_code: int | None = 0, log: str = "", timed_out: bool = False, **changes: Any) -> Seen:
    rank: dict[str, Any] = {"size": 2, "wrong": 0, "mapped": [OURS], **changes}
    ranks = [{**rank, "rank": number, "host": f"cn{number}"} for number in (0, 1)]
    return Seen(exit_code, timed_out, [] if exit_code or timed_out else ranks, frozenset({7}), log, [], 1.0)


def line(verdict: str, codes: list[str], outcome: Outcome) -> Line:
    return Line(Pair(IMAGES[0], SITE), verdict, codes, outcome, [], 1.0)


def test_the_same_seed_draws_the_same_pairs_and_each_once() -> None:
    drawn = draw(5, 60)
    assert drawn == draw(5, 60)
    assert drawn != draw(6, 60)
    assert len(set(drawn)) == 60
    # whatever is drawn, each kind is: both labs, both families of images, and what cannot go together
    assert {pair.site.lab for pair in drawn} == {"bookworm", "trixie"}
    assert {"mpich", "openmpi"} <= {pair.image.family for pair in drawn}
    assert any(pair.image.family and pair.image.family != pair.site.family for pair in drawn)
    assert any(pair.image.family == pair.site.family for pair in drawn)
    assert {pair.site.runtime for pair in drawn} == set(RUNTIMES)


def test_names_of_images_are_of_bundles_and_each_is_one() -> None:
    assert len(BY_NAME) == len(IMAGES)


@pytest.mark.parametrize("name", ["job-host-mpi.sh", "job-joined.sh"])
def test_no_proof_ends_the_job_before_its_payload(name: str) -> None:
    before = (GOLDEN / name).read_text()
    changed = unstopped(before)
    assert "|| exit\n" not in changed
    assert changed.count(f"timeout -k 10 {run.STEP_S} ") == 3  # hosts, probe, payload
    assert 'echo "matrix-exit: $code after $SECONDS s"' in changed


def test_mpirun_binds_no_rank_since_the_lab_s_nodes_share_cores() -> None:
    before = (GOLDEN / "job-host-mpi.sh").read_text()
    launch = "launch=(mpirun --map-by ppr:1:node:PE=2 --bind-to core\n)"
    changed = unstopped(re.sub(r"^launch=\(.*\n.*\n\)", launch, before, flags=re.MULTILINE))
    assert launch.replace(":PE=2", "").replace("core", "none") in changed


def test_a_script_that_has_changed_is_not_taken_for_proof() -> None:
    with pytest.raises(ValueError, match=r"job\.sh has changed"):
        unstopped("#!/bin/bash\nsrun true\n")


@pytest.mark.parametrize(
    ("found", "kind", "reason"),
    [
        (seen(), RUNS, ""),
        (seen(size=1), WRONG, "worlds of 1"),
        (seen(wrong=3), WRONG, "the sum is not right"),
        (seen(mapped=[OTHER]), WRONG, "another library: /usr/lib/libmpich.so.12"),
        (seen(mapped=[OURS, OTHER]), WRONG, "another library: /usr/lib/libmpich.so.12"),
        (seen(mapped=[["/usr/lib/libfabric.so.1", 9]]), WRONG, "no MPI library was seen"),
        (seen(host="cn1"), RUNS, ""),
        (seen(127, "x: error while loading shared libraries: libgomp.so.1: cannot open shared object file: No\n"),
         FAILS, "error while loading shared libraries: libgomp.so.1: cannot open shared object file: No"),
        (seen(1, "a\n/p: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /p)\n"),
         FAILS, "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /p)"),
        (seen(137, timed_out=True), HANGS, "before the sum"),
        (seen(None, "deployer: error: no such plan\n"), FAILS, "deployer: error: no such plan"),
        (seen(1, "deployer: error payload.failed: job: x\nhint: y\ndeployer: more: z\n"),
         FAILS, "deployer: error payload.failed: job: x"),
        (seen(255, "FATAL:   no such folder: /x\nlast\n"), FAILS, "FATAL: no such folder: /x"),
        (seen(126, "Error: crun: no such folder: /x\nlast\n"), FAILS, "Error: crun: no such folder: /x"),
    ],
)  # fmt: skip
def test_what_was_seen(found: Seen, kind: str, reason: str) -> None:
    assert classify.outcome(found) == Outcome(kind, reason)


def test_all_ranks_on_one_node_are_not_two_nodes() -> None:
    found = seen()
    for rank in found.ranks:
        rank["host"] = "cn1"
    assert classify.outcome(found).reason == "all ranks on one node"


ESCAPED = Outcome(WRONG, "another library: /usr/lib/libmpich.so.12")
MISSING = Outcome(FAILS, "error while loading shared libraries: libgomp.so.1: cannot open shared object file")


@pytest.mark.parametrize(
    ("verdict", "codes", "outcome", "judged"),
    [
        ("RUN", [], Outcome(RUNS, ""), classify.RIGHT),
        ("RUN", [], ESCAPED, classify.FALSE_RUN),
        ("RUN", [], Outcome(HANGS, ""), classify.FALSE_RUN),
        ("REFUSE", ["mpi.escape"], ESCAPED, classify.RIGHT),
        ("REFUSE", ["mpi.escape"], Outcome(RUNS, ""), classify.FALSE_REFUSE),
        ("REFUSE", ["link.missing"], MISSING, classify.RIGHT),
        ("REFUSE", ["link.version"], MISSING, classify.OTHER_REASON),
        ("REFUSE", ["link.version", "link.missing"], MISSING, classify.RIGHT),
        ("REFUSE", ["mpi.family"], Outcome(FAILS, "udocker: NameError: need curl"), classify.OTHER_REASON),
        ("REFUSE", ["mpi.family"], Outcome(FAILS, "FATAL: no such folder: /x"), classify.OTHER_REASON),
        ("REFUSE", ["mpi.family"], Outcome(FAILS, "Error: crun: no such folder: /x"), classify.OTHER_REASON),
        ("REFUSE", ["runtime.start"], Outcome(FAILS, "FATAL: no such folder: /x"), classify.RIGHT),
        ("WARN", ["mpi.mixed"], Outcome(RUNS, ""), classify.RIGHT),
        ("WARN", ["mpi.mixed"], MISSING, classify.FALSE_WARN),
        ("UNKNOWN", ["facts.mpi"], Outcome(RUNS, ""), classify.UNDECIDED),
    ],
)
def test_a_verdict_is_judged_by_what_was_seen(verdict: str, codes: list[str], outcome: Outcome, judged: str) -> None:
    assert classify.judge(verdict, codes, outcome) == judged


def test_the_matrix_holds_within_its_limits_only() -> None:
    right = [line("RUN", [], Outcome(RUNS, ""))] * 99
    assert table.holds(right)
    assert table.holds([*right, line("REFUSE", ["mpi.escape"], Outcome(RUNS, ""))])
    assert not table.holds([*right[1:], *[line("REFUSE", ["mpi.escape"], Outcome(RUNS, ""))] * 2])
    assert not table.holds([*right, line("RUN", [], MISSING)])
    assert table.holds([*right, *[line("UNKNOWN", ["facts.mpi"], MISSING)] * 8])
    assert not table.holds([*right, *[line("UNKNOWN", ["facts.mpi"], MISSING)] * 9])
    assert "THE MATRIX DOES NOT HOLD." in table.render([line("RUN", [], MISSING)])
