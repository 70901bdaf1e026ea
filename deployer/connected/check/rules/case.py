"""The input of the rules of ``check``: a bundle, a site, and the files that jobs would map there."""

import datetime as dt
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from deployer.connected.linker.index import Index
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.site_profile.machine import NodeGpus
from deployer.connected.site_profile.profile import Partition, Profile
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.rules.verdict import MISSING_FACTS
from deployer.contract.site.plan import Plan

__all__ = ["MISSING_FACTS", "Case"]

#: The remedy for missing facts.
CAPTURE = (
    "run `python3 deployer.pyz capture` on the site (with --node inside a job), and merge its output into the profile"
)


class Case(NamedTuple):
    """The input of the rules.

    ``partition`` is the plan's partition, including the settings for the whole site. ``overlays`` are the bundle's
    Python packages. ``processes`` are the jobs' programs, each with the MPI-calling files that it loads; empty if the
    libraries of the site's MPI were never captured. ``today`` is None if the age of facts is not checked.
    """

    profile: Profile
    partition: Partition
    plan: Plan
    manifest: Manifest
    image: Index
    overlays: list[Overlay]
    processes: list[Process]
    today: dt.date | None = None

    @property
    def layers(self) -> list[Overlay]:
        """Return the bundle's files: the overlays, then the image, whose target is empty."""
        return [*self.overlays, Overlay("", self.image)]

    @property
    def paths(self) -> list[str]:
        """Return the paths of the bundle's files."""
        return [path for _, files in self.layers for path in files.entries]

    @property
    def names(self) -> set[str]:
        """Return the names of the bundle's files, and of those that the plan binds."""
        return set(map(posixpath.basename, [*self.paths, *(item.name for item in self.plan.host)]))

    @property
    def gpus(self) -> NodeGpus | None:
        """Return the GPUs of a node; None if they are unknown."""
        return self.partition.gpus

    @property
    def cpu_flags(self) -> Sequence[str] | None:
        """Return the flags of the nodes' processors; None if they are unknown."""
        node = self.partition.node
        return node.cpu.flags if node and node.cpu else None
