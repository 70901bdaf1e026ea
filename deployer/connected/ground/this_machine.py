"""What this machine is and can do. What depends on the operating system is decided here; the rest is portable."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from deployer.contract.elf.machines import kernel_name
from deployer.system import process

#: Seconds for a user namespace.
_TIMEOUT = 30.0
#: Bytes of a folder's path that leave room for ours and ssh's: a socket's path has at most 103 on macOS, 107 on Linux.
_SHORT = 23


def is_linux() -> bool:
    """Return whether this machine runs Linux, so that namespaces and Debian's programs are possible."""
    return sys.platform == "linux"


def machine() -> str:
    """Return the kernel's name of this machine's architecture. macOS says arm64, where Linux says aarch64."""
    name = os.uname().machine
    return kernel_name(name) or name


def without_mmdebstrap() -> str:
    """Return why mmdebstrap cannot make a root filesystem here; empty if it can."""
    if not is_linux():
        return "mmdebstrap needs Linux"
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    if os.geteuid() == 0 or shutil.which("fakechroot"):
        return ""
    done = process.run(["mmdebstrap", "--unshare-helper", "true"], _TIMEOUT, check=False)
    return f"mmdebstrap lacks user namespaces: {done.last_words(1)}" if done.returncode else ""


def folder_for_sockets() -> Path:
    """Return the folder for temporary files, or /tmp if its path is too long for sockets, as on macOS."""
    usual, short = Path(tempfile.gettempdir()), Path("/tmp")  # noqa: S108  the folders in it are private
    return usual if len(os.fsencode(usual)) <= _SHORT or not short.is_dir() else short
