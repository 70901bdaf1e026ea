"""Runtimes by the names that plans use."""

from typing import Dict

from deployer.site.container.runtimes.charliecloud import Charliecloud
from deployer.site.container.runtimes.interface import Runtime
from deployer.site.container.runtimes.native import Native
from deployer.site.container.runtimes.udocker import Udocker

RUNTIMES: Dict[str, Runtime] = {"charliecloud": Charliecloud(), "udocker": Udocker(), "native": Native()}
