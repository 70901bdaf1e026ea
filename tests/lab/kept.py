"""What is made once and kept, by all that it depends on: root filesystems, and the MPIs and images of the matrix."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from deployer.connected.ground import xdg
from tests.lab.state import locked

_WAIT_S = 1800.0
#: Entries of one name: what an older checkout made is still of use to it.
_KEPT = 2


def folder() -> Path:
    """Return the folder of the matrix's cache."""
    return xdg.cache_folder("matrix")


def kept(kind: str, name: str, inputs: Iterable[object], make: Callable[[Path], None]) -> Path:
    """Return the folder of ``name``, made now by ``make`` if there is none of these ``inputs``.

    It appears by a rename, so what is there is whole. The oldest of the same name are removed.
    """
    top = folder() / kind
    digest = hashlib.sha256(repr(list(inputs)).encode()).hexdigest()[:16]
    target = top / f"{name}@{digest}"
    if not target.is_dir():
        with locked(top / f".{name}.lock", wait=_WAIT_S):
            if not target.is_dir():
                _make(target, name, make)
    return target


def _make(target: Path, name: str, make: Callable[[Path], None]) -> None:
    for leftover in target.parent.glob(f".{name}@*"):  # we hold the lock: nobody is building in it
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=f".{name}@", dir=target.parent) as building:
        made = Path(building, "made")
        made.mkdir(mode=0o755)
        make(made)
        made.rename(target)
    for old in sorted(target.parent.glob(f"{name}@*"), key=lambda path: path.stat().st_ctime)[:-_KEPT]:
        shutil.rmtree(old)
