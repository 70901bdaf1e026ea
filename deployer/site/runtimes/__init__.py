"""Runtimes, by the names that plans use."""

from typing import Dict

from deployer.site.runtimes.charliecloud import Charliecloud
from deployer.site.runtimes.interface import Runtime
from deployer.site.runtimes.native import Native
from deployer.site.runtimes.udocker import Udocker

RUNTIMES: Dict[str, Runtime] = {"charliecloud": Charliecloud(), "udocker": Udocker(), "native": Native()}
