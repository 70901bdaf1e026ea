"""Several hosts without a batch system: the script runs on this machine and starts processes on hosts with ssh."""

from typing import Sequence

from deployer.contract.base.shell import Code, code
from deployer.site.jobs.schedulers.interface import AGENT
from deployer.site.jobs.schedulers.local import PATIENCE, Local


class Hosts(Local):
    """Like ``Local``, but with nodes that ssh reaches without a password. Nothing prevents jobs from overlapping."""

    way = AGENT
    #: "timeout" kills its own process group, which the launcher has left.
    patience = PATIENCE - 5
    agent = code("ssh -x -T -o BatchMode=yes -o ConnectTimeout=30")

    def nodes(self, hosts: Sequence[str]) -> Code:
        return code("printf '%s\\n' {hosts}", hosts=list(hosts))
