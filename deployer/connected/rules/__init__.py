"""The rules of ``check``: each looks at a process that was linked dry and yields findings. One page each in docs/rules.

Only what was seen to fail is a rule.
"""

from collections.abc import Callable, Iterator

from deployer.connected.linker.process import Process
from deployer.connected.rules import linking, mpi
from deployer.contract.findings import Finding

Rule = Callable[[Process], Iterator[Finding]]

ALL: tuple[Rule, ...] = (
    linking.program, linking.missing, linking.versions, linking.broken,
    mpi.family, mpi.library, mpi.symbols, mpi.tree,
)  # fmt: skip

#: Every code that a finding of ``check`` can have; each has a page in docs/rules.md.
CODES = (
    "facts.mpi", "link.broken", "link.missing", "link.program", "link.version",
    "mpi.escape", "mpi.family", "mpi.mixed", "mpi.symbols",
)  # fmt: skip
