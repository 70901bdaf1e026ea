"""enroot on an unpacked image. By the sources of 3.0 to 4.1.2; seen with 4.1.2.

By itself, ``enroot start`` opens a lock file in the image's folder for writing, and obeys the image's own /etc/fstab,
/etc/environment and /etc/rc, which can take files and variables of the host into the container. So it starts an empty
folder in the private folder on the node, and the image is the first mount, over that folder's root. enroot then
continues with the image, but has already read and written its own files in the empty folder. The administrator's
mounts, variables and hooks are not used.
"""

from typing import List

from deployer.contract.shell import Text
from deployer.contract.text import is_name
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Runtime

#: Called with enroot ($0), a private folder, the words of ``starter``, binds, --cd=FOLDER and options of `enroot
#: start`, the image, --, and the command; becomes enroot, and then the command.
#:
#: - enroot reads a variable in place of each setting of its configuration. "no" unsets one.
#: - A value that it passes on has no line end, and the path of a mount no space. So our own command script sets the
#:   container's variables, and paths have the escapes of /etc/fstab.
#: - The image is mounted read-only at once, so that nothing can make a target in it.
#: - /tmp contains the private folder with enroot's own mounts there; they are removed from the container.
#: - A file of the current folder could be taken for the image: hence the new one.
#: - Ranks of one node have folders of their own, because enroot holds a lock while it mounts.
START = starter.program("enroot.sh")


class Enroot(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's."""

    @property
    def asked(self) -> str:
        return ""  # to say its version, it makes folders in the home

    def options(self, container: Container) -> List[Text]:
        settable = {name: value for name, value in container.environment.items() if is_name(name)}
        return [
            *starter.words(START, self.program, container, settable, container.private),
            *self.binds(container.binds),
            "--cd=" + container.workdir,
            *container.arguments,
        ]
