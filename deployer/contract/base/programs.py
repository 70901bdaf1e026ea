"""The Debian package of each program that deployer starts on the laptop, for the hint if it is missing."""

from typing import Dict

_PACKAGES: Dict[str, str] = {
    "age": "age", "apt-config": "apt", "bash": "bash", "dpkg-deb": "dpkg", "gcc": "gcc libc6-dev", "ip": "iproute2",
    "make": "make", "mmdebstrap": "mmdebstrap", "patch": "patch", "sftp": "openssh-client", "ssh": "openssh-client",
    "ssh-keygen": "openssh-client", "strip": "binutils", "tar": "tar",
}  # fmt: skip


def remedy(program: str) -> str:
    """Return what to do if a program, given by name or path, cannot be started."""
    package = _PACKAGES.get(program.rpartition("/")[2])
    return f"install it (Debian: apt-get install {package})" if package else "is it installed, and in PATH?"
