"""Paths on this machine that a rehearsal's programs come from. A job must not be able to change them."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

import deployer
from deployer.connected.ground import caches, xdg
from deployer.contract.base.errors import UsageError


def package() -> Path:
    """Return the folder of this package."""
    return Path(deployer.__file__).resolve().parent


def python() -> list[str]:
    """Return the files and folders of this Python and of this package. A prefix itself may be the user's home."""
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    parts = [os.path.join(prefix, name) for prefix in prefixes for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    paths = sysconfig.get_paths()
    return [*parts, paths["stdlib"], paths["platstdlib"], sys.executable, str(package())]


def bytecode() -> Path:
    """Return the folder of deployer's bytecode."""
    return xdg.cache_folder("pyz")


def source(bind: str) -> str:
    """Return the path on this machine in a value of --bind."""
    return os.path.abspath(os.path.expanduser(bind.partition(":")[0]))


def check_binds(binds: Sequence[str], programs: Iterable[str] = ()) -> None:
    """Refuse folders in which the job could change its rehearsal's programs or observations.

    Args:
        binds: the values of --bind.
        programs: paths of programs in addition to those of this module.

    Raises:
        UsageError: one of the folders contains such a path.
    """
    below = "bind a folder below it, or "
    cache = caches.REHEARSE.folder
    own = [(str(cache), "the rehearsal's own folder", below + "set XDG_CACHE_HOME to a folder elsewhere")]
    what, hint = "a program that deployer consists of,", below + "install deployer in a folder elsewhere"
    own += [(path, what, hint) for path in (*python(), str(bytecode()), *programs)]
    for folder in map(source, binds):
        above = os.path.realpath(folder).rstrip("/") + "/"
        for path, what, hint in own:
            if any(f"{place}/".startswith(above) for place in (os.path.realpath(path), os.path.abspath(path))):
                raise UsageError(f"--bind {folder}: {what} {path} is in it, and the job could change it", hint)
