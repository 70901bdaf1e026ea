"""Caches of compiled code that a job keeps for later jobs: folders in its private HOME. Pure.

Sources of the variables: PyTorch, "Compile Time Caching Configuration"; Triton, runtime/cache.py; JAX, "Persistent
compilation cache"; Numba, "Environment variables"; CuPy, "Environment variables"; the CUDA programming guide.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence

from deployer.contract.base.errors import UsageError
from deployer.contract.base.guess import guess
from deployer.contract.site import links


class KnownCache(NamedTuple):
    """The cache of a library: its path in HOME, and the variable that gives the library this path."""

    path: str
    variable: str


KNOWN: Mapping[str, KnownCache] = {
    "cuda": KnownCache(".nv/ComputeCache", "CUDA_CACHE_PATH"),
    "cupy": KnownCache(".cupy/kernel_cache", "CUPY_CACHE_DIR"),
    "jax": KnownCache(".cache/jax", "JAX_COMPILATION_CACHE_DIR"),
    "numba": KnownCache(".cache/numba", "NUMBA_CACHE_DIR"),
    "torch-inductor": KnownCache(".cache/torch/inductor", "TORCHINDUCTOR_CACHE_DIR"),
    "triton": KnownCache(".triton/cache", "TRITON_CACHE_DIR"),
}


def check(kept: Sequence[str], linked: Sequence[str] = ()) -> Sequence[str]:
    """Return the names and places of caches if a job can keep them.

    Args:
        linked: the places of the job's links.

    Raises:
        UsageError: a name is not known, or a place is impossible or overlaps another one.
    """
    for entry in kept:
        if entry not in KNOWN and not (entry.startswith(links.HOME) and links.is_below(entry[len(links.HOME) :])):
            hint = "write ~/PATH, without .., or one of: " + ", ".join(KNOWN)
            raise UsageError(f"keep: invalid cache: {entry!r}{guess(entry, KNOWN)}", hint)
    within = links.overlap([*(links.HOME + path for path in paths(kept)), *linked])
    if within:
        raise UsageError("keep: {} is within {}".format(*within), "name one of them")
    return kept


def paths(kept: Sequence[str]) -> List[str]:
    """Return the paths of caches in HOME."""
    return [KNOWN[entry].path if entry in KNOWN else entry[len(links.HOME) :] for entry in kept]


def variables(kept: Sequence[str]) -> Dict[str, str]:
    """Return the paths of caches in HOME by the variables of their libraries."""
    return {KNOWN[entry].variable: KNOWN[entry].path for entry in kept if entry in KNOWN}
