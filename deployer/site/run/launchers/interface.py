"""What a launcher has to offer: pure builders of the words that start the ranks of a step within an allocation.

Each starts them all, pinned as the layout says, gives them no standard input of its own (the script closes it), ends
the whole step when one rank fails, and lets SIGTERM at the time limit reach the ranks.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence

from deployer.contract.layout import Layout
from deployer.contract.shell import Value


class LaunchRequest(NamedTuple):
    """``pmi`` is srun's word for it; ``program`` is the launcher as it is called: a name in PATH, or a path.

    ``family`` and ``version`` are those of the MPI that the ranks use, empty where it is the image's own. Without a
    ``batch`` system all ranks start on this machine. ``tool`` is how this tool is called on the nodes.
    """

    layout: Layout
    pmi: str
    program: str
    family: str
    version: str
    batch: bool = True
    tool: Sequence[str] = ()


class Launcher(object):
    """One launcher. Implementations stand in the plain dict ``LAUNCHERS`` under the names that plans use."""

    #: The program, as it is found in PATH.
    program = ""
    #: Whether a rank that exits with an error ends the others. If not, only one that dies by a signal does.
    ends_on_exit = True
    #: How the names of variables begin that are set for the ranks, and that the launcher reads as well.
    reads = ()  # type: tuple[str, ...]

    def words(self, start: LaunchRequest) -> List[str]:
        """Return argv up to, and without, what each rank runs."""
        raise NotImplementedError

    def environment(self, start: LaunchRequest) -> Dict[str, str]:
        """Return what the ranks' MPI library must be told of the layout, in their environment."""
        del start
        return {}

    def exports(self, start: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        """Return what the launcher itself finds in its environment; ``environment`` is that of the ranks, without the
        image's."""
        del start
        return {name: value for name, value in environment.items() if name.startswith(self.reads)}
