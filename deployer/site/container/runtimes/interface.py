"""What a container runtime has to offer: pure argv builders, so that scripts, tests and people see the same command.

Words are of ``contract.shell``: what is a str is quoted by the script, whatever it holds.
"""

from typing import List, Mapping, NamedTuple, Optional, Sequence, Union

from deployer.contract import shell
from deployer.contract.errors import UsageError
from deployer.contract.plan import Bind
from deployer.contract.shell import Text, Value


class Staged(NamedTuple):
    """A bind as in ``plan.Bind``, whose source is known when the job's script runs."""

    source: Value
    target: str
    why: str


Mount = Union[Bind, Staged]


class Container(NamedTuple):
    """How a process starts in an installed image.

    ``rootfs`` is the unpacked image; ``environment`` is set in it; ``passed`` are the only names (globs) that come in
    from the host; ``workdir`` is a folder of the image. ``engine`` is the folder of the runtime that the bundle brought
    along, where it brought one; it need not be there. A ``Value`` may have variables of the job's script in it.
    """

    rootfs: Value
    binds: Sequence[Mount]
    environment: Mapping[str, Value]
    passed: List[str]
    workdir: Value
    engine: Value = ""


class Here(NamedTuple):
    """What a site has of a runtime: where the program was ``found`` in PATH, if anywhere; with ``modules`` to load it
    may still come. ``engine`` is as in ``Container``."""

    found: Optional[str]
    modules: List[str]
    engine: str


class Runtime(object):
    """One runtime. Implementations stand in the plain dict ``RUNTIMES`` under the names that plans use."""

    #: The program, as it is found in PATH.
    program = ""
    #: Whether it makes user namespaces of its own.
    namespaces = False
    #: Whether there is a container: another root than the host's, and nothing of its environment but what is passed.
    contained = True

    def options(self, container: Container) -> List[Text]:
        """Return argv up to, and without, the image; one word for each option."""
        raise NotImplementedError

    def binds(self, binds: Sequence[Mount]) -> List[Text]:
        """Return the words of ``options`` that make ``binds``; more of them may stand after it. Raises UsageError."""
        for path in (shell.data(path) for bind in binds for path in (bind.source, bind.target)):
            if ":" in path:
                why = "its name has a colon, and %s has no way to quote it" % self.program
                raise UsageError("%s cannot be bound: %s" % (path, why))
        return ["--bind=" + bind.source + ":" + bind.target for bind in binds]

    def starting_in(self, folder: str) -> List[Text]:
        """Return the words that make a process start in another ``folder`` of the container than ``options`` name;
        they come after those."""
        return ["--cd=" + folder]

    def join_options(self, ranks: int, tag: Value) -> List[Text]:
        """Return the words that make ``ranks`` processes of a node with the same ``tag`` share their namespaces.

        They come after ``options``; there are none if processes share everything anyway.
        """
        del ranks, tag
        return []

    def mount(self, container: Container, image: Value) -> List[Text]:
        """Return argv that mounts a SquashFS image and runs what follows in it: the one that holds it for a node."""
        raise NotImplementedError

    def into_mounted(self, container: Container, folder: Value) -> List[Text]:
        """Return the words of a rank that joins the mounted container, up to and without the image.

        The process to join has its number in the file ``pid`` of ``folder``; what is bound was bound there.
        """
        raise NotImplementedError

    def given(self, container: Container, command: Sequence[str]) -> List[Text]:
        """Return the words of a command, in which paths are the container's, as this runtime is to be given them."""
        del container
        return list(command)

    def argv(self, container: Container, command: Sequence[str], join: Sequence[Text] = ()) -> List[Text]:
        """Return the whole argv that runs ``command`` in the container; ``join`` are words of ``join_options``."""
        return [*self.options(container), *join, container.rootfs, "--", *self.given(container, command)]

    def veto(self, here: Here) -> Optional[str]:
        """Return why this runtime cannot be used, or None."""
        if here.found is None and not here.modules:
            return "no %s in PATH" % self.program
        return None
