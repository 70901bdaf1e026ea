"""The interface of a container runtime: pure argv builders, so that scripts, tests and people see the same command.

Words have the types of ``contract.shell``: the script quotes every str, whatever its content.
"""

import re
from typing import List, Mapping, NamedTuple, Optional, Sequence, Union

from deployer.contract import runtime_table, shell
from deployer.contract.errors import UsageError
from deployer.contract.plan import Bind
from deployer.contract.shell import Text, Value

_GLOB = re.compile(r"[A-Za-z0-9_*?]+")


def globs(names: Sequence[str]) -> Sequence[str]:
    """Return the globs of variables that enter from the host. Raises UsageError for text that is more than a glob."""
    for name in names:
        if not _GLOB.fullmatch(name):
            raise UsageError("%r is not a glob for names of environment variables" % name)
    return names


class Staged(NamedTuple):
    """A bind as in ``plan.Bind`` whose source is known only when the job's script runs.

    Attributes:
        source: the path on the host.
        target: the path in the container.
        why: the reason, for people.
    """

    source: Value
    target: str
    why: str


Mount = Union[Bind, Staged]


class Container(NamedTuple):
    """How a process starts in an installed image. A ``Value`` may contain variables of the job's script.

    Attributes:
        rootfs: the unpacked image.
        binds: bind mounts.
        environment: variables to set in the container.
        passed: the only variables (globs) that enter from the host.
        workdir: a folder of the image.
        engine: the folder of the runtime from the bundle's kit, if any; it need not exist.
        private: the private folder of the job or process on the node; empty if it has none.
        arguments: further words for the runtime, from the site's profile.
        devices: devices by their names in the Container Device Interface.
    """

    rootfs: Value
    binds: Sequence[Mount]
    environment: Mapping[str, Value]
    passed: List[str]
    workdir: Value
    engine: Value = ""
    private: Value = ""
    arguments: Sequence[str] = ()
    devices: Sequence[str] = ()


class Here(NamedTuple):
    """What a site has of a runtime.

    Attributes:
        found: the program's path according to PATH, or None.
        modules: modules of the plan, which may add the program to PATH.
        engine: as in ``Container``.
    """

    found: Optional[str]
    modules: List[str]
    engine: str


class Runtime(object):
    """A runtime. The implementations are in the plain dict ``RUNTIMES`` under the names that plans use.

    Attributes:
        known: its row in ``runtime_table``.
    """

    #: The beginning of a word that binds SRC:DST.
    bind_option = "--bind="
    #: Whether there is a container: with its own root, and only the passed variables of the host's environment.
    contained = True
    #: Whether the root may be an overlay of the image's folder, whose inode is not the folder's.
    overlays = False
    #: Whether it makes a target that the read-only image lacks, for folders and files alike. Otherwise a bind needs a
    #: target that the image has.
    makes_targets = False

    def __init__(self, name: str) -> None:
        self.known = runtime_table.RUNTIMES[name]

    @property
    def program(self) -> str:
        """Return the program's name in PATH."""
        return self.known.program

    @property
    def asked(self) -> str:
        """Return its name in ``runtime_table`` if its program is asked for its version before it is used."""
        return self.known.policy_name if self.known.oldest else ""

    def without_namespaces(self, path: Optional[str]) -> bool:
        """Return whether the program at the path ``path`` needs no user namespaces after all."""
        del path
        return False

    def starter(self, engine: Value) -> Value:
        """Return the first word of ``options``: its program in PATH, or in ``engine``, the folder of the kit's."""
        del engine
        return self.program

    def options(self, container: Container) -> List[Text]:
        """Return argv up to the image, without it; one word per option."""
        raise NotImplementedError

    def binds(self, binds: Sequence[Mount]) -> List[Text]:
        """Return the words of ``options`` for ``binds``; more may follow. Raises UsageError if one is impossible."""
        for path in (shell.data(path) for bind in binds for path in (bind.source, bind.target)):
            if ":" in path:
                why = "its name has a colon, and %s has no way to quote it" % self.program
                raise UsageError("%s cannot be bound: %s" % (path, why))
        return [self.bind_option + bind.source + ":" + bind.target for bind in binds]

    def starting_in(self, folder: str) -> List[Text]:
        """Return the words that start a process in ``folder`` of the container instead of the one in ``options``; they
        follow ``options``."""
        return ["--cd=" + folder]

    def join_options(self, ranks: int, tag: Value) -> List[Text]:
        """Return the words with which ``ranks`` processes of a node with the same ``tag`` share their namespaces.

        They follow ``options``. There are none if processes share everything anyway.
        """
        del ranks, tag
        return []

    def mount(self, container: Container, image: Value) -> List[Text]:
        """Return argv that mounts a SquashFS image and runs the following words in it, as the holder of a node does."""
        raise NotImplementedError

    def into_mounted(self, container: Container, folder: Value) -> List[Text]:
        """Return the words of a rank that joins the mounted container, up to the image, without it.

        The file ``pid`` in ``folder`` has the number of the process to join. The binds were made there.
        """
        raise NotImplementedError

    def given(self, container: Container, command: Sequence[str]) -> List[Text]:
        """Return the words of a command, whose paths are the container's, in the form that this runtime requires."""
        del container
        return list(command)

    def argv(self, container: Container, command: Sequence[str], join: Sequence[Text] = ()) -> List[Text]:
        """Return the complete argv that runs ``command`` in the container; ``join`` are words of ``join_options``."""
        return [*self.options(container), *join, container.rootfs, "--", *self.given(container, command)]

    def veto(self, here: Here) -> Optional[str]:
        """Return why this runtime cannot be used, or None."""
        if here.found is None and not here.modules:
            return "no %s in PATH" % self.program
        return None
