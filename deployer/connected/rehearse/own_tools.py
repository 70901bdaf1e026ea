"""The tools of a simulated site that runs on this machine."""

import shutil
from collections.abc import Callable
from pathlib import Path

from deployer.connected.bundle import kit
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.ground import caches
from deployer.connected.rehearse.rehearse import SiteTools
from deployer.contract.plan import CHARLIECLOUD_FOLDER, CHARLIECLOUD_START


def own_tools(tell: Callable[[str], None]) -> SiteTools:
    """Return them; parts of the kit are made if the cache lacks them. ``tell`` receives a line about each step."""
    return SiteTools(make_pyz(), _ch_run(tell))


def _ch_run(tell: Callable[[str], None]) -> Path:
    """Return the ch-run of the kit; this machine's own if the kit would first have to be made."""
    recipe = kit.PARTS["charliecloud"].recipe
    here = shutil.which("ch-run")
    folder = caches.KIT.folder / recipe.key()
    if here and not folder.is_dir():
        return Path(here)
    kit.members("charliecloud", tell)
    return folder / CHARLIECLOUD_FOLDER / CHARLIECLOUD_START
