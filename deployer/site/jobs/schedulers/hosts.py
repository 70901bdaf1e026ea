"""No batch system, several hosts: the script runs on this machine and starts processes on a list of hosts with ssh."""

from typing import Sequence

from deployer.contract.shell import Code, code
from deployer.site.jobs.schedulers.interface import AGENT
from deployer.site.jobs.schedulers.local import PATIENCE, Local


class Hosts(Local):
    """As ``Local``, with nodes that ssh reaches without a password. Nothing keeps two jobs apart."""

    way = AGENT
    #: "timeout" kills its own process group, which the launcher has left.
    patience = PATIENCE - 5

    def nodes(self, hosts: Sequence[str]) -> Code:
        return code("printf '%s\\n' {hosts}", hosts=list(hosts))

    def agent(self) -> Code:
        return code("ssh -x -T -o BatchMode=yes -o ConnectTimeout=30")
