"""Podman without root and without an image store, on an unpacked image. Tested with 4.3.

By default, Podman needs ranges of extra user numbers (/etc/subuid) and keeps files in the home and in /run/user. It
also leaves a process behind that holds its user namespace, and obeys several configuration files and variables.
Therefore a rank starts it in a user namespace with only the user's own number. Configuration and state are in the
private folder on the node.
"""

from typing import List

from deployer.contract.base.shell import Text, Value
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Runtime

#: Called with podman ($0), a private folder, the words of ``starter``, options of `podman run`, the image, --, and the
#: command; becomes podman.
#:
#: - Variables are passed by name, because other users of the node could read values in a command line. All others are
#:   unset, because many change podman's behaviour; they are not passed to the container anyway. The script's own
#:   variables are not exported.
#: - crun can give the process the user's own number, which PMIx checks. runc cannot do so without ranges of extra
#:   numbers; the number in the container is then 0.
#: - Podman refuses a runroot longer than 50 characters, so it gets a short path to the private folder.
#: - PMI_FD is a descriptor from the launcher. Podman passes on only consecutive descriptors from 3. PMI_FD is moved
#:   there, not copied, because Hydra waits until no process has it.
#: - Podman passes standard input and output through unchanged unless one of them is a terminal, as with `| less` and
#:   with Open MPI's mpirun, which gives each rank a terminal as its output. In that case podman copies the data.
#: - A container outlives a killed podman. Therefore a background process waits for the end of podman, ends the
#:   container if it still runs, and removes the folder. Podman's number stays $$, and podman may remain a zombie of its
#:   launcher for a while. The container's parent, conmon, is identified by its working folder, which is this one. Files
#:   in the folder may be gone, because the process that made the private folder removes it at the same time. conmon is
#:   killed first: at the end of a container, it would start podman again. conmon's child is the container's first
#:   process, whose mount namespace identifies the container's other processes. A process that cannot end, for example
#:   because a file server hangs, is left after a minute. The background process then checks again: podman may have been
#:   killed while conmon, which forks, was starting.
#: - Podman would make missing targets inside the image, so the image must have targets for hosts and resolv.conf.
START = starter.program("podman.sh")


class Podman(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's, /run is empty."""

    bind_option = "--volume="

    @property
    def asked(self) -> str:
        return "podman"

    def starter(self, _: Value) -> Value:
        # podman-hpc also starts podman, but adds options for image stores.
        return "podman"

    def options(self, container: Container) -> List[Text]:
        return [
            *starter.words(START, self.starter(container.engine), container, container.environment, container.private),
            *self.binds(container.binds),
            *self.starting_in(container.workdir),
            *("--device=" + name for name in container.devices),
            *container.arguments,
        ]

    def starting_in(self, folder: Value) -> List[Text]:
        return ["--workdir=" + folder]
