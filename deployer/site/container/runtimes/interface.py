"""The interface of a container runtime: pure argv builders, so that scripts, tests and people get the same command.

Words have the types of ``contract.base.shell``: the script quotes every str, whatever its content.
"""

import re
from typing import List, Mapping, NamedTuple, Optional, Sequence, Union

from deployer.contract.base import shell
from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Text, Value
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import Bind

_GLOB = re.compile(r"[A-Za-z0-9_*?]+")


def globs(names: Sequence[str]) -> Sequence[str]:
    """Return the globs of variables to pass from the host. Raises UsageError for text that is not a plain glob."""
    for name in names:
        if not _GLOB.fullmatch(name):
            raise UsageError(f"{name!r} is not a glob for names of environment variables")
    return names


class Staged(NamedTuple):
    """A bind like ``plan.Bind`` whose source is known only when the job's script runs.

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
    """The settings for starting a process in an installed image. A ``Value`` may contain the job script's variables.

    Attributes:
        rootfs: the unpacked image.
        binds: bind mounts.
        environment: variables to set in the container.
        passed: the only variables (globs) to pass from the host.
        workdir: a folder in the image.
        engine: the folder of the runtime from the bundle's kit, if any; it need not exist.
        private: the private folder of the job or process on the node; empty if it has none.
        arguments: further words for the runtime, from the site's profile.
        devices: the names of devices in the Container Device Interface.
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
    """The state of a runtime at a site.

    Attributes:
        found: the program's path according to PATH, or None.
        modules: the plan's modules, which may add the program to PATH.
        engine: as in ``Container``.
    """

    found: Optional[str]
    modules: List[str]
    engine: str


class Runtime:
    """A container runtime. The dict ``RUNTIMES`` has the implementations by the names that plans use.

    Attributes:
        known: its row in ``runtime_table``.
    """

    #: The beginning of a word that binds SRC:DST.
    bind_option = "--bind="
    #: Whether processes run in a container, with its own root and only the passed variables from the host.
    contained = True
    #: Whether the root may be an overlay of the image's folder, which has a different inode.
    overlays = False
    #: Whether it makes targets that the read-only image lacks, for both folders and files. Otherwise the image must
    #: have the target of each bind.
    makes_targets = False

    def __init__(self, name: str) -> None:
        self.known = runtime_table.RUNTIMES[name]

    @property
    def program(self) -> str:
        """Return the program's name in PATH."""
        return self.known.program

    @property
    def asked(self) -> str:
        """Return the name in ``runtime_table`` if the program's version is checked before use."""
        return self.known.policy_name if self.known.oldest else ""

    def starter(self, _: Value) -> Value:
        """Return the first word of ``options``: the program in PATH or, from the kit, in the given folder."""
        return self.program

    def options(self, container: Container) -> List[Text]:
        """Return argv before the image, with one word per option."""
        raise NotImplementedError

    def binds(self, binds: Sequence[Mount]) -> List[Text]:
        """Return the words of ``options`` for ``binds``; more may follow. Raises UsageError if a bind is impossible."""
        for path in (shell.data(path) for bind in binds for path in (bind.source, bind.target)):
            if ":" in path:
                why = f"its name has a colon, and {self.program} has no way to quote it"
                raise UsageError(f"{path} cannot be bound: {why}")
        return [self.bind_option + bind.source + ":" + bind.target for bind in binds]

    def starting_in(self, folder: str) -> List[Text]:
        """Return the words, after ``options``, that replace the folder in which the process starts with ``folder``."""
        return ["--cd=" + folder]

    def join_options(self, _ranks: int, _tag: Value) -> List[Text]:
        """Return the words with which ``ranks`` processes on a node with the same ``tag`` share their namespaces.

        They follow ``options``. The list is empty if processes share everything anyway.
        """
        return []

    def mount(self, container: Container, image: Value) -> List[Text]:
        """Return the argv with which a node's holder mounts a SquashFS image and runs the following words in it."""
        raise NotImplementedError

    def into_mounted(self, container: Container, folder: Value) -> List[Text]:
        """Return the words, before the image, of a rank that joins the mounted container.

        The file ``pid`` in ``folder`` has the number of the process to join, which has made the binds.
        """
        raise NotImplementedError

    def given(self, _: Container, command: Sequence[str]) -> List[Text]:
        """Return the words of a command, which contain container paths, in the form that this runtime requires."""
        return list(command)

    def argv(self, container: Container, command: Sequence[str], join: Sequence[Text] = ()) -> List[Text]:
        """Return the complete argv that runs ``command`` in the container; ``join`` is from ``join_options``."""
        return [*self.options(container), *join, container.rootfs, "--", *self.given(container, command)]

    def veto(self, here: Here) -> Optional[str]:
        """Return why this runtime cannot be used, or None."""
        if here.found is None and not here.modules:
            return f"no {self.program} in PATH"
        return None
