"""Root filesystems of Debian's suites, made of packages: of images, of the compilers, and of a site's nodes."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from deployer.connected.image.bases import base
from deployer.connected.image.definition import settings
from deployer.connected.image.definition.definition import Base
from tests.lab.errors import LabError
from tests.lab.kept import kept

_TIMEOUT_S = 1200
#: A mirror that is being updated may lack for a moment what its index lists. These errors of apt do not pass.
_TRIES = 3
_FINAL = ("Unable to locate package", "was not found")

#: Suites that change from day to day: a mirror may be behind by more than their archive's date allows.
_MOVING = ("sid",)
#: What a node of a site needs beside Slurm and a runtime; with Debian's own Open MPI, in the system's folders.
NODE = (
    "ca-certificates", "charliecloud", "crun", "curl", "hostname", "iproute2", "iptables", "libpmix-dev", "libpsm2-2",
    "lmod", "munge", "openmpi-bin", "openssh-client", "openssh-server", "podman", "procps", "python3", "slurm-wlm",
    "squashfs-tools", "tcsh", "util-linux",
)  # fmt: skip
#: gcc is enough for most; Debian's own MPIs bring their wrappers.
GCC = ("gcc", "libc6-dev")
CROSS = {"aarch64": ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross")}
WRAPPERS = ("g++", "gcc", "libc6-dev", "libmpich-dev", "libopenmpi-dev")


def node(suite: str) -> Path:
    """Return the root of a site's nodes, made of a Debian suite's packages."""
    return root(suite, NODE, "node")


def foreign_node(suite: str, machine: str) -> Path:
    """Return the root of nodes that appear to have another processor: Slurm, ssh and ch-run are this machine's.

    Python and its libraries are the other processor's, in Debian's multiarch folders, and the kernel starts them with
    qemu. So what deployer asks its nodes with Python has the other processor's answer: the machine, the C library, and
    what the job's own programs see. /proc/cpuinfo and lscpu remain this machine's.
    """
    native = root(suite, NODE, "node")
    tarball = _tarball(suite, ("python3",), machine)
    triplet = f"{machine}-linux-gnu"
    parts = [
        f"./usr/lib/{triplet}",
        "./usr/lib/ld-linux-*",
        f"./etc/ld.so.conf.d/{triplet}.conf",
        "./usr/bin/python3.*",
    ]
    parts += [f"./usr/lib/python3.*{triplet}*"]

    def make(target: Path) -> None:
        copy = ["cp", "-a", "--reflink=auto", f"{native}/.", str(target)]
        take = ["tar", "-x", "--numeric-owner", "--wildcards", "-f", str(tarball), "-C", str(target), *parts]
        for words in (copy, take, ["ldconfig", "-r", str(target)]):
            subprocess.run(words, check=True, timeout=_TIMEOUT_S)

    return kept("roots", f"{suite}-{machine}-node", [str(native), tarball.name], make)


@functools.cache
def emulated(suite: str, packages: tuple[str, ...], name: str, machine: str) -> Path:
    """Return such a folder for another processor, made with emulation. deployer's cache of bases keeps its tarball."""
    tarball = _tarball(suite, packages, machine)

    def make(target: Path) -> None:
        words = ["tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-f", str(tarball), "-C", str(target)]
        subprocess.run(words, check=True, timeout=_TIMEOUT_S)

    return kept("roots", f"{suite}-{machine}-{name}", [tarball.name], make)


def _tarball(suite: str, packages: tuple[str, ...], machine: str) -> Path:
    return base.debian_tarball(_spec(suite, packages, machine), settings.from_host(None, None, os.environ), print)


def _spec(suite: str, packages: tuple[str, ...], machine: str) -> Base:
    # Not validated: no image is made of a suite that moves, but nodes are.
    spec = Base.model_construct(debian=suite, include=sorted(packages))
    spec._machine = machine
    return spec


@functools.cache  # mmdebstrap is asked for its version each time
def root(suite: str, packages: tuple[str, ...], name: str) -> Path:
    """Return the folder with the smallest system of ``suite`` and some packages, made by mmdebstrap if need be.

    Raises LabError with apt's own words where the mirror has no such suite or package.
    """
    spec = _spec(suite, packages, os.uname().machine)

    def make(target: Path) -> None:
        host = settings.from_host(None, None, os.environ)
        late = {"Acquire::Check-Valid-Until": "false"} if suite in _MOVING else {}
        argv = base.command(spec, {**host.apt, **late}, host.sources)
        said = ""
        for attempt in range(_TRIES):
            time.sleep(5 * attempt)
            shutil.rmtree(target)
            target.mkdir(mode=0o755)
            said = _unpacked(argv, target)
            if not said or any(sign in said for sign in _FINAL):
                break
        if said:
            raise LabError(f"mmdebstrap cannot make {suite}: {said[-2000:]}")

    return kept("roots", f"{suite}-{name}", [base.base_key(spec)], make)


def _unpacked(argv: Sequence[str], target: Path) -> str:
    """Unpack what mmdebstrap writes; return what it says if it fails, or nothing."""
    unpack = ["tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", str(target)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False) as made:
        unpacked = subprocess.run(unpack, stdin=made.stdout, check=False, timeout=_TIMEOUT_S)
        _, said = made.communicate(timeout=_TIMEOUT_S)
    if made.returncode or unpacked.returncode:
        return said.decode(errors="replace") or "no reason given"
    return ""


def run_inside(folder: Path, argv: Iterable[str], binds: Iterable[tuple[Path, str]] = ()) -> None:
    """Run a program in a root filesystem, with folders bound to places that are there; raises CalledProcessError.

    It has the devices of this machine: the roots are kept without any.
    """
    every = [(Path("/dev"), "/dev"), *binds]
    mounts = "".join(f"mount --bind '{source}' '{folder}{target}' && " for source, target in every)
    script = f'{mounts}exec chroot "{folder}" "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *argv], check=True, timeout=_TIMEOUT_S)
