"""The facts of a login or compute node: kernel, C library, Python versions, runtimes, and the user's rights."""

import ctypes
import errno
import os
import re
import shutil
import sys
import tempfile
from typing import Any, Dict, List, Optional

from deployer.contract.base.json_records import Record
from deployer.contract.site.plan import NATIVE
from deployer.contract.site.runtime_table import RUNTIMES
from deployer.site.capture import apptainer, started
from deployer.site.capture.tools import Tools, read_text, refused

#: Names to search in PATH, and the path of the Python for RHEL's own tools.
_PYTHONS = ("python3", *("python3.%d" % minor for minor in range(6, 20)), "/usr/libexec/platform-python")
_LAUNCHERS = ("srun", "mpiexec.hydra", "mpiexec", "mpirun", "prterun", "ibrun")
#: What mpiexec of HPE's PALS prints for --version: no other one does.
_PALS = re.compile(r"^mpiexec version \d")

#: Creates the same namespaces as ch-run in a separate process, whose exit status is the error number.
_UNSHARE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(0 if libc.unshare(0x10000000 | 0x00020000) == 0 else ctypes.get_errno() or 255)
"""

_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+~-]*")


def machine(tools: Tools, words: Optional[started.TrialWords] = None) -> Record:
    """Return the facts of this machine, with the keys of a profile's ``Machine``."""
    name = os.uname()
    found: Dict[str, Any] = {
        "architecture": name.machine,
        "os": os_name(),
        "kernel": name.release,
        "page_size": page_size(name.machine),
        "glibc": glibc(),
        "libzstd": libzstd(),
        "pythons": pythons(tools),
        "user_namespaces": user_namespaces(tools),
        "fuse": fuse(),
        "runtimes": runtimes(tools, words),
        "launchers": launchers(tools),
    }
    return {key: value for key, value in found.items() if value is not None}


def launchers(tools: Tools) -> List[str]:
    """Return the programs in PATH that start ranks, as a profile's ``launchers`` names them."""
    found = [program for program in _LAUNCHERS if shutil.which(program)]
    answer = tools.ask(["mpiexec", "--version"], any_status=True) if "mpiexec" in found else None
    return [*found, *(["pals"] if answer and _PALS.match(answer.out) else [])]


def os_name(path: str = "/etc/os-release") -> Optional[str]:
    """Return the distribution's name for itself."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]{1,100})', read_text(path), re.MULTILINE)
    return match.group(1) if match else None


def page_size(architecture: str) -> Optional[int]:
    """Return the page size in bytes; None on x86_64, where it is always 4096."""
    return None if architecture == "x86_64" else os.sysconf("SC_PAGE_SIZE")


def glibc() -> Optional[str]:
    """Return the version of this process's C library."""
    try:
        match = re.match(r"glibc (\d+\.\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (OSError, ValueError):
        return None
    return match.group(1) if match else None


def libzstd() -> Optional[str]:
    """Return the version of the zstd library that the loader finds."""
    try:
        function = ctypes.CDLL("libzstd.so.1").ZSTD_versionNumber
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_uint
    number = function()
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)


def pythons(tools: Tools) -> Dict[str, str]:
    """Return the version of each Python by path, without duplicates."""
    distinct: Dict[str, str] = {}
    for path in filter(None, [sys.executable, *map(shutil.which, _PYTHONS)]):
        distinct.setdefault(os.path.realpath(path), path)
    question = ["-I", "-S", "-c", "import platform; print(platform.python_version())"]
    answers = {path: tools.ask([path, *question], name=path) for path in distinct.values()}
    return {path: answer.out.split()[0] for path, answer in answers.items() if answer and _VERSION.match(answer.out)}


def user_namespaces(tools: Tools) -> Optional[bool]:
    """Return whether this user can create the namespaces of a container, by trying it."""
    if not sys.executable:
        return None
    answer = tools.ask([sys.executable, "-I", "-S", "-c", _UNSHARE], any_status=True, name="user namespaces")
    if answer and answer.status == errno.EINVAL:
        # The kernel has none, or this Python has a thread that it did not start, as under qemu.
        answer = tools.ask(["unshare", "--user", "--mount", "true"], any_status=True, name="user namespaces") or answer
    if answer is None:
        return None
    if answer.status:
        tools.note(f"user namespaces: {os.strerror(answer.status)}")
    return answer.status == 0


def namespaces_denied() -> Optional[str]:
    """Return why this user cannot create a container's namespaces on this host; None if they can, or it is unknown."""
    tools = Tools()
    if user_namespaces(tools) is not False:
        return None
    return "no user namespaces here{}".format("".join(note.partition("user namespaces")[2] for note in tools.notes))


def fuse() -> bool:
    """Return whether this user can open the FUSE device, which mounting an image requires."""
    return refused("/dev/fuse") is None


def runtimes(tools: Tools, words: Optional[started.TrialWords] = None) -> Record:
    """Return the container runtimes in PATH, with their versions.

    If a runtime's abilities depend on the installation, they are tested: Apptainer always, others only with ``words``.
    """
    found: Record = {}
    for name, known in RUNTIMES.items():
        if name == NATIVE or known.allowed_by or not shutil.which(known.program):
            continue
        number = version(tools, name)
        if not known.version_words:
            found[name] = {}
        elif number:
            own = apptainer.facts(tools, known.program) if known.mounts else {}
            own = started.facts(tools, name, words) if known.tried and words and not known.mounts else own
            found[name] = {"version": number, **own}
    return found


def version(tools: Tools, name: str) -> Optional[str]:
    """Return the version of a runtime without starting a container; None if its program does not print it."""
    known = RUNTIMES[name]
    if not known.version_words:
        return None
    with tempfile.TemporaryDirectory() as folder:
        # Some runtimes, such as enroot, create folders in the home directory on every call.
        elsewhere = {f"XDG_{each}": folder for each in ("CACHE_HOME", "DATA_HOME", "CONFIG_HOME", "RUNTIME_DIR")}
        answer = tools.ask([known.program, *known.version_words], environment=elsewhere)
    match = _VERSION.search(answer.both) if answer else None
    if not match or not answer or (name == "singularity" and "apptainer" in answer.both):  # a link to apptainer
        return None
    return match.group()
