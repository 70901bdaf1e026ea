"""Published measurements that ``report --beside`` shows beside those of your own jobs. Pure.

Source of lrz-3dgan: Brayford, Vallecorsa and others, deep learning with Charliecloud on SuperMUC-NG (LRZ, CERN).
Times and efficiencies are as printed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deployer.contract import report
from deployer.contract.report import Run


class _Series(NamedTuple):
    """A column of a published table.

    Attributes:
        name: what it shows.
        ranks: ranks per node.
        threads: threads per rank.
        times: nodes, seconds per epoch and efficiency in percent.
    """

    name: str
    ranks: int
    threads: int
    times: Sequence[tuple[int, float, float]]


_LRZ_3DGAN = (
    _Series(
        "1 x 48",
        1,
        48,
        (
            (4, 3806, 100),
            (8, 1910, 99.6),
            (16, 1001, 95.1),
            (32, 504, 94.4),
            (64, 253, 94),
            (128, 124, 95.9),
            (256, 61, 97.5),
            (512, 33, 90.1),
        ),
    ),
    _Series(
        "2 x 48, hyperthreads",
        2,
        48,
        (
            (4, 2302, 100),
            (8, 1238, 93),
            (16, 638, 90.2),
            (32, 323, 89.1),
            (64, 164, 87.7),
            (128, 88, 81.8),
            (256, 47, 76.6),
            (512, 25, 71.9),
        ),
    ),
    _Series(
        "4 x 12, MPICH of the container",
        4,
        12,
        (
            (4, 959, 100),
            (8, 507, 94.6),
            (16, 264, 90.8),
            (32, 137, 87.5),
            (64, 72, 83.3),
            (128, 39, 76.8),
            (256, 21, 71.4),
            (512, 12, 62.5),
        ),
    ),
    _Series(
        "4 x 12, Intel MPI of the host",
        4,
        12,
        (
            (4, 907.26, 100),
            (8, 479.52, 94.6),
            (16, 244.42, 92.8),
            (32, 124.22, 91.3),
            (64, 62.24, 91.1),
            (128, 31.22, 90.8),
            (256, 15.63, 90.7),
            (512, 7.84, 90.4),
            (768, 3.94, 89.9),
        ),
    ),
)
#: The printed efficiency of these runs, (series, nodes), does not follow from the printed time.
_DOUBTFUL = {("4 x 12, Intel MPI of the host", 768): "the printed efficiency fits 1024 nodes"}


def _lrz_3dgan() -> list[Run]:
    return [
        Run(
            job="lrz-3dgan: " + series.name,
            workload="3dgan",
            settings=_DOUBTFUL.get((series.name, nodes), ""),
            unit=report.SECONDS,
            site="SuperMUC-NG",
            runtime="charliecloud",
            nodes=nodes,
            ranks=nodes * series.ranks,
            threads=series.threads,
            values=(seconds,),
            published=percent / 100,
        )
        for series in _LRZ_3DGAN
        for nodes, seconds, percent in series.times
    ]


_TABLES = {"lrz-3dgan": _lrz_3dgan}
#: The names that ``--beside`` knows.
NAMES = tuple(_TABLES)


def published(names: Sequence[str]) -> list[Run]:
    """Return the runs of these published tables, each table once."""
    found: dict[str, list[Run]] = {name: _TABLES[name]() for name in names}
    return [run for runs in found.values() for run in runs]
