"""What the nodes of a lab run, as their own programs say it: a report of tests names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lab.site import LOGIN

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: Prints ``NAME: VERSION`` in lines.
_SCRIPT = """
one() { printf '%s: %s\\n' "$1" "$("${@:2}" 2>&1 | head -n 1 | grep -oE '[0-9]+[.][0-9][0-9A-Za-z.~-]*' | head -n 1)"; }
(. /etc/os-release && echo "system: $PRETTY_NAME")
one Slurm srun --version
one Charliecloud ch-run --version
one Python python3 --version
one glibc getconf GNU_LIBC_VERSION
one PMIx readlink -f /usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so
one OpenSSH ssh -V
one Lmod sh -c '. /etc/profile.d/lmod.sh && echo "$LMOD_VERSION"'
one Linux uname -r
"""


def versions(lab: Lab) -> dict[str, str]:
    """Return the versions of a lab's system and of what the product calls there."""
    said = lab.sh(LOGIN, "alice", _SCRIPT, timeout=60).check("cannot ask for versions").stdout
    return dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)


def report(lab: Lab) -> str:
    """Return them in one line."""
    found = versions(lab)
    return found.pop("system") + ": " + ", ".join(f"{name} {version}" for name, version in found.items())
