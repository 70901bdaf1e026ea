"""The interface of a launcher: pure builders of the words that start the ranks of a step in an allocation.

Each starts all ranks, pinned as the layout requires, gives them no standard input (the script closes it), ends the
step when one rank fails, and lets SIGTERM at the time limit reach the ranks.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence

from deployer.contract.layout import Layout
from deployer.contract.shell import Code, Value, Variable, Word, code
from deployer.site.jobs import result


class LaunchRequest(NamedTuple):
    """What to start.

    Attributes:
        layout: the layout of the job.
        pmi: the PMI, in srun's words.
        program: the launcher: a name in PATH, or a path.
        family: the family of the ranks' MPI; empty if it is the image's own.
        version: the version of the ranks' MPI; empty if it is the image's own.
        batch: there is a batch system; otherwise all ranks start on this machine.
        tool: the words that start this tool on the nodes.
        agent: an agent like ssh starts processes on the nodes: ``AGENT``.
        inside: it is the image's launcher, in the container of the first node.
    """

    layout: Layout
    pmi: str
    program: str
    family: str = ""
    version: str = ""
    batch: bool = True
    tool: Sequence[str] = ()
    agent: bool = False
    inside: bool = False


#: The program that starts a command on a node, and the file with the nodes, one per line.
AGENT, MACHINES = Word(Variable("job"), "/", result.AGENT), Word(Variable("job"), "/", result.MACHINES)


class Launcher(object):
    """A launcher. The implementations are in the plain dict ``LAUNCHERS`` under the names that plans use."""

    #: The program's name in PATH.
    program = ""
    #: Whether a rank that exits with an error ends the others. Otherwise only a rank that a signal ends does.
    ends_on_exit = True
    #: The signal by which job.sh asks a launcher with an agent to end the ranks in their own time: USR2 if it passes
    #: that on, and then each rank's observer sends SIGTERM to the payload.
    asked_by = "TERM"
    #: Prefixes of variables that are set for the ranks and that the launcher reads too.
    reads = ()  # type: tuple[str, ...]

    def words(self, start: LaunchRequest) -> List[Value]:
        """Return argv up to the command of each rank, without it."""
        raise NotImplementedError

    def slots(self, start: LaunchRequest) -> Code:
        """Return the text behind each node's name in the file with the nodes."""
        del start
        return code("")

    def environment(self, start: LaunchRequest) -> Dict[str, str]:
        """Return the variables that pass the layout to the ranks' MPI library."""
        del start
        return {}

    def exports(self, start: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        """Return the launcher's own environment; ``environment`` is that of the ranks, without the image's."""
        del start
        return {name: value for name, value in environment.items() if name.startswith(self.reads)}
