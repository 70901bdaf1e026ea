"""Some fixed pairs of the matrix, checked and run: that verdicts are right about real programs on a real cluster.

``scripts/verdict-matrix`` draws from all images and sites; what it found is in docs/evidence/verdicts.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.matrix import apps, classify, images
from tests.matrix.app import App
from tests.matrix.drive import matrix
from tests.matrix.pairs import Pair, Site
from tests.matrix.table import Line
from tests.matrix.wrappers import DIRECT

#: Image, wrapper, MPI of the site, PMI; what check must say, and what must be seen. The images share two roots of
#: Debian 12, but for mumps.
FIXED = {
    ("mpich4", DIRECT, "intel-2021.15", "pmi2"): ("RUN", classify.RUNS),
    ("mpich4", DIRECT, "openmpi-5.0.11", "pmix"): ("REFUSE", classify.WRONG),
    ("mpich5-now", DIRECT, "intel-2021.15", "pmi2"): ("REFUSE", classify.FAILS),
    ("openmpi4", DIRECT, "openmpi-5.0.11", "pmix"): ("RUN", classify.RUNS),
    ("runpath-mpich-bookworm", "script in app", "intel-2021.15", "pmi2"): ("RUN", classify.RUNS),
    ("rpath-openmpi-bookworm", "nested", "openmpi-5.0.11", "pmix"): ("REFUSE", classify.WRONG),
    ("mumps-bookworm", "bash -lc", "openmpi-5.0.11", "pmix"): ("REFUSE", classify.FAILS),
}
NAMED: dict[str, images.Image | App] = {**images.BY_NAME, **apps.BY_NAME}
PAIRS = {
    (image, wrapper, mpi, pmi): Pair(NAMED[image], Site("bookworm", mpi, "srun", pmi, "charliecloud"), wrapper)
    for image, wrapper, mpi, pmi in FIXED
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("root", "slurm", "munge", "ssh", "charliecloud", "lmod", "mmdebstrap"),
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[Pair, Line]:
    """Return the lines of the fixed pairs, on a lab of their own."""
    work: Path = tmp_path_factory.mktemp("matrix")
    found = matrix(list(PAIRS.values()), f"verdicts-{os.getpid()}", work, print)
    return {line.pair: line for line in found}


@pytest.mark.timeout(900)  # the first makes roots and images where the cache has none
@pytest.mark.parametrize("key", FIXED, ids="-".join)
def test_the_verdict_is_what_is_seen(lines: dict[Pair, Line], key: tuple[str, str, str, str]) -> None:
    line = lines[PAIRS[key]]
    assert (line.verdict, line.seen.kind) == FIXED[key], line.record()
    assert line.judged == classify.RIGHT, line.record()
