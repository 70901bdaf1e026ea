"""The container runtimes, by the names that plans use."""

from typing import Dict, List, Sequence, Type

from deployer.contract.base import shell
from deployer.contract.bundle.command import DEFAULT_PATH
from deployer.contract.site import plan as plans
from deployer.site.container.runtimes.apptainer import Apptainer
from deployer.site.container.runtimes.charliecloud import CarriedCharliecloud, Charliecloud
from deployer.site.container.runtimes.enroot import Enroot
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.container.runtimes.native import Native
from deployer.site.container.runtimes.podman import Podman
from deployer.site.container.runtimes.udocker import Udocker

_ADAPTERS: Dict[str, Type[Runtime]] = {
    "charliecloud": Charliecloud,
    plans.CHARLIECLOUD_KIT: CarriedCharliecloud,
    "apptainer": Apptainer,
    "singularity": Apptainer,
    "podman": Podman,
    "podman-hpc": Podman,
    "enroot": Enroot,
    "udocker": Udocker,
    plans.NATIVE: Native,
}
RUNTIMES: Dict[str, Runtime] = {name: adapter(name) for name, adapter in _ADAPTERS.items()}


def trial_words(name: str, image: str, private: str, folders: Sequence[str], command: Sequence[str]) -> List[str]:
    """Return the argv with which `capture` starts ``command`` in the folder ``image``; see ``capture.started``."""
    binds = [plans.Bind(path, path, "") for path in folders]
    container = Container(image, binds, {"PATH": DEFAULT_PATH}, [], "/", private=private)
    return shell.argv(RUNTIMES[name].argv(container, command), {})
