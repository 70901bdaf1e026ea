"""The image of the container that hosts a simulated site: Debian with Python, iproute2 and ch-run.

mmdebstrap makes it if possible: it needs root or user namespaces. Otherwise, for example on macOS, it is the helper's.
It is always for x86-64, like the images of bundles. An engine on another architecture emulates it.
"""

import os
from collections.abc import Callable

import docker

from deployer.connected.ground import engine, this_machine
from deployer.connected.image.bases import base, helper
from deployer.connected.image.definition import settings
from deployer.connected.image.definition.definition import Base
from deployer.contract.base.errors import JobFailed
from deployer.contract.elf.machines import X86_64

PLATFORM = f"linux/{X86_64.oci}"
_PACKAGES = ("charliecloud-runtime", "iproute2", "libzstd1", "python3")


def ensure(client: docker.DockerClient, tell: Callable[[str], None]) -> str:
    """Return the image's name in the engine. Make the image if the engine lacks it.

    Raises:
        JobFailed: it cannot be made, for example because Debian's packages cannot be downloaded.
        SpaceError: the disk is full.
    """
    host = settings.from_host(None, None, os.environ)
    possible = this_machine.machine() == X86_64.kernel and not this_machine.without_mmdebstrap()
    if possible and not engine.has_image(client, helper.name(host, X86_64.oci)):
        try:
            return base.debian(client, Base(debian="bookworm", include=list(_PACKAGES)), host, tell)
        except JobFailed as error:
            tell(f"Docker makes it instead, because {error.message}")
    return helper.ensure(client, host, tell, X86_64.oci)
