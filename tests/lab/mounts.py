"""The file systems of a node as a table. Pure: node_mounts() says what is to be mounted, node.py mounts it.

A node's root is built from nothing and holds only what is listed here: the host's /usr and /etc (read-only), the
lab's shared /home, the site's /opt, and private folders. So the host's /root, the repository, caches and whatever
else lies on the machine are not hidden one by one: they were never there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.lab.linux import MS_RDONLY
from tests.lab.site import LOGIN, SCRATCH, USER_ID

#: Folders of the root that are links into /usr on today's distributions, and folders on older ones.
TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

#: Folders to make in the root before anything is mounted on them, with their modes, parents first.
FOLDERS: tuple[tuple[str, int], ...] = (
    ("usr", 0o755), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755), ("run", 0o755),
    ("tmp", 0o1777), ("home", 0o755), ("opt", 0o755), ("root", 0o700), ("mnt", 0o755), ("srv", 0o755),
    ("var", 0o755), ("var/lib", 0o755), ("var/log", 0o755), ("var/spool", 0o755), ("var/tmp", 0o1777),
    ("var/lib/munge", 0o700), ("var/cache", 0o755), (".old", 0o700),
)  # fmt: skip

#: Links to make in the root.
LINKS: tuple[tuple[str, str], ...] = (
    ("var/run", "/run"), ("var/lock", "/run/lock"),
    ("dev/ptmx", "pts/ptmx"), ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"), ("dev/stdout", "/proc/self/fd/1"), ("dev/stderr", "/proc/self/fd/2"),
)  # fmt: skip

#: Character devices: name, major, minor. All are open to everybody, /dev/fuse too: every distribution's udev does it.
DEVICES: tuple[tuple[str, int, int], ...] = (
    ("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0),
    ("fuse", 10, 229),
)  # fmt: skip


@dataclass(frozen=True)
class Mount:
    """One mount. ``target`` is below the node's root. ``fstype`` "bind" is a bind mount."""

    fstype: str
    source: str
    target: str
    options: str = ""
    read_only: bool = False

    @property
    def flags(self) -> int:
        return MS_RDONLY if self.read_only else 0


def tmpfs(target: str, options: str, read_only: bool = False) -> Mount:
    return Mount("tmpfs", "tmpfs", target, options, read_only)


def bind(source: str, target: str, read_only: bool = False) -> Mount:
    return Mount("bind", source, target, read_only=read_only)


def early_mounts() -> list[Mount]:
    """Return what is mounted before devices and links are made."""
    return [tmpfs("dev", "mode=755,size=64k")]


def node_mounts(node: str, state: str, root: str, opt: str, memory_mb: int, scratch: str) -> list[Mount]:
    """Return the mounts of ``node`` in their order.

    ``state`` is the lab's folder, ``root`` the root that /usr and /etc are taken from, ``opt`` the site's software.
    """
    own = f"{state}/nodes/{node}"
    base = root.rstrip("/")
    table = [
        bind(f"{base}/usr", "usr", read_only=True),
        # What the owner of the machine put into /usr/local is not part of the site.
        tmpfs("usr/local", "mode=755,size=4k", read_only=True),
        Mount("overlay", "overlay", "etc", f"lowerdir={own}/etc:{state}/etc:{base}/etc", read_only=True),
        bind(f"{state}/profile.d", "etc/profile.d", read_only=True),
        Mount("proc", "proc", "proc"),
        # By it UCX tells machines apart; all nodes have one kernel.
        bind(f"{own}/boot_id", "proc/sys/kernel/random/boot_id", read_only=True),
        Mount("sysfs", "sysfs", "sys", read_only=True),
        # As on any node, and without the right to make groups in it: runtimes of containers look for it.
        Mount("cgroup2", "cgroup2", "sys/fs/cgroup", read_only=True),
        Mount("devpts", "devpts", "dev/pts", "newinstance,ptmxmode=0666,mode=0620,gid=5"),
        tmpfs("dev/shm", f"mode=1777,size={memory_mb // 2}m"),
        Mount("mqueue", "mqueue", "dev/mqueue"),
        tmpfs("run", "mode=755,size=64m"),
        bind(f"{own}/log", "var/log"),
        # On disk, so that slurmctld still knows its jobs when login1 was killed and starts again.
        bind(f"{own}/spool", "var/spool"),
        tmpfs("var/lib/munge", "mode=700,size=1m"),
        tmpfs("var/tmp", f"mode=1777,size={memory_mb}m"),
        tmpfs("tmp", f"mode=1777,size={memory_mb}m"),
        bind(f"{state}/home", "home"),
        bind(opt, "opt", read_only=True),
    ]
    if node == LOGIN:
        table.append(bind(f"{own}/ssh", "etc/ssh"))
        owner = f"uid={USER_ID},gid={USER_ID}"
        table.append(tmpfs(SCRATCH.lstrip("/"), f"mode=700,size={scratch},{owner}"))
    return table
