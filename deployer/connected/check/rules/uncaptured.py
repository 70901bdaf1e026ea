"""Rules for a site whose MPI was not captured: findings that the site's files cannot change are certain."""

import re
from collections.abc import Callable, Iterator

from deployer.connected.check.rules import linking, mpi, python
from deployer.connected.linker.process import Process
from deployer.contract.rules.batch_words import WORDS
from deployer.contract.rules.findings import Finding

_Rule = Callable[[Process], Iterator[Finding]]

#: Libraries that may come from a site's MPI, its network, its GPU driver, or the compilers that built them.
_BROUGHT = re.compile(
    f"lib({'|'.join(words.libraries for words in WORDS.values() if words.libraries)}|"
    r"mpi|mpich|pmpi|open-|ompi|oshmem|orte|opal|mca_|pmi|prrte|prte|pals|"  # launchers
    r"fabric|uc[cmpstx]|psm|ib|rdma|mlx|mthca|efa|cxi|xpmem|knem|gdr|hcoll|sharp|ocoms|opa|nl-|numa|hwloc|pci|"
    r"event|ltdl|udev|xml2|json|jansson|yaml|curl|ssl|crypto|z\.|zstd|lzma|bz2|cap|dl\.|rt\.|"  # what those need
    r"cuda|nv|nccl|ze_|hsa|amd|hip|roc|drm|mpi_gtl|"
    r"stdc\+\+|gcc_s|gfortran|quadmath|gomp|atomic|omp|iomp|intlc|imf|svml|irng|irc|if|mkl|tbb|sycl|sci|cray|craymp"
    r")"
)


def _whatever(rule: _Rule) -> _Rule:
    """Return a rule without the findings that libraries of the site may change."""

    return lambda process: rule(process._replace(loader=process.loader.without(_BROUGHT)))


def _rpath(process: Process) -> Iterator[Finding]:
    """mpi.rpath: a DT_RPATH takes precedence over everything that the plan sets."""
    return (finding for finding in mpi.library(process) if finding.code == "mpi.rpath")


RULES: tuple[_Rule, ...] = (
    linking.machine, linking.program, *map(_whatever, (linking.missing, linking.versions, linking.broken)),
    mpi.family, _rpath, mpi.linked, mpi.serial, python.syntax, python.modules,
)  # fmt: skip
