"""What is drawn: an image, a wrapper before its program, and a site: a lab with an MPI, a launcher, a runtime. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.matrix import mpis
from tests.matrix.app import App
from tests.matrix.apps import APPS, SET_ASIDE
from tests.matrix.apps_of_2026 import NEWEST
from tests.matrix.images import IMAGES, Image
from tests.matrix.machine import EMULATED
from tests.matrix.wrappers import DIRECT, KINDS

#: The labs, by the suite of their nodes.
LABS = ("bookworm",) if EMULATED else ("bookworm", "trixie")
#: Open MPI in the system's folders, as Debian's package puts it there.
SYSTEM = "openmpi-debian"


class Site(NamedTuple):
    """A site as far as it differs from others: ``lab`` and ``mpi`` by name; ``pmi`` is srun's, or empty."""

    lab: str
    mpi: str
    launcher: str
    pmi: str
    runtime: str

    @property
    def name(self) -> str:
        """Return what its profile is called."""
        return "-".join(filter(None, (self.lab, self.mpi, self.launcher, self.pmi, self.runtime)))

    @property
    def family(self) -> str:
        return "openmpi" if self.mpi.startswith("openmpi") else "mpich"


class Pair(NamedTuple):
    """One line of the matrix. ``wrapper`` is what starts the program, by name."""

    image: Image | App
    site: Site
    wrapper: str = DIRECT

    @property
    def set_aside(self) -> bool:
        """Return whether it is of an application that nothing was tuned to."""
        return isinstance(self.image, App) and self.image.application in SET_ASIDE


#: Launchers with their PMI; and for each family those that it is meant to be started by.
LAUNCHERS = (("srun", "pmi2"), ("srun", "pmix"), ("srun", "none"), ("mpiexec.hydra", ""), ("mpirun", ""))
MEANT = {
    "mpich": (("srun", "pmi2"), ("srun", "pmi2"), ("mpiexec.hydra", "")),
    "openmpi": (("srun", "pmix"), ("srun", "pmix"), ("mpirun", "")),
}
#: Container runtimes, as often as they are to be drawn: most sites have Apptainer.
RUNTIMES: tuple[str, ...] = (
    "apptainer", "apptainer", "apptainer", "charliecloud", "charliecloud-kit", "podman", "podman", "udocker",
)  # fmt: skip
if EMULATED:
    RUNTIMES = ("charliecloud", "podman")

#: How often what fits is taken on purpose; else it is whatever comes, which may fit as well.
_FITS = 0.7
#: How often an application of others is taken, of these one that was added last, and how often it starts directly.
_OTHERS, _NEWEST, _DIRECT = 0.6, 0.6, 0.3
if EMULATED:  # their packages would be installed with emulation, for minutes each
    _OTHERS = _NEWEST = 0.0


def sites_of(lab: str) -> list[str]:
    """Return the names of the MPIs that a lab has, as often as they are to be drawn: the system's half as often."""
    return [mpi.name for mpi in mpis.HOSTS] * 2 + ([SYSTEM] if lab == "trixie" else [])


def draw(seed: int, count: int, tuning: bool = False) -> list[Pair]:
    """Return ``count`` different pairs, the same for the same seed; for ``tuning`` none that is set aside."""
    chance = random.Random(seed)
    shown = [app for app in APPS if not (tuning and app.application in SET_ASIDE)]
    newest = [app for app in shown if app in NEWEST]
    found: dict[Pair, None] = {}
    dealt: list[App] = []  # each of the newest once, before one comes again
    while len(found) < count:
        if newest and chance.random() < _NEWEST:
            dealt = dealt or chance.sample(newest, len(newest))
            found[_pair(chance, [dealt.pop()])] = None
        else:
            found[_pair(chance, shown)] = None
    return list(found)


def _pair(chance: random.Random, apps: Sequence[App]) -> Pair:
    image: Image | App = chance.choice(apps) if chance.random() < _OTHERS else chance.choice(IMAGES)
    wrapper = DIRECT
    if isinstance(image, App) and chance.random() >= _DIRECT:
        kind = chance.choices([names for _, names in KINDS], [weight for weight, _ in KINDS])[0]
        wrapper = chance.choice(kind)
    lab = chance.choice(LABS)
    names = sites_of(lab)
    if image.family and chance.random() < _FITS:
        names = [name for name in names if name.startswith("openmpi") == (image.family == "openmpi")]
    mpi = chance.choice(names)
    launchers: Sequence[tuple[str, str]] = LAUNCHERS
    if chance.random() < _FITS:
        launchers = MEANT["openmpi" if mpi.startswith("openmpi") else "mpich"]
    return Pair(image, Site(lab, mpi, *chance.choice(launchers), chance.choice(RUNTIMES)), wrapper)
