"""The choice of the image's own launcher for a job (``launch: inside``), and the cases that exclude it."""

import re
from typing import Optional, Sequence

from deployer.contract.base.errors import Refused
from deployer.contract.bundle import image_launcher
from deployer.contract.bundle.image_launcher import ImageLauncher
from deployer.contract.bundle.manifest import Image
from deployer.contract.site.plan import INSIDE, NATIVE, OUTSIDE, Plan, StartOption
from deployer.site.run import command
from deployer.site.storage.store import InstalledImage

#: Runtime options that isolate a container's network, or hide its processes from the host.
_NETWORK = re.compile(r"--(net|pid|containall)(=(?!host$)|$)|--network(=(?!host$)|$)|-C$")


def chosen(plan: Plan, launch: Optional[str], runtime: Optional[str]) -> Plan:
    """Return the plan for the user's choice of how ranks start; ``launch`` None: the plan's choice.

    Raises:
        Refused: the plan cannot start ranks in this way.
    """
    if launch == OUTSIDE and plan.launch == INSIDE:
        raise Refused(
            f"the plan of {plan.site} starts ranks by the image's own launcher, and knows no other way",
            "remove `launch: inside` from the site's profile, and make a new plan",
        )
    if launch in (None, OUTSIDE) and plan.launch == OUTSIDE:
        return plan
    if runtime == NATIVE:
        raise Refused("--runtime native has no container, so no launcher in one", "leave out --launch inside")
    inside_plan = plan.started_inside()
    if inside_plan is None:
        raise Refused(
            f"the plan of {plan.site} has no way to start ranks by the image's own launcher",
            "if the image has an MPI with its launcher, make a new plan on the laptop: deployer plan --launch inside",
        )
    return inside_plan


def find(plan: Plan, option: StartOption, installed: InstalledImage, image: Image) -> Optional[ImageLauncher]:
    """Return the image's launcher for a job; None if the plan starts ranks with the site's launcher.

    Raises:
        Refused: the image has no launcher, or the runtime cannot share the node's network.
    """
    if plan.launch != INSIDE:
        return None
    place = command.place(installed, image, plan, [bind.target for bind in plan.binds])
    check_runtime(option.runtime, option.arguments)
    lacks = image_launcher.lacks(option.launcher, place, image.python)
    if lacks:
        label = installed.receipt.label
        raise Refused(
            f"launcher.missing: {label} cannot start ranks by its own launcher: {lacks}",
            "install the launcher of its MPI and a python3 in the image (Debian: mpich, or openmpi-bin), or start the "
            "ranks by the site's: --launch outside",
        )
    return image_launcher.find(option.launcher, place)


def check_runtime(runtime: str, arguments: Sequence[str]) -> None:
    """Raise Refused if a container would not see the node's network and processes."""
    for word in arguments:
        if _NETWORK.match(word):
            raise Refused(
                f"{runtime} is started with {word}, so containers of different nodes cannot reach each other",
                f"remove it from runtimes.{runtime}.arguments in the site's profile",
            )
