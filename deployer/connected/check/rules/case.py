"""What the rules of ``check`` look at: a bundle, a site, and what would be mapped when its jobs start there."""

import datetime as dt
from typing import NamedTuple

from deployer.connected.linker.index import Index
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.site_profile.profile import Partition, Profile
from deployer.contract.manifest import Manifest
from deployer.contract.plan import Plan
from deployer.contract.verdict import MISSING_FACTS

__all__ = ["MISSING_FACTS", "Case"]

#: What to do about facts that nobody knows.
CAPTURE = (
    "run `python3 deployer.pyz capture` on the site (with --node inside a job), and merge its output into the profile"
)


class Case(NamedTuple):
    """``partition`` is the plan's, with what holds for all of the site in it; ``overlays`` are the bundle's Python
    packages. ``processes`` are the jobs' programs, each with what calls MPI beside it; none where the libraries of the
    site's MPI were never captured. ``today`` is None if the age of facts is not checked.
    """

    profile: Profile
    partition: Partition
    plan: Plan
    manifest: Manifest
    image: Index
    overlays: list[Overlay]
    processes: list[Process]
    today: dt.date | None = None
