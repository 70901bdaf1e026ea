"""The interface of a launcher: pure builders of the words that start the ranks of a step in an allocation.

Each launcher starts all ranks, pins them as the layout requires, and gives them no standard input (the script closes
it). It ends the step when one rank fails, and lets SIGTERM reach the ranks at the time limit.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence

from deployer.contract.base.shell import Code, Value, Variable, Word, code
from deployer.contract.site.layout import Layout
from deployer.site.jobs import result


class LaunchRequest(NamedTuple):
    """What to start.

    Attributes:
        layout: the layout of the job.
        pmi: the PMI, by the launcher's name.
        program: the launcher: a name in PATH, or a path.
        family: the family of the ranks' MPI; empty if it is the image's own.
        version: the version of the ranks' MPI; empty if it is the image's own.
        batch: whether there is a batch system; otherwise all ranks start on this machine.
        tool: the words that start this tool on the nodes.
        agent: whether an ssh-like agent starts processes on the nodes: ``AGENT``.
        inside: whether this is the image's launcher, which runs in the container of the first node.
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


class Launcher:
    """A launcher. The implementations are in the plain dict ``LAUNCHERS`` under the names that plans use."""

    #: The program's name in PATH.
    program = ""
    #: Whether a rank that exits with an error ends the others. Otherwise only a rank that dies from a signal does.
    ends_on_exit = True
    #: The signal with which job.sh asks a launcher with an agent to let the ranks end gracefully: USR2 if it forwards
    #: USR2. Then each rank's observer sends SIGTERM to the payload.
    asked_by = "TERM"
    #: Prefixes of the ranks' variables that the launcher also reads.
    reads = ()  # type: tuple[str, ...]
    #: Whether it fills one NUMA domain after the other, if the plan has their CPUs.
    fills_domains = False

    def words(self, start: LaunchRequest) -> List[Value]:
        """Return argv up to, but excluding, the command of each rank."""
        raise NotImplementedError

    def one_a_node(self, _: LaunchRequest) -> List[Value]:
        """Return the words that start one process per node; empty if the batch system has a way."""
        return []

    def slots(self, _: LaunchRequest) -> Code:
        """Return the text after each node's name in the file of nodes."""
        return code("")

    def environment(self, _: LaunchRequest) -> Dict[str, str]:
        """Return the variables that pass the layout to the ranks' MPI library."""
        return {}

    def exports(self, _: LaunchRequest, environment: Mapping[str, Value]) -> Dict[str, Value]:
        """Return the launcher's own environment; ``environment`` is the ranks' environment without the image's part."""
        return {name: value for name, value in environment.items() if name.startswith(self.reads)}
