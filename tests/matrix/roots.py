"""Root filesystems of Debian's suites, made of packages: of images, of the compilers, and of a site's nodes."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from deployer.connected.builders import base, settings
from deployer.connected.definition import Base
from tests.matrix.kept import kept

_TIMEOUT_S = 1200

#: What a node of a site needs beside Slurm and a runtime; with Debian's own Open MPI, in the system's folders.
NODE = (
    "ca-certificates", "charliecloud", "hostname", "iproute2", "iptables", "libpmix-dev", "lmod", "munge",
    "openmpi-bin", "openssh-client", "openssh-server", "procps", "python3", "slurm-wlm", "util-linux",
)  # fmt: skip
#: gcc is enough for most; Debian's own MPIs bring their wrappers.
GCC = ("gcc", "libc6-dev")
WRAPPERS = ("g++", "gcc", "libc6-dev", "libmpich-dev", "libopenmpi-dev")


@functools.cache  # mmdebstrap is asked for its version each time
def root(suite: str, packages: tuple[str, ...], name: str) -> Path:
    """Return the folder with the smallest system of ``suite`` and some packages, made by mmdebstrap if need be."""
    spec = Base.model_validate({"debian": suite, "include": sorted(packages)})

    def make(target: Path) -> None:
        host = settings.from_host(None, None, os.environ)
        argv = base.command(spec, host.apt, host.sources)
        unpack = ["tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", str(target)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False) as made:
            subprocess.run(unpack, stdin=made.stdout, check=True, timeout=_TIMEOUT_S)
            _, said = made.communicate(timeout=_TIMEOUT_S)
        if made.returncode != 0:
            raise RuntimeError(f"mmdebstrap cannot make {suite}: {said.decode(errors='replace')[-2000:]}")

    return kept("roots", f"{suite}-{name}", [base.base_key(spec)], make)


def run_inside(folder: Path, argv: Iterable[str], binds: Iterable[tuple[Path, str]] = ()) -> None:
    """Run a program in a root filesystem, with folders bound to places that are there; raises CalledProcessError."""
    mounts = "".join(f"mount --bind '{source}' '{folder}{target}' && " for source, target in binds)
    script = f'{mounts}exec chroot "{folder}" "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *argv], check=True, timeout=_TIMEOUT_S)
