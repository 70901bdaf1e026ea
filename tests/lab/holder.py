"""The process that holds a node: it makes the namespaces and mounts, then stays as the node's PID 1.

It runs as a process of its own, ``python -m tests.lab.holder LAB NODE``; what it says to the command that started it
is told in node.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.lab import linux
from tests.lab.command import CLEAN_ENV
from tests.lab.mounts import DEVICES, FOLDERS, LINKS, TOP_LEVEL, Mount, early_mounts, node_mounts
from tests.lab.node import NodeSpec
from tests.lab.state import read_stat


def main() -> None:
    """Become the holder of a node: see the module's text."""
    spec = NodeSpec(**json.loads(sys.stdin.readline()))
    flags = linux.CLONE_NEWNET
    if spec.machine:
        flags |= linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID
    linux.unshare(flags)
    if os.fork() != 0:
        os._exit(0)  # a new pid namespace begins with the first child
    me = read_stat("self")  # /proc is still the host's: it shows the pid that the host knows us by
    assert me is not None
    print(json.dumps({"pid": me.pid, "start": me.start}), flush=True)
    if sys.stdin.readline() != "go\n":
        os._exit(1)
    linux.name_this_process(f"lab-{spec.name}")
    try:
        _isolate_network()
        if spec.machine:
            _set_up_machine(spec)
            if not spec.namespaces:
                _forbid_namespaces()
    except OSError as error:
        print(f"{error.strerror}: {error.filename or ''} {error.filename2 or ''}".strip(), flush=True)
        os._exit(1)
    print("ready", flush=True)
    _let_go_of_terminal()
    _reap_for_ever()


def _isolate_network() -> None:
    # A new network namespace may inherit forwarding from a host that runs containers: a node is no router.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    for scope in ("all", "default"):
        setting = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if setting.exists():
            setting.write_text("1")


def _set_up_machine(spec: NodeSpec) -> None:
    socket.sethostname(spec.name)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)  # our mounts must not reach the host
    new_root = Path(spec.state, "nodes", spec.name, "root")
    linux.mount("tmpfs", str(new_root), "tmpfs", options="mode=755,size=1m")
    os.umask(0)
    for name, mode in FOLDERS:
        (new_root / name).mkdir(mode=mode)
    for name in TOP_LEVEL:
        _take_over(Path(spec.root, name), new_root / name)
    for mount in early_mounts():
        _mount(mount, new_root)
    for name, target in LINKS:
        (new_root / name).symlink_to(target)
    for name, major, minor in DEVICES:
        os.mknod(new_root / "dev" / name, 0o020666, os.makedev(major, minor))
    for name in ("pts", "shm", "mqueue"):
        (new_root / "dev" / name).mkdir(mode=0o755)
    for mount in node_mounts(spec.name, spec.state, spec.root, spec.opt, spec.memory_mb, spec.scratch):
        _mount(mount, new_root)
    _enter(new_root)
    os.umask(0o022)
    for folder in ("/run/munge", "/run/sshd", "/run/slurm"):
        os.mkdir(folder, 0o755)
    os.mkdir("/run/lock", 0o755)
    os.chmod("/run/lock", 0o1777)


def _take_over(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir()
        _mount(Mount("bind", str(source), target.name, read_only=True), target.parent)


def _mount(mount: Mount, new_root: Path) -> None:
    target = str(new_root / mount.target)
    if mount.fstype != "bind":
        linux.mount(mount.source, target, mount.fstype, mount.flags, mount.options)
        return
    linux.mount(mount.source, target, flags=linux.MS_BIND)
    if mount.read_only:  # a bind mount takes flags only when it is mounted again
        linux.mount("none", target, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY)


def _enter(new_root: Path) -> None:
    """Make ``new_root`` the root and drop the host's: pivot_root, not chroot, else ch-run's user namespace fails."""
    os.chdir(new_root)
    subprocess.run(["pivot_root", ".", ".old"], check=True, timeout=10, env=dict(CLEAN_ENV))
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/.old"], check=True, timeout=10, env=dict(CLEAN_ENV))
    os.rmdir("/.old")
    linux.mount("none", "/", flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY)


def _forbid_namespaces() -> None:
    Path("/run/none").write_text("0\n")
    linux.mount("/run/none", "/proc/sys/user/max_user_namespaces", flags=linux.MS_BIND)
    linux.forbid_user_namespaces()


def _let_go_of_terminal() -> None:
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _reap_for_ever() -> None:
    """Do what PID 1 must: collect the orphans of the node. SIGTERM, which only the host can send, ends the node."""
    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass
        if signal.sigwait(signals) == signal.SIGTERM:
            os._exit(0)


if __name__ == "__main__":
    main()
