"""Writes a lab's folder: keys, homes and the configuration files that config.py renders."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from tests.lab import config, host
from tests.lab.command import run
from tests.lab.site import LAPTOP, LOGIN, USER, USER_ID, Site
from tests.lab.state import StateDir, write_atomically

HOST_KEY = "ssh_host_ed25519_key"


def lay_out(state: StateDir, site: Site) -> None:
    """Make the folder complete. What is there and right stays untouched: nodes may have it mounted."""
    root = Path(site.root)
    for node in site.all_nodes:
        state.node(node).mkdir(parents=True, exist_ok=True)
    for node in site.slurm_nodes:
        for folder in ("etc", "log", "spool", "root"):
            (state.node(node) / folder).mkdir(exist_ok=True)
        write_atomically(state.node(node) / "boot_id", f"{uuid.uuid5(uuid.NAMESPACE_URL, f'{state.path}/{node}')}\n")
        write_atomically(state.node(node) / "etc/hostname", node + "\n")
    for node in site.compute:
        prolog = state.node(node) / config.TASK_PROLOG.lstrip("/")
        write_atomically(prolog, config.task_prolog(site.cpus_of(node)), mode=0o755)
    for name, text in config.common_etc(site).items():
        write_atomically(state.etc / name, text)
    for name, mode in (("passwd", 0o644), ("group", 0o644), ("shadow", 0o640)):
        write_atomically(state.etc / name, config.accounts(name, (root / "etc" / name).read_text()), mode)
    _profile(state, root)
    _munge_key(state, root)
    _login_keys(state)
    _home(state)


def forget_jobs(state: StateDir, site: Site) -> None:
    """Empty the nodes' /var/spool: a cluster that starts anew must not take up the jobs of the last one."""
    for node in site.slurm_nodes:
        shutil.rmtree(state.node(node) / "spool", ignore_errors=True)


def _profile(state: StateDir, root: Path) -> None:
    state.profile_d.mkdir(exist_ok=True)
    script = root / "etc/profile.d/lmod.sh"  # of the host's scripts just this one: the others are the machine's own
    write_atomically(state.profile_d / "lmod.sh", script.read_text())


def _munge_key(state: StateDir, root: Path) -> None:
    folder = state.etc / "munge"
    key = folder / "munge.key"
    if key.exists():
        return
    folder.mkdir(exist_ok=True)
    uid, gid = host.user_id(root, "munge")
    temporary = folder / ".munge.key"
    temporary.write_bytes(os.urandom(1024))
    temporary.chmod(0o400)
    folder.chmod(0o700)
    for path in (temporary, folder):  # munged refuses a key or a folder that another user could change
        os.chown(path, uid, gid)
    temporary.rename(key)


def _login_keys(state: StateDir) -> None:
    state.laptop.mkdir(exist_ok=True)
    make_key(state.laptop / "id_ed25519", f"{USER}@{LAPTOP}")
    make_key(original_host_key(state), LOGIN)
    ssh = state.node(LOGIN) / "ssh"
    ssh.mkdir(exist_ok=True)
    write_atomically(ssh / "sshd_config", config.sshd_config())
    public_key = original_host_key(state).with_name("hostkey.pub").read_text()
    write_atomically(state.laptop / "known_hosts", config.known_hosts(public_key))
    write_atomically(state.laptop / "dial.py", config.dial_py())


def original_host_key(state: StateDir) -> Path:
    """The host key that the laptop knows. sshd uses a copy, which the fault new-hostkey replaces."""
    return state.path / "hostkey"


def make_key(file: Path, comment: str) -> None:
    """Make an ssh key pair unless there is one. Both files appear by renames, the private key last."""
    if file.exists():
        return
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(temporary)]
    run(argv, timeout=30).check("cannot make an ssh key")
    temporary.with_name(temporary.name + ".pub").rename(file.with_name(file.name + ".pub"))
    temporary.rename(file)


def use_host_key(state: StateDir, key: Path) -> bool:
    """Give login1's sshd the host key ``key``. True if it had another one: sshd must then be started again."""
    target = state.node(LOGIN) / "ssh" / HOST_KEY
    return write_atomically(target, key.read_text(), mode=0o600)


def _home(state: StateDir) -> None:
    home = state.home / USER
    ssh = home / ".ssh"
    keys = ssh / "authorized_keys"
    if keys.exists():
        return
    for folder, mode in ((home, 0o700), (ssh, 0o700), (home / "scratch", 0o755)):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        os.chown(folder, USER_ID, USER_ID)
    temporary = ssh / ".authorized_keys"
    shutil.copy(state.laptop / "id_ed25519.pub", temporary)
    os.chown(temporary, USER_ID, USER_ID)
    temporary.rename(keys)  # last: its presence says that all before it is done
