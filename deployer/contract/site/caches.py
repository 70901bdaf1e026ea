"""Caches of compiled code that a job keeps for later jobs: folders in its private HOME. Pure.

Sources of the variables: PyTorch, "Compile Time Caching Configuration"; Triton, runtime/cache.py; Numba and CuPy,
"Environment variables"; the CUDA programming guide.
"""

from typing import List, Mapping, Sequence, Tuple

from deployer.contract.base.errors import UsageError
from deployer.contract.base.guess import guess
from deployer.contract.site import links

#: The caches of libraries: the path in HOME, and the variable that gives the library this path.
KNOWN: Mapping[str, Tuple[str, str]] = {
    "cuda": (".nv/ComputeCache", "CUDA_CACHE_PATH"), "cupy": (".cupy/kernel_cache", "CUPY_CACHE_DIR"),
    "numba": (".cache/numba", "NUMBA_CACHE_DIR"),
    "torch-inductor": (".cache/inductor", "TORCHINDUCTOR_CACHE_DIR"), "triton": (".triton/cache", "TRITON_CACHE_DIR"),
}  # fmt: skip


def check(kept: List[str]) -> List[str]:
    """Return the names and places of caches if a job can keep them. Raises UsageError."""
    for entry in kept:
        if entry not in KNOWN and not (entry.startswith(links.HOME) and links.is_below(entry[len(links.HOME) :])):
            hint = "write ~/PATH, without .., or one of: " + ", ".join(KNOWN)
            raise UsageError(f"keep: invalid cache: {entry!r}{guess(entry, KNOWN)}", hint)
    return kept


def paths(kept: Sequence[str]) -> List[str]:
    """Return the paths of caches in HOME."""
    return [KNOWN[entry][0] if entry in KNOWN else entry[len(links.HOME) :] for entry in kept]
