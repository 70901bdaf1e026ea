"""jsrun of IBM's Job Step Manager (Summit, Lassen). Never run.

Written from IBM's page on jsrun (docs SSWRJV_10.1.0, jsm/jsrun) and OLCF's guide (github:olcf/olcf-user-docs,
``systems/summit_user_guide.rst``).
"""

from typing import List

from deployer.contract.base.shell import Value
from deployer.site.run.launchers.interface import Launcher, LaunchRequest
from deployer.site.run.pinning import pin


class Jsrun(Launcher):
    """One resource set per node has all ranks, their cores and all GPUs, so each rank sees the GPUs of its node.

    It is a PMIx server, forwards signals, and sets variables for Spectrum MPI (``--smpiargs``). job.sh runs on a launch
    node, from which only jsrun reaches the job's nodes.
    """

    program = "jsrun"
    ends_on_exit = False  # what -X 1 does is known from scripts of Summit only
    asked_by = "USR2"
    launch_node = True

    def words(self, start: LaunchRequest) -> List[Value]:
        layout, pinning = start.layout, pin(start.layout)
        ranks, threads = layout.ranks_per_node, 1 if pinning.by_core else layout.shape.threads_per_core
        words = self._sets(start, ranks, -(-ranks * pinning.units // threads), layout.shape.gpus or 0)
        words += ["-b", "packed:%s%d" % ("" if pinning.by_core else "smt:", pinning.units), "-d", "packed", "-X", "1"]
        return words + (["--smpiargs=off"] if start.pmi == "none" else [])

    def one_a_node(self, start: LaunchRequest) -> List[Value]:
        return [*self._sets(start, 1, 1, 0), "--smpiargs=off"]

    @staticmethod
    def _sets(start: LaunchRequest, ranks: int, cores: int, gpus: int) -> List[Value]:
        numbers = (("-n", start.layout.nodes), ("-r", 1), ("-a", ranks), ("-c", cores), ("-g", gpus))
        return [start.program, *(word for option, number in numbers for word in (option, str(number)))]
