"""mpiexec of HPE's Parallel Application Launch Service (PALS): Aurora, Polaris, Derecho. Never run.

Written from HPE's own text of ``mpiexec --help`` and its handling of signals and exit codes
(github:Cray-HPE/craycli, ``cray/modules/mpiexec/cli.py``, ``cray/pals.py``), and from ALCF's pages on Polaris and
Aurora (github:argonne-lcf/user-guides).
"""

from typing import List

from deployer.contract.base.shell import Value
from deployer.site.run.launchers.interface import MACHINES, Launcher, LaunchRequest
from deployer.site.run.pinning import cpu_lists, pin


class Pals(Launcher):
    """A rank that exits with an error ends the others (SIGTERM). The exit code is the highest, 128 + N for signal N.
    mpiexec passes signals on to all ranks, perhaps not to their children, so job.sh asks it as it asks mpirun.
    """

    program = "mpiexec"
    asked_by = "USR2"
    fills_domains = True

    def words(self, start: LaunchRequest) -> List[Value]:
        layout, lists = start.layout, cpu_lists(start.layout)
        words = self.steps(start.program, layout.ranks, layout.ranks_per_node, start.pmi)
        if lists:
            return [*words, "--cpu-bind", "list:" + ":".join(lists)]
        # For "core", the depth counts cores; for "depth", it counts hardware threads.
        pinning = pin(layout)
        return [*words, "--depth", str(pinning.units), "--cpu-bind", "core" if pinning.by_core else "depth"]

    def one_a_node(self, start: LaunchRequest) -> List[Value]:
        return [*self.steps(start.program, start.layout.nodes, 1, "none"), "--cpu-bind", "none"]

    @staticmethod
    def steps(program: str, ranks: int, per_node: int, pmi: str) -> List[Value]:
        """Return the words that start ``ranks`` processes. Programs run from their own path, not from a copy."""
        counts = ["-n", str(ranks), "--ppn", str(per_node)]
        return [program, *counts, "--hostfile", MACHINES, "--pmi", pmi, "--no-transfer"]
