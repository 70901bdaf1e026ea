"""A site's Apptainer on the nodes of a lab: the real program of Debian's newest suite, on whatever C library they have.

Only Debian's sid has it, and it needs that suite's C library. So its programs get that library's loader, and their
libraries beside them; the rest of a node stays as it was. It is unprivileged: Debian's package has no setuid program.
``install_setuid`` makes one of its starter, which its makers compile once more for that, with fewer engines; then all
is where the package has it, because a setuid installation does not allow to be moved.
Its version and programs are pinned. The libraries are the suite's newest, because the mirror has no older ones.
squashfuse_ll is where its makers' own packages have it, and not in the nodes' PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import roots
from tests.lab.errors import LabError
from tests.lab.kept import kept
from tests.lab.software import admins_umask
from tests.lab.state import write_atomically

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: Where nodes have it. The path of the loader is inside the programs, so it is fixed.
PREFIX = "/home/apps/apptainer"
CONFIG = "etc/apptainer/apptainer.conf"
_SUITE = "sid"
_VERSION = "1.4.5-2"
_LIBRARIES = "lib/x86_64-linux-gnu"
_LOADER = "ld-linux-x86-64.so.2"
_STARTER = f"{_LIBRARIES}/apptainer/bin/starter"
#: Programs of the package, and their SHA-256.
PINS = {
    "bin/apptainer": "637596eb35fc0306850ae2346ba0cc1b45e3298883900c69c1fb420c99d13acf",
    _STARTER: "767a66cface525cc2441fa9adf5fddbdce09ba0fbfd80a9ac331d5c77cd7e4c7",
}
_RENEW = (
    "a newer one must pass tests/integration/test_apptainer.py first; then change the pins in tests/lab/apptainer.py"
)
#: What the programs need, and what they open by name for the user's number.
_NEEDED = (
    _LOADER, "libc.so.6", "libfuse3.so.4", "liblz4.so.1", "liblzma.so.5", "liblzo2.so.2", "libm.so.6",
    "libnss_files.so.2", "libresolv.so.2", "libseccomp.so.2", "libsqlite3.so.0", "libz.so.1",
    "libzstd.so.1",
)  # fmt: skip
SQUASHFUSE = f"{_LIBRARIES}/apptainer/bin/squashfuse_ll"
#: Makes root a user as others are, who has root's files: Apptainer without setuid and rootless podman are not for root.
AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
_PROFILE = f'PATH="$PATH:{PREFIX}/bin"\n'


def install(lab: Lab) -> Path:
    """Install it on all nodes of a lab, in the PATH of a login shell; return its folder as a path of this machine."""
    target = lab.home / Path(PREFIX).relative_to("/home")
    if not target.exists():
        with admins_umask():
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(tree(), target, symlinks=True)
    write_atomically(lab.state.profile_d / "apptainer.sh", _PROFILE)
    return target


#: Kernels mount SquashFS files by loop devices. Nodes share the kernel, and each start looks at all devices in use.
LOOP = """
mknod /dev/loop-control c 10 237
for number in $(seq 0 63); do mknod -m 660 /dev/loop$number b 7 $number || exit; done
"""
#: Puts it over a node's own /usr, whose files stay as they were.
_OVER = f"""
mount -o remount,bind,rw / && mkdir -p /var/lib/apptainer/mnt/session && mount -o remount,bind,ro / || exit
for folder in bin {_LIBRARIES}; do
    mount -t overlay -o lowerdir={PREFIX}/$folder:/usr/$folder overlay /usr/$folder || exit
done
mount --bind {PREFIX}/etc/apptainer /etc/apptainer || exit
{LOOP}
"""


def install_setuid(lab: Lab) -> Path:
    """Install it setuid on all nodes of a lab, until they are started again; return its configuration."""
    install(lab)
    (lab.state.profile_d / "apptainer.sh").unlink()
    installed = lab.home / Path(PREFIX).relative_to("/home")
    setuid = (installed / _STARTER).with_name("starter-suid")
    shutil.copy(installed / _STARTER, setuid)
    setuid.chmod(0o4755)
    (lab.state.etc / "apptainer").mkdir(exist_ok=True)
    for node in lab.definition().site.slurm_nodes:
        lab.sh(node, "root", _OVER).check(f"install Apptainer on {node}")
    return installed / CONFIG


def remove(lab: Lab) -> None:
    """Take it from the nodes."""
    (lab.state.profile_d / "apptainer.sh").unlink(missing_ok=True)
    shutil.rmtree(lab.home / Path(PREFIX).relative_to("/home"), ignore_errors=True)


def ensure(argv: list[str]) -> None:
    """If this machine has no apptainer, become ``argv`` where it and podman start, unseen by others."""
    if shutil.which("apptainer") is None:
        place = f'mount -t tmpfs none /home && mkdir -p {Path(PREFIX).parent} && cp -a "$0" {PREFIX}'
        user = (
            'sed "\\$a user:x:1000:1000::/:/bin/sh" /etc/passwd >/home/passwd && mount --bind /home/passwd /etc/passwd'
        )
        # crun refuses a mix of both versions; nodes of a lab have the newer alone.
        groups = "{ umount -l -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; }"
        groups = f'{{ [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || {groups}; }}'
        script = f'{place} && {user} && {groups} && PATH={PREFIX}/bin:$PATH exec "$@"'
        os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, str(tree()), *argv])


#: Puts it where it has to be, unseen by others.
_HERE = f"""
mount -t tmpfs none /home && mkdir -p {PREFIX} && mount --bind "$0" {PREFIX} &&
mount -t tmpfs none /var/lib && mkdir -p /var/lib/apptainer/mnt/session && PATH={PREFIX}/bin:$PATH && exec "$@"
"""


def here(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command here as root of a user namespace, with it in PATH; its keys and cache are in ``folder``."""
    own = {"APPTAINER_CONFIGDIR": str(folder / "apptainer"), "APPTAINER_CACHEDIR": str(folder / "cache")}
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _HERE, str(tree()), *argv]
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False
    )


def tree() -> Path:
    """Return a folder of this machine with what nodes have at ``PREFIX``."""
    root = pinned_root()
    inputs = [root.name, PREFIX, Path(__file__).read_bytes()]
    return kept("apptainer", "apptainer", inputs, lambda made: _make(root, made))


def pinned_root() -> Path:
    """Return a root with the pinned package; raises LabError if the mirror lacks it or has another."""
    try:
        root = roots.root(_SUITE, (f"apptainer={_VERSION}", "squashfuse"), "apptainer")
    except LabError as error:
        raise LabError(f"cannot get Apptainer {_VERSION} of Debian's {_SUITE}: {error.message}", _RENEW) from error
    check(root)
    return root


def check(root: Path) -> None:
    """Raise LabError unless the programs of a root are the pinned ones."""
    for name, pinned in PINS.items():
        found = hashlib.sha256((root / "usr" / name).read_bytes()).hexdigest()
        if found != pinned:
            raise LabError(
                f"/usr/{name} of Apptainer {_VERSION} has the SHA-256 {found}, not the pinned {pinned}", _RENEW
            )


def _make(root: Path, made: Path) -> None:
    with admins_umask():
        (made / "bin").mkdir()
        shutil.copy(root / "usr/bin/apptainer", made / "bin/apptainer")
        (made / "bin/singularity").symlink_to("apptainer")
        shutil.copytree(root / "usr" / _LIBRARIES / "apptainer", made / _LIBRARIES / "apptainer")
        shutil.copytree(root / "etc/apptainer", made / "etc/apptainer")
        shutil.copy(root / "usr/bin/squashfuse_ll", made / SQUASHFUSE)
        libraries = made / "lib/beside"
        libraries.mkdir()
        for name in _NEEDED:
            shutil.copy(root / "usr" / _LIBRARIES / name, libraries / name)
        (made / "var/lib/apptainer/mnt/session").mkdir(parents=True)
        for name in ("etc", "var"):  # its starter looks for them one folder too low where libraries are in lib/TRIPLET
            (made / "lib" / name).symlink_to(f"../{name}")
        for program in ("bin/apptainer", _STARTER, SQUASHFUSE):
            words = ["patchelf", "--set-interpreter", f"{PREFIX}/lib/beside/{_LOADER}"]
            words += ["--force-rpath", "--set-rpath", f"{PREFIX}/lib/beside", str(made / program)]
            subprocess.run(words, check=True, timeout=60)
