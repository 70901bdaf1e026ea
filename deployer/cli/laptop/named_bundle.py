"""The bundle that a command selects: a bundle file, or a definition."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deployer.cli.laptop import settings
from deployer.connected.ground import user_settings

if TYPE_CHECKING:  # slow, and needed only for definitions
    from deployer.connected.site_profile.profile import Profile

#: The help of a bundle argument.
TEXT = "a bundle that `pack` wrote, or a definition: then the bundle that `deploy` sends is made, or used again"


def path_of(args: argparse.Namespace, site: "Profile | None", accept: Sequence[str] = ()) -> str:
    """Return ``args.bundle``, or the bundle that a deploy of this definition makes."""
    path = Path(args.bundle)
    if not path.is_dir() and path.suffix != ".yaml":
        return str(args.bundle)
    from deployer.cli.laptop.deploy import say
    from deployer.connected.deploy.packing import DeployRequest, Packing
    from deployer.connected.image.definition.definition import load

    request = DeployRequest(
        path, "", accept=accept, key=user_settings.path("key", None), settings=settings.build_files()
    )
    packing = Packing(load(path), site, request, lambda stage: say(f"{stage.name}: {stage.text}"), say)
    return str(packing.bundle())
