"""The contents of a bundle, found by ``sources`` and written by ``pack``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.contract.base import json_records
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import DataNeed


class Contents(NamedTuple):
    """The contents of a bundle.

    Attributes:
        name: the bundle's name.
        version: the bundle's version.
        read: reads the image, whose files stay open in the scratch. None: a data-only bundle.
        jobs: the jobs, the default one first.
        app: the folder with the files that jobs use.
        data: folders of data, by the names that jobs use for them.
        needs: data in other bundles.
        carried: further files, by their paths in the bundle. Wheels become overlays, named after their folder.
        mpi: the MPI families that the programs use, the image's own first; empty if unknown; None: `pack` detects
            them in the image.
        kit: parts of the kit to include even if no site needs them.
        mount_points: further mount points of the image.
        lean: leave out of the image what few jobs use.
        accept: the accepted findings of ``lint``, as in ``--accept``.
        provenance: returns SLSA's predicate about its build. None: there is no definition.
        identity: returns the ``ArchiveImage.identity`` that ``read`` would return. None: the image must be read first.
    """

    name: str
    version: str
    read: Callable[[Scratch], ArchiveImage] | None
    jobs: Sequence[Job] = ()
    app: Path | None = None
    data: Mapping[str, Path] = {}
    needs: Sequence[DataNeed] = ()
    carried: Mapping[str, Path] = {}
    mpi: Sequence[str] | None = ()
    kit: Collection[str] = ()
    mount_points: Collection[str] = ()
    lean: bool = False
    accept: Collection[str] = ()
    identity: Callable[[], str] | None = None
    provenance: Callable[[], json_records.Record] | None = None
