"""What the lab needs of the machine that it runs on, and what it learns from it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.lab.command import CLEAN_ENV
from tests.lab.errors import LabError

#: Program (or file) and the Debian package that brings it.
NEEDED: dict[str, str] = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    # srun --mpi=pmix, for Open MPI. Slurm's plugin opens libpmix.so by that name, so libpmix2 alone is not enough.
    "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so": "libpmix-dev",
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "iptables-restore": "iptables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "ch-run": "charliecloud",
    "/usr/share/lmod/lmod/init/bash": "lmod",
    "/usr/bin/python3": "python3",
}


def packages() -> list[str]:
    """Return the Debian packages that a lab needs."""
    return sorted(set(NEEDED.values()))


def check() -> None:
    """Raise unless this user and this machine can carry a lab."""
    if os.geteuid() != 0:
        raise LabError("root is needed: a lab is made of namespaces and mounts", "run it as root")
    missing = sorted({package for needed, package in NEEDED.items() if not _present(needed)})
    if missing:
        raise LabError("packages are missing: " + ", ".join(missing), "apt-get install " + " ".join(missing))


def _present(needed: str) -> bool:
    if needed.startswith("/"):
        return Path(needed).exists()
    return shutil.which(needed, path=CLEAN_ENV["PATH"]) is not None


def usable_cpus() -> tuple[int, ...]:
    """Return the cores of the machine: those of its first process, for ours may be pinned just now."""
    try:
        return tuple(sorted(os.sched_getaffinity(1)))
    except OSError:
        return tuple(sorted(os.sched_getaffinity(0)))


def total_memory_mb() -> int:
    """Return the machine's memory in MiB."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def user_id(root: Path, user: str) -> tuple[int, int]:
    """Return uid and gid of a user of the nodes' root."""
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == user:
            return int(fields[2]), int(fields[3])
    raise LabError(f"{root}etc/passwd has no user {user}", f"is the package that makes {user} installed?")
