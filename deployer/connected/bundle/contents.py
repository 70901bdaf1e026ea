"""What goes into a bundle, as ``sources`` finds it and ``pack`` writes it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.contract.job import Job
from deployer.contract.manifest import DataNeed


class Contents(NamedTuple):
    """What goes into a bundle."""

    name: str
    version: str
    #: Returns the image. What it leaves open and spooled belongs to the scratch. None: a bundle of data alone.
    read: Callable[[Scratch], ArchiveImage] | None
    jobs: Sequence[Job] = ()
    #: The folder of the training code.
    app: Path | None = None
    #: Folders of data, by the names that jobs find them under.
    data: Mapping[str, Path] = {}
    #: Data that other bundles carry.
    needs: Sequence[DataNeed] = ()
    #: Further files, by their names in the bundle.
    carried: Mapping[str, Path] = {}
    #: The MPI families that the programs run on, the image's own first. Empty: nobody said.
    mpi: Sequence[str] = ()
    #: Parts of the kit that go in even if no site needs them.
    kit: Collection[str] = ()
