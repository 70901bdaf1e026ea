"""Podman without root and without a store of images, on an unpacked image. Seen with 4.3.

Podman alone needs ranges of extra user numbers (/etc/subuid), keeps files in the home and in /run/user, leaves a
process behind that holds its user namespace, and obeys several configuration files and variables. So a rank starts it
in a user namespace that has the user's own number only, with configuration and state in the private folder on the node.
"""

from typing import List

from deployer.contract.shell import Text, Value
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Runtime

#: Called with podman ($0), a private folder, the words of ``starter``, options of `podman run`, the image, --, and the
#: command; becomes podman.
#:
#: - Passed variables go by name: values in a command line could be read by other users of the node. All others are
#:   unset, because many change what podman does; the container gets none of them anyway. The script's own are not
#:   exported.
#: - crun can give the process the user's own number, which PMIx checks. runc cannot without ranges of extra numbers;
#:   then the number in the container is 0.
#: - Podman refuses a runroot of more than 50 characters, so it gets a short path of the private folder.
#: - PMI_FD is a descriptor of the launcher. Podman passes descriptors on only from 3. It is moved there, not copied:
#:   Hydra waits until nobody has it.
#: - Podman passes standard input and output through unchanged unless one of them is a terminal, as with `| less` and
#:   with Open MPI's mpirun, which gives each rank a terminal as its output. Then podman copies.
#: - A container outlives a podman that is killed. So a process in the background waits for the end of podman (its
#:   number stays $$, and its launcher may leave it a zombie for a while), ends the container if it is still there, and
#:   removes the folder. The container's parent, conmon,
#:   is known by its working folder, this one: files in it may be gone, because who made the private folder removes it
#:   at the same time. conmon goes first: at the end of a container it would start podman again. Its child is the
#:   container's first process; all others of the container are known by its namespace of mounts. One that cannot end,
#:   as on a file server that hangs, is left after a minute. Then it looks again: podman may have been killed while
#:   conmon started, which forks.
#: - Podman would make a target that the image lacks inside the image, so hosts and resolv.conf need one.
START = starter.program("podman.sh")


class Podman(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's, /run is empty."""

    bind_option = "--volume="

    @property
    def asked(self) -> str:
        return "podman"

    def starter(self, engine: Value) -> Value:
        # Podman-hpc too starts it, with options for stores of images.
        del engine
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
