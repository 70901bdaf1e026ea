"""Runtimes by the names that plans use."""

from typing import Dict

from deployer.contract import plan as plans
from deployer.site.container.runtimes.apptainer import Apptainer
from deployer.site.container.runtimes.charliecloud import CarriedCharliecloud, Charliecloud
from deployer.site.container.runtimes.interface import Runtime
from deployer.site.container.runtimes.native import Native
from deployer.site.container.runtimes.podman import Podman, PodmanHpc
from deployer.site.container.runtimes.udocker import Udocker

RUNTIMES: Dict[str, Runtime] = {
    "charliecloud": Charliecloud(),
    plans.CHARLIECLOUD_KIT: CarriedCharliecloud(),
    "apptainer": Apptainer("apptainer"),
    "singularity": Apptainer("singularity"),
    "podman": Podman(),
    "podman-hpc": PodmanHpc(),
    "udocker": Udocker(),
    "native": Native(),
}
