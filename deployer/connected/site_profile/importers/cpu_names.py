"""The kernel's architecture of a processor's name in archspec, which Spack and ReFrame use."""

import re

#: Beginnings of names, by architecture (archspec's microarchitectures.json).
_NAMES = {
    "x86_64": "x86_64 nocona core2 nehalem westmere sandybridge ivybridge haswell broadwell skylake mic_knl cannonlake "
    "cascadelake icelake sapphirerapids k10 bulldozer piledriver steamroller excavator zen",
    "ppc64le": "ppc64le power8le power9le power10le",
    "aarch64": "aarch64 armv8 armv9 thunderx2 a64fx graviton neoverse cortex_a72 m1 m2",
    "riscv64": "riscv64 u74mc",
}


def architecture(name: str) -> str | None:
    """Return the kernel's name of a processor's architecture, or None if the name is not known."""
    base = re.sub(r"(_.*|\d*)$", "", name.lower())
    for found, names in _NAMES.items():
        if {name.lower(), base} & set(names.split()) or any(
            name.lower().startswith(f"{each}_") for each in names.split()
        ):
            return found
    return None
