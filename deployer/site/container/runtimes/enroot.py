"""enroot on an unpacked image. Written from the sources of 3.0 to 4.1.2; tested with 4.1.2.

By default, ``enroot start`` opens a lock file in the image's folder for writing. It also obeys the image's /etc/fstab,
/etc/environment and /etc/rc, which can bring host files and variables into the container. Therefore it is started with
an empty folder in the private folder on the node, and the image is the first mount, over the root of that folder. By
then, enroot has already read and written its own files in the empty folder. The administrator's mounts, variables and
hooks are not used.
"""

from typing import List

from deployer.contract.base.shell import Text
from deployer.contract.base.text import is_name
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Runtime

#: Called with enroot ($0), a private folder, the words of ``starter``, binds, --cd=FOLDER and options of `enroot
#: start`, the image, --, and the command; becomes enroot, and then the command.
#:
#: - A variable can replace each setting in enroot's configuration. "no" unsets one.
#: - enroot cannot pass on values with a line end, or mount paths with a space. So deployer's command script sets the
#:   container's variables, and paths have the escapes of /etc/fstab.
#: - The image is mounted read-only from the start, so that nothing can make a target in it.
#: - /tmp contains the private folder with enroot's own mounts, which are removed from the container.
#: - A new current folder is used, because enroot could mistake a file in the user's for the image.
#: - Each rank on a node has its own folder, because enroot holds a lock while it mounts.
START = starter.program("enroot.sh")


class Enroot(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's."""

    @property
    def asked(self) -> str:
        return ""  # it makes folders in the home even to print its version

    def options(self, container: Container) -> List[Text]:
        settable = {name: value for name, value in container.environment.items() if is_name(name)}
        return [
            *starter.words(START, self.program, container, settable, container.private),
            *self.binds(container.binds),
            "--cd=" + container.workdir,
            *container.arguments,
        ]
